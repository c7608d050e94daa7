-- Work for the janitor beside the appends to the only partition there is: :rows rows to be trimmed in
-- its log, a few of them of 64 kB, and as many of a deleted topic, of keys, and (a quarter) of outcomes
-- and of what an aborted transaction staged; 2,000 producers of that log. Where :due is false all of
-- it is there, and none of it is due.

create temporary table place as
select tenant_id, log_id, next_offset from oncelog.logs where partition = 0;
create temporary table lines as
select n, case when n % 1000 = 0
       then (select string_agg(md5(n::text || i), '') from generate_series(1, 2048) as i)
       else '{"value":"' || repeat(md5(n::text), 5) || E'"}\n' end as line
  from generate_series(0, :rows - 1) as n;

insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, records)
select tenant_id, log_id, next_offset + n, 1, now(), line from place, lines order by n;
update oncelog.logs l
   set next_offset = l.next_offset + :rows, snapshot_offset = l.next_offset + :rows, fence = fence + 1,
       size_bytes = size_bytes + (select sum(octet_length(line)) from lines),
       log_start_offset = case when :due then l.next_offset + :rows else 0 end
  from place p where l.tenant_id = p.tenant_id and l.log_id = p.log_id;

insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, records)
select tenant_id, 1000000, n, 1, now(), line from place, lines order by n;
insert into oncelog.doomed_logs (tenant_id, log_id) select tenant_id, 1000000 from place where :due;

insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at,
       ended_at, remembered_from, appends)
select tenant_id, gen_random_uuid(), 'committed', '', t.at, t.at, t.at, t.at, '[]'
  from place, generate_series(1, :rows / 4), lateral (select case when :due then now() - interval '9 days' else now() end as at) t;

insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at,
       ended_at, remembered_from, reason, sweeping)
select tenant_id, '01900000-0000-7000-8000-000000000001', 'aborted', '', now(), now(), now(), now(), 'client', :due
  from place;
insert into oncelog.staged_batches (tenant_id, transaction_id, ordinal, log_id, record_count, records)
select tenant_id, '01900000-0000-7000-8000-000000000001', n, log_id, 1, line
  from place, lines where n < :rows / 4;

with idle as (
    insert into oncelog.sessions (tenant_id, transaction_timeout_ms, opened_at, active_at)
    select tenant_id, 60000, t.at, t.at
      from place, generate_series(1, 2000), lateral (select case when :due then now() - interval '9 days' else now() end as at) t
    returning tenant_id, producer_id)
insert into oncelog.producer_states (tenant_id, log_id, producer_id, epoch, as_of_offset)
select i.tenant_id, p.log_id, i.producer_id, 0, p.next_offset + :rows from idle i, place p;

insert into oncelog.dedup_keys (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at)
select 1, tenant_id, 1, gen_random_uuid(), 1, now(), now() from place, lines;
update oncelog.key_rings set turned_at = case when :due then now() - interval '1 day' else now() end where ring = 0;

analyze;
