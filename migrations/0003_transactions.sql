-- Transactions, what they stage, and the offsets of groups. Only adds: replicas of the version before
-- go on.

alter table oncelog.tenants
    -- a transaction id without a row and with an instant before it may have run: it never runs again
    add column forgotten_horizon timestamptz not null default 'epoch';

create table oncelog.transactions (
    tenant_id bigint not null,
    transaction_id uuid not null,
    state text collate "C" not null check (state in ('ongoing', 'prepared', 'committed', 'aborted')),
    -- the session it is bound to
    producer_id bigint,
    epoch bigint,
    -- of the request that began it
    digest bytea not null,
    created_at timestamptz not null,
    -- an ongoing one is aborted then
    expires_at timestamptz not null,
    prepared_at timestamptz,
    ended_at timestamptz,
    reason text collate "C" check (reason in ('client', 'timeout', 'fenced', 'operator')),
    -- items of `appends` over all calls, and the batches they were staged as
    append_count bigint not null default 0,
    batch_count bigint not null default 0,
    -- of the next numbered call to /records
    next_sequence bigint not null default 0,
    -- where the appends of a committed one lie: [{topic, partition, base_offset, record_count}]
    appends jsonb,
    -- its outcome is remembered for as long as the tenant says after it: the later of its end and the instant in its id
    remembered_from timestamptz,
    -- what it staged is of no use any more, and is still to be removed
    sweeping boolean not null default false,
    primary key (tenant_id, transaction_id),
    check ((producer_id is null) = (epoch is null)),
    check ((state in ('committed', 'aborted')) = (ended_at is not null)),
    check ((ended_at is null) = (remembered_from is null)),
    check ((state = 'aborted') = (reason is not null)),
    check ((state = 'committed') = (appends is not null))
) with (fillfactor = 70);
-- one ongoing transaction a session
create unique index transactions_ongoing_by_producer on oncelog.transactions (tenant_id, producer_id) where state = 'ongoing';
create index transactions_by_producer on oncelog.transactions (tenant_id, producer_id, transaction_id) where producer_id is not null;
create index transactions_open on oncelog.transactions (tenant_id, transaction_id) where state in ('ongoing', 'prepared');
create index transactions_by_expiry on oncelog.transactions (expires_at) where state = 'ongoing';
create index transactions_sweeping on oncelog.transactions (tenant_id, transaction_id) where sweeping;
create index transactions_by_memory on oncelog.transactions (tenant_id, remembered_from) where remembered_from is not null;

-- What a transaction of several requests has appended. Insert-only; rows leave by abort or, once
-- rows of the log point to them, by retention.
create table oncelog.staged_batches (
    tenant_id bigint not null,
    transaction_id uuid not null,
    ordinal bigint not null,
    log_id bigint not null,
    record_count bigint not null check (record_count > 0),
    -- of a numbered call to /records, in its first row
    sequence bigint,
    digest bytea,
    records text not null,
    primary key (tenant_id, transaction_id, ordinal)
);
alter table oncelog.staged_batches alter column records set storage main;
do $$
begin
    alter table oncelog.staged_batches alter column records set compression lz4;
exception when feature_not_supported or invalid_parameter_value then null;
end
$$;
alter table oncelog.staged_batches set (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2);

-- The group offsets a transaction is to commit; the last one for a partition wins.
create table oncelog.staged_offsets (
    tenant_id bigint not null,
    transaction_id uuid not null,
    group_name text collate "C" not null,
    log_id bigint not null,
    committed_offset bigint not null,
    -- by a member; without one the offset committed before must be the expected one (null: none)
    member_id text collate "C",
    generation bigint,
    expected_offset bigint,
    primary key (tenant_id, transaction_id, group_name, log_id),
    check ((member_id is null) = (generation is null)),
    check (member_id is null or expected_offset is null)
);

-- What prepared transactions hold: these logs' topics cannot be deleted.
create table oncelog.pins (
    tenant_id bigint not null,
    transaction_id uuid not null,
    log_id bigint not null,
    primary key (tenant_id, transaction_id, log_id)
);
create index pins_by_log on oncelog.pins (tenant_id, log_id);

create table oncelog.groups (
    tenant_id bigint not null references oncelog.tenants,
    name text collate "C" not null,
    -- grows with every rebalance
    generation bigint not null default 0,
    created_at timestamptz not null default now(),
    primary key (tenant_id, name)
);

create table oncelog.group_members (
    tenant_id bigint not null,
    group_name text collate "C" not null,
    member_id text collate "C" not null,
    primary key (tenant_id, group_name, member_id),
    foreign key (tenant_id, group_name) references oncelog.groups
);

-- Where a group goes on in a partition, and who owns it now. Whoever commits an offset, takes or
-- gives a partition, locks its row.
create table oncelog.group_offsets (
    tenant_id bigint not null,
    group_name text collate "C" not null,
    log_id bigint not null,
    -- null: none yet
    committed_offset bigint,
    metadata text,
    committed_at timestamptz,
    member_id text collate "C",
    -- the generation in which the member got it
    owned_since bigint,
    -- a prepared transaction is to commit an offset here: nobody else may
    pinned_by uuid,
    primary key (tenant_id, group_name, log_id),
    foreign key (tenant_id, group_name) references oncelog.groups,
    check ((member_id is null) = (owned_since is null))
) with (fillfactor = 70);
-- With the group's name a row is found by one lookup also where this index is taken for the key.
create index group_offsets_by_log on oncelog.group_offsets (tenant_id, log_id, group_name);

-- As the statement that asks goes on, not as it was when it began: an insert of a transaction that
-- waited for the removal of its id's row sees the horizon that came with the removal.
-- (plpgsql keeps its plan from statement to statement; a function in SQL plans anew.)
create function oncelog.forgotten_horizon(tenant bigint) returns timestamptz
    language plpgsql volatile
    as $$
begin
    return (select forgotten_horizon from oncelog.tenants where tenant_id = tenant);
end
$$;

-- The instant in a UUIDv7 (RFC 9562).
create function oncelog.instant_of(id uuid) returns timestamptz
    language sql immutable strict
    as $$select to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)$$;

-- Rows of committed transactions point to what was staged.
create or replace view oncelog.records as
select t.name as tenant, p.name as topic, l.partition,
       b.base_offset + r.position - 1 as "offset", b.appended_at, b.transaction_id,
       r.line::json as record
  from oncelog.batches b
  join oncelog.logs l on l.tenant_id = b.tenant_id and l.log_id = b.log_id
  join oncelog.topics p on p.tenant_id = l.tenant_id and p.topic_id = l.topic_id
  join oncelog.tenants t on t.tenant_id = b.tenant_id
  left join oncelog.staged_batches s on s.tenant_id = b.tenant_id and s.transaction_id = b.transaction_id
       and s.ordinal = b.staged_ordinal
 cross join lateral regexp_split_to_table(rtrim(coalesce(b.records, s.records), E'\n'), E'\n') with ordinality as r (line, position)
 where b.base_offset + r.position - 1 >= l.log_start_offset and coalesce(b.records, s.records) is not null;
