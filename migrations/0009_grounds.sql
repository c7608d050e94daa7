-- What a statement judges under the lock of a transaction's row is a column of that row. Only adds:
-- replicas of the version before go on, beside those of this one.

-- Offsets that are staged are counted where records with ids are. (A column of their own would make the
-- row wider, and the planner think that an empty table holds so few that a tenant's are read whole.)
comment on column oncelog.transactions.id_count is
    'Records with ids and offsets it has staged: where there are any its commit is judged by itself.';

-- Replicas of the version before stage offsets without counting them: until none of them runs any more,
-- this touches the transaction's row for them. (One row after the other: each is looked up by its key,
-- whatever the table was like when that was planned.)
create function oncelog.count_staged_offsets() returns trigger
    language plpgsql
    as $$
declare
    staged_for record;
begin
    for staged_for in select distinct tenant_id, transaction_id from staged loop
        update oncelog.transactions set id_count = 1
        where tenant_id = staged_for.tenant_id and transaction_id = staged_for.transaction_id and id_count = 0;
    end loop;
    return null;
end
$$;
create trigger count_staged_offsets after insert on oncelog.staged_offsets
    referencing new table as staged for each statement execute function oncelog.count_staged_offsets();

-- Nobody stages offsets between the trigger and the end of this.
update oncelog.transactions t set id_count = t.id_count + (
        select count(*) from oncelog.staged_offsets s where s.tenant_id = t.tenant_id and s.transaction_id = t.transaction_id)
where t.ended_at is null and exists (
    select from oncelog.staged_offsets s where s.tenant_id = t.tenant_id and s.transaction_id = t.transaction_id);

-- Those of committed transactions, which commits beside the call that brought them have left behind.
delete from oncelog.staged_offsets s where not exists (
    select from oncelog.transactions t where t.tenant_id = s.tenant_id and t.transaction_id = s.transaction_id
        and (t.ended_at is null or t.sweeping));

-- Functions are for the role that owns the schema. One that may only read it could empty a partition
-- of remembered keys, as empty_slot runs with the rights of its owner.
revoke execute on all functions in schema oncelog from public;

-- A view runs functions with the rights of who reads it: without them, as before, the right to read it
-- is enough.
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
 cross join lateral (
       select array_agg(place::bigint order by place) as places from generate_series(0, 8 * octet_length(b.kept) - 1) place
       where get_bit(b.kept, place) = 1) as k
 cross join lateral regexp_split_to_table(rtrim(coalesce(b.records, s.records), E'\n'), E'\n') with ordinality as r (line, position)
 where b.base_offset + coalesce(k.places[r.position], r.position - 1) >= l.log_start_offset and coalesce(b.records, s.records) is not null;
