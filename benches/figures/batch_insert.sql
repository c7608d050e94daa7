-- The same rows that a request of 100 events becomes in oncelog.batches, and nothing else: no head, no
-- sequence, no HTTP, no JSON. Provenance and records are those of a real row, and cross the wire each time.
insert into batches (tenant_id, log_id, base_offset, record_count, appended_at, producers, records)
values (1, 1, nextval('offsets') * 100, 100, clock_timestamp(), :producers, :records);
