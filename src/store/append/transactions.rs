//! The write of a batch with one-request transactions on the fast path. It locks and writes in the
//! order of `store`: keys, transactions by id, the offsets they move by group and log, then heads.

use sqlx::{postgres::PgBindIterExt, types::Json};

use super::{Query, head_is_as_expected, heads_and_rows, reserved_keys};
use crate::{
    rules::transaction::one_request::OffsetMove,
    store::{dedup::insert_keys, durable, statements, transaction::one_request::Ended},
};

/// Commits one-request transactions, all or none.
macro_rules! transactions {
    () => {
        concat!(
            r"
            -- Waits for a key or id that runs elsewhere; one that has run undoes the statement.
            named as materialized (
                insert into oncelog.transaction_keys (tenant_id, key, transaction_id, instant)
                select $1, k.key, k.transaction_id, k.instant
                from unnest($16::uuid[], $20::uuid[], $21::timestamptz[])
                    as k (transaction_id, key, instant)
                where k.key is not null and ", durable!(), r"
                order by k.key
                returning key),
            -- After the keys of all, so that everyone waits for keys before ids.
            done as (
                insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at,
                    expires_at, ended_at, append_count, appends, remembered_from)
                select $1, t.transaction_id, 'committed', t.digest, c.now, c.now, c.now, t.append_count,
                    t.appends, greatest(c.now, oncelog.instant_of(t.transaction_id), t.key_instant)
                from unnest($16::uuid[], $17::bytea[], $18::bigint[], $19::jsonb[], $21::timestamptz[])
                    as t (transaction_id, digest, append_count, appends, key_instant)
                cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c
                where ", durable!(), r#" and (select count(*) from named) >= 0
                order by t.transaction_id
                returning created_at),
            moved as materialized (
                select * from unnest($22::text[], $23::bigint[], $24::bigint[], $25::bigint[],
                        $26::bigint[], $27::text[], $28::bigint[], $29::bigint[], $30::boolean[])
                    as m (group_name, log_id, from_offset, to_offset, highest_offset,
                        member_id, since, generation, from_below)),
            -- The offsets that are as expected (or less, if only that is known), and have no owner,
            -- or are owned by the member that moves them, since the named generation or earlier, in
            -- a group of that generation or a newer one. (Generations and next offsets only grow,
            -- so an old view is safe.)
            place as materialized (
                select o.log_id from (
                    select * from moved where (select count(*) from done) = cardinality($16)
                    order by group_name collate "C", log_id) m
                cross join lateral (
                    select o.log_id from oncelog.group_offsets o
                    where o.tenant_id = $1 and o.group_name = m.group_name and o.log_id = m.log_id
                        and o.member_id is not distinct from m.member_id and o.pinned_by is null
                        and (o.committed_offset = m.from_offset
                            or o.committed_offset < m.from_offset and m.from_below)
                        and (o.owned_since > m.since) is not true
                        and exists (
                            select from oncelog.groups
                            where tenant_id = $1 and name = m.group_name and generation >= m.generation)
                        and exists (
                            select from oncelog.logs
                            where tenant_id = $1 and log_id = m.log_id and next_offset >= m.highest_offset)
                    for no key update of o) as o), "#,
            heads_and_rows!(
                r"(select count(*) from done) = cardinality($16)
                    and (select count(*) from place) = cardinality($22)",
                // a group from which nobody owns a partition has no member
                r"
                    and not exists (
                        select from oncelog.group_members gm
                        where gm.tenant_id = $1 and gm.group_name = any(array(
                            select group_name from moved where member_id is null)))"
            ),
            r",
            committed as (
                insert into oncelog.group_offsets
                    (tenant_id, group_name, log_id, committed_offset, committed_at)
                select $1, m.group_name, m.log_id, m.to_offset, t.appended_at
                from moved m cross join moment t
                where t.complete
                on conflict (tenant_id, group_name, log_id) do update
                set committed_offset = excluded.committed_offset, metadata = null,
                    committed_at = excluded.committed_at)"
        )
    };
}

/// The result of a batch with transactions.
macro_rules! undone_unless_complete {
    () => {
        r"
            select r.log_id, r.base_offset, m.appended_at, pg_postmaster_start_time() as started_at,
                (select min(created_at) from done) as ended_at,
                -- An incomplete batch undoes all of it. Ids are checked last: what was forgotten
                -- before a row could be inserted has advanced the horizon, which is visible here.
                case when not (m.complete and ($31::timestamptz is null
                    or $31 >= (select oncelog.forgotten_horizon($1))
                        and $31 >= m.appended_at - interval '1 millisecond' * $33::bigint
                        and $32 <= m.appended_at + interval '24 hours'))
                    then oncelog.undo_statement() else 0 end as undone
            from moment m left join row r on true"
    };
}

statements! {
    /// Several logs or rows, with transactions.
    APPEND_TRANSACTIONS = concat!("with ", transactions!(), undone_unless_complete!());
    /// The same with reserved keys.
    APPEND_TRANSACTIONS_CLAIMING = concat!(
        "with ", transactions!(), ", ",
        reserved_keys!(
            r"$34::smallint[], $35::bigint[], $36::uuid[], $37::bigint[],
                        $38::bigint[], $39::bigint[], $40::bigint[], $41::bytea[]"
        ),
        undone_unless_complete!(),
    );
}

/// The statement: its parameters are those of `heads_and_rows`, of `bind`, and of `reserved_keys`.
pub(super) fn statement(has_keys: bool) -> &'static str {
    if has_keys { APPEND_TRANSACTIONS_CLAIMING } else { APPEND_TRANSACTIONS }
}

/// $16 to $33: of `transactions` and `undone_unless_complete`.
pub(super) fn bind<'q>(
    query: Query<'q>,
    ended: &'q [Ended<'q>],
    offsets: &'q [OffsetMove],
) -> Query<'q> {
    let keys = || ended.iter().map(|ended| ended.transaction.repeated_by.key());
    let named = || ended.iter().filter(|ended| ended.transaction.instant().is_some());
    let instants = || ended.iter().filter_map(|ended| ended.transaction.instant());
    query
        .bind(ended.iter().map(|e| e.transaction.transaction_id).bind_iter())
        .bind(ended.iter().map(|e| e.digest).bind_iter())
        .bind(ended.iter().map(|e| e.transaction.append_count).bind_iter())
        .bind(ended.iter().map(|e| Json(&e.appends)).bind_iter())
        .bind(keys().map(|key| Some(key?.key)).bind_iter())
        .bind(keys().map(|key| key?.instant).bind_iter())
        .bind(offsets.iter().map(|o| &o.place.group).bind_iter())
        .bind(offsets.iter().map(|o| o.place.log_id).bind_iter())
        .bind(offsets.iter().map(|o| o.from).bind_iter())
        .bind(offsets.iter().map(|o| o.to).bind_iter())
        .bind(offsets.iter().map(|o| o.highest).bind_iter())
        .bind(offsets.iter().map(|o| Some(o.owner.as_ref()?.0.as_str())).bind_iter())
        .bind(offsets.iter().map(|o| Some(o.owner.as_ref()?.1)).bind_iter())
        .bind(offsets.iter().map(|o| o.generation).bind_iter())
        .bind(offsets.iter().map(|o| o.from_below).bind_iter())
        .bind(instants().min())
        .bind(instants().max())
        .bind(named().map(|ended| ended.transaction.retention_ms).min())
}
