-- Compaction by key. Only adds.

alter table oncelog.batches
    -- null: all records of [base_offset, base_offset + record_count) are there. Else those whose bits
    -- are set, the first one's in the lowest bit of the first byte (model::kept)
    add column kept bytea;

alter table oncelog.logs
    -- behind it every record is there; before it there may be holes, in rows and between them
    add column compacted_offset bigint not null default 0,
    add check (compacted_offset <= snapshot_offset);

-- How far logs are compacted. Not in the heads: an append would write it each time.
create table oncelog.compactions (
    tenant_id bigint not null,
    log_id bigint not null,
    -- before it no record has the key of another
    cleaned_offset bigint not null default 0,
    -- so many records were left before it ...
    left_records bigint not null default 0,
    -- ... and so many of them say that a key is gone
    tombstones bigint not null default 0,
    -- what the tombstones before this offset say is gone had gone at that instant
    settled_offset bigint not null default 0,
    settled_at timestamptz not null default 'epoch',
    -- some replica is at it, if it lives: others leave it alone until then
    claimed_until timestamptz not null default 'epoch',
    primary key (tenant_id, log_id),
    check (settled_offset <= cleaned_offset)
) with (fillfactor = 70);

create index topics_compacted on oncelog.topics (tenant_id, topic_id) where settings ->> 'cleanup' = 'compact';
create index tenants_compacted on oncelog.tenants (tenant_id) where settings ->> 'cleanup' = 'compact';

-- The places of a row's records, counted from 0.
create function oncelog.places(kept bytea) returns bigint[]
    language sql immutable strict
    as $$select array_agg(place::bigint order by place) from generate_series(0, 8 * octet_length(kept) - 1) place where get_bit(kept, place) = 1$$;

-- Rows may lack records.
create or replace view oncelog.records as
select t.name as tenant, p.name as topic, l.partition,
       b.base_offset + coalesce(k.places[r.position], r.position - 1) as "offset", b.appended_at, b.transaction_id,
       r.line::json as record
  from oncelog.batches b
  join oncelog.logs l on l.tenant_id = b.tenant_id and l.log_id = b.log_id
  join oncelog.topics p on p.tenant_id = l.tenant_id and p.topic_id = l.topic_id
  join oncelog.tenants t on t.tenant_id = b.tenant_id
  left join oncelog.staged_batches s on s.tenant_id = b.tenant_id and s.transaction_id = b.transaction_id
       and s.ordinal = b.staged_ordinal
 cross join lateral (select oncelog.places(b.kept) as places offset 0) as k
 cross join lateral regexp_split_to_table(rtrim(coalesce(b.records, s.records), E'\n'), E'\n') with ordinality as r (line, position)
 where b.base_offset + coalesce(k.places[r.position], r.position - 1) >= l.log_start_offset and coalesce(b.records, s.records) is not null;
