-- The least that one durable event costs: one insert of one row, which commits by itself. No order,
-- no head.
insert into events (log_id, "offset", appended_at, event) values (1, nextval('offsets'), clock_timestamp(), :event);
