-- Tokens of a tenant that are refused before they expire. Only adds: replicas of the version before
-- go on, and refuse none.

alter table oncelog.tenants add column revocations jsonb not null default '[]';
