-- What a team builds that keeps an ordered log in a table: one row an event, and a head row whose
-- lock gives the offsets their order. One transaction an event.
begin;
update heads set next_offset = next_offset + 1 where log_id = 1 returning next_offset - 1 as taken \gset
insert into events (log_id, "offset", appended_at, event) values (1, :taken, clock_timestamp(), :event);
commit;
