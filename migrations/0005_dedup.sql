-- Dedup by key: ids of records and Idempotency-Keys, in partitions that are emptied whole; operators'
-- words on tenants. Only adds: replicas of the version before go on.

alter table oncelog.tenants
    -- what an operator lets the tenant's settings be at most
    add column maxima jsonb not null default '{}',
    -- an operator has suspended it then
    add column suspended_at timestamptz,
    -- an operator has deleted it then: what it has is being removed
    add column deleted_at timestamptz,
    -- the rings in which keys of its calls that are no appends may lie: a bit each
    add column key_rings integer not null default 0;

alter table oncelog.logs
    -- of a journal: grows with every pass that remembers ids or keys in its topic. Who does so holds
    -- the journal's head, and what was looked up before that is whole if this has not grown since
    add column claims bigint not null default 0,
    -- the rings in which its topic's ids and keys may lie: a bit each
    add column key_rings integer not null default 0;

-- Keys whose windows are about as long share a ring of three partitions: one takes new keys, one holds
-- those before, one is empty or to be emptied. It turns when its period is over and not before: what
-- is emptied then has expired. The last ring is for ever and has one partition.
create table oncelog.key_rings (
    ring smallint primary key,
    -- no key of it lives longer. Null: for ever
    period_ms bigint,
    -- of the partition that takes new keys
    slot smallint not null,
    turned_at timestamptz not null default now(),
    -- keys (UUIDv7) with an instant before it may have been forgotten
    horizon timestamptz not null default 'epoch'
);
insert into oncelog.key_rings (ring, period_ms, slot) values
    (0, 900000, 0), (1, 7200000, 3), (2, 86400000, 6), (3, 604800000, 9), (4, 5184000000, 12), (5, 315446400000, 15), (6, null, 18);

create table oncelog.dedup_keys (
    slot smallint not null,
    tenant_id bigint not null,
    -- 0: of a call that is no append
    topic_id bigint not null,
    -- a hash of a record's id, or of an Idempotency-Key with method and path
    key uuid not null,
    -- of the payload it came with
    digest bigint not null,
    first_seen_at timestamptz not null,
    expires_at timestamptz not null,
    -- where the record lies
    log_id bigint,
    record_offset bigint,
    -- of a request
    answer bytea,
    primary key (tenant_id, topic_id, key, slot),
    check ((log_id is null) = (record_offset is null))
) partition by list (slot);
do $$
begin
    for slot in 0..18 loop
        execute format('create table oncelog.dedup_keys_%s partition of oncelog.dedup_keys for values in (%s)', slot, slot);
        execute format('alter table oncelog.dedup_keys_%s set (autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_analyze_scale_factor = 0.5)', slot);
    end loop;
end
$$;

-- Emptied, not deleted from: its space comes back at once. (A role that does not own the tables may do
-- this much.)
create function oncelog.empty_slot(slot smallint) returns void
    language plpgsql volatile security definer set search_path = ''
    as $$
begin
    execute format('truncate oncelog.dedup_keys_%s', slot);
end
$$;

-- The ids that prepared transactions have claimed.
create table oncelog.held_ids (
    tenant_id bigint not null,
    topic_id bigint not null,
    key uuid not null,
    transaction_id uuid not null,
    digest bigint not null,
    -- of the staged batch, and in it
    ordinal bigint not null,
    position integer not null,
    primary key (tenant_id, topic_id, key)
);
create index held_ids_by_transaction on oncelog.held_ids (tenant_id, transaction_id);

alter table oncelog.transactions
    -- records with ids among what it has staged
    add column id_count bigint not null default 0;
alter table oncelog.staged_batches
    -- hashes of the ids of its records, and of what they came with (rules::dedup)
    add column ids bytea,
    -- none is left where all were stored by others meanwhile
    drop constraint staged_batches_record_count_check,
    add check (record_count >= 0);

-- Topics that are deleted, whose keys for ever are still to be removed, in chunks.
create table oncelog.doomed_topics (
    tenant_id bigint not null references oncelog.tenants,
    topic_id bigint not null,
    doomed_at timestamptz not null default now(),
    primary key (tenant_id, topic_id)
);
