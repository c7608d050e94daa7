-- The log: topics with their logs, sessions with their states.
-- Every key begins with tenant_id and every foreign key stays inside a tenant: that is isolation,
-- and it lets the same schema be spread over many machines.

create sequence oncelog.tenant_ids as bigint;
create sequence oncelog.topic_ids as bigint;
create sequence oncelog.log_ids as bigint;
create sequence oncelog.producer_ids as bigint;

create table oncelog.tenants (
    tenant_id bigint primary key default nextval('oncelog.tenant_ids'),
    name text collate "C" not null unique,
    created_at timestamptz not null default now()
);

-- One row a life of a topic: a deleted topic's row is gone, and its name is free at once.
create table oncelog.topics (
    tenant_id bigint not null references oncelog.tenants,
    topic_id bigint not null default nextval('oncelog.topic_ids'),
    name text collate "C" not null,
    partition_count integer not null check (partition_count >= 1),
    settings jsonb not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, topic_id),
    unique (tenant_id, name)
);

-- The head rows. A partition's log holds records and provenance; a topic's journal (partition
-- null) holds the provenance of requests numbered in topic scope, and its offsets count requests.
create table oncelog.logs (
    tenant_id bigint not null,
    log_id bigint not null default nextval('oncelog.log_ids'),
    topic_id bigint not null,
    partition integer,
    next_offset bigint not null default 0,
    -- raised by whatever changes the ground of a decision: open, close, growth of the topic
    fence bigint not null default 0,
    log_start_offset bigint not null default 0,
    -- everything before it is folded into producer_states
    snapshot_offset bigint not null default 0,
    -- rows before it are gone
    kept_offset bigint not null default 0,
    last_appended_at timestamptz not null default 'epoch',
    size_bytes bigint not null default 0,
    primary key (tenant_id, log_id),
    foreign key (tenant_id, topic_id) references oncelog.topics,
    check (kept_offset <= snapshot_offset and snapshot_offset <= next_offset),
    check (log_start_offset <= next_offset)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create unique index logs_by_topic on oncelog.logs (tenant_id, topic_id, (coalesce(partition, -1)));

-- The log. Insert-only; rows leave by retention alone.
create table oncelog.batches (
    tenant_id bigint not null,
    log_id bigint not null,
    base_offset bigint not null,
    record_count bigint not null check (record_count > 0),
    appended_at timestamptz not null,
    -- whose numbered requests lie in the row, in order (rules::provenance)
    producers bytea,
    transaction_id uuid,
    staged_ordinal bigint,
    -- newline-delimited JSON, one line a record; none in a journal
    records text,
    primary key (tenant_id, log_id, base_offset)
);
-- lz4 and `main` keep a row of many records in one compressed tuple; a server built without lz4
-- keeps its own compression.
alter table oncelog.batches alter column records set storage main;
do $$
begin
    alter table oncelog.batches alter column records set compression lz4;
exception when feature_not_supported or invalid_parameter_value then null;
end
$$;
-- Insert-only: vacuum for visibility and freezing, seldom.
alter table oncelog.batches set (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2);

create table oncelog.sessions (
    tenant_id bigint not null references oncelog.tenants,
    producer_id bigint not null default nextval('oncelog.producer_ids'),
    transactional_id text collate "C",
    epoch bigint not null default 0,
    -- the current epoch has no owner
    closed boolean not null default false,
    -- an open of many logs was begun and has not fenced them all yet
    fencing boolean not null default false,
    -- states of an epoch before it count as none
    reset_epoch bigint not null default 0,
    monotonic boolean not null default false,
    transaction_timeout_ms bigint not null,
    -- open ids at or before it are no longer remembered
    open_horizon timestamptz not null default 'epoch',
    opened_at timestamptz not null,
    primary key (tenant_id, producer_id),
    unique (tenant_id, transactional_id)
) with (fillfactor = 70);

create table oncelog.session_opens (
    tenant_id bigint not null,
    open_id uuid not null,
    producer_id bigint not null,
    epoch bigint not null,
    primary key (tenant_id, open_id),
    foreign key (tenant_id, producer_id) references oncelog.sessions on delete cascade
);
create index session_opens_by_producer on oncelog.session_opens (tenant_id, producer_id, epoch);

-- Where a producer has ever appended (what an open fences), and the snapshot of its state there.
create table oncelog.producer_states (
    tenant_id bigint not null,
    log_id bigint not null,
    producer_id bigint not null,
    epoch bigint not null,
    last_sequence bigint,
    -- the last requests with digest and place (rules::provenance)
    recent bytea not null default '',
    -- the state counts every row of the log before it
    as_of_offset bigint not null,
    last_appended_at timestamptz,
    primary key (tenant_id, log_id, producer_id),
    foreign key (tenant_id, producer_id) references oncelog.sessions
) with (fillfactor = 70);
create index producer_states_by_producer on oncelog.producer_states (tenant_id, producer_id);

-- Logs of deleted topics whose rows are still to be removed, in chunks, in the background.
create table oncelog.doomed_logs (
    tenant_id bigint not null references oncelog.tenants,
    log_id bigint not null,
    doomed_at timestamptz not null default now(),
    primary key (tenant_id, log_id)
);

-- For people: one row a record.
create view oncelog.records as
select t.name as tenant, p.name as topic, l.partition,
       b.base_offset + r.position - 1 as "offset", b.appended_at, b.transaction_id,
       r.line::json as record
  from oncelog.batches b
  join oncelog.logs l on l.tenant_id = b.tenant_id and l.log_id = b.log_id
  join oncelog.topics p on p.tenant_id = l.tenant_id and p.topic_id = l.topic_id
  join oncelog.tenants t on t.tenant_id = b.tenant_id
 cross join lateral regexp_split_to_table(rtrim(b.records, E'\n'), E'\n') with ordinality as r (line, position)
 where b.records is not null and b.base_offset + r.position - 1 >= l.log_start_offset;
