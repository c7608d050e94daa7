-- Reads one row an event by its key, anywhere. `events` is given by -D.
\set at random(0, :events - 1)
select "offset", appended_at, event from events where log_id = 1 and "offset" = :at;
