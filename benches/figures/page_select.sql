-- Reads a table of one row an event from its first to its last, over and over, in pages of 1000.
-- `start` and `events` are given by -D.
select "offset", appended_at, event from events where log_id = 1 and "offset" >= :start order by "offset" limit 1000;
\set start (:start + 1000) % :events
