-- Fills the table of one row an event: $2 copies of the event $1, each with an id of its own.
insert into events (log_id, "offset", appended_at, event)
select 1, n, clock_timestamp(), overlay($1 placing lpad(n::text, 16, '0') from 8 for 16)
  from generate_series(0, $2 - 1) as n
