-- Logs that lose their beginnings: what is to be removed is found by index, and space comes back.
-- Only adds: replicas of the version before go on.

-- Almost always empty: logs with rows that nobody needs any more, and those that were trimmed past
-- their snapshot. Appends change none of these columns, so their updates of heads stay HOT.
create index logs_trimmable on oncelog.logs (tenant_id, log_id)
    where kept_offset < case when partition is null then snapshot_offset else least(snapshot_offset, log_start_offset) end;
create index logs_unsnapped on oncelog.logs (tenant_id, log_id)
    where partition is not null and snapshot_offset < log_start_offset;

-- Vacuum makes the space of removed rows free for new ones. How much lies idle until then is the part
-- of a table that is let die: autovacuum's 20 % of a log of 500 GB would be another 100 GB. And what it
-- may read and write in a second (by default some 40 MB of changed pages) has to be more than is
-- appended, or it never comes to an end. `toast` tables, where large rows lie, take their main table's.

-- Appended at one end and removed at the other, both for ever: vacuumed when 2 % are dead, ten times as
-- fast as usual. (The first part is for tables that only grow: visibility and freezing, seldom.)
alter table oncelog.batches set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_limit = 2000);
-- As `batches`: rows of committed transactions leave with those of the log that point to them, others
-- soon after they came.
alter table oncelog.staged_batches set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_limit = 2000);
-- Updated by every append, in place (HOT); what does not fit beside its row waits for vacuum. Small and
-- the hottest of all: done at once, without pauses.
alter table oncelog.logs set (autovacuum_vacuum_cost_delay = 0);
-- Updated in place by every snapshot; gone with their producers.
alter table oncelog.producer_states set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
-- Updated in place by every commit of offsets, as heads are by appends: a count, not a part, or a group
-- of many partitions would be read through ever more versions of its rows.
alter table oncelog.group_offsets set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
-- The same by every lease that is renewed.
alter table oncelog.group_members set (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
-- An outcome stays for days, and with many short transactions there are millions: each is updated once
-- or twice, and in all its indexes, and is removed in order of age.
alter table oncelog.transactions set (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_limit = 2000);
-- Come with a transaction and go with its end: near empty, whatever passed through. The share of what
-- is there says nothing; so many dead ones do.
alter table oncelog.staged_offsets set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table oncelog.pins set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table oncelog.held_ids set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Producers without names come and go by the million.
alter table oncelog.sessions set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
alter table oncelog.session_opens set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
