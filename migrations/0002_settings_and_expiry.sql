-- Settings of tenants, and producers that expire. Only adds: replicas of the version before go on.

alter table oncelog.tenants
    add column settings jsonb not null default '{}',
    -- grows with every change of the settings
    add column settings_version bigint not null default 0;

-- The producer has done something then, or counts as if it had: no limit of idle time has to be
-- judged before it has passed since. Moved by the janitor's looks alone, so an append and an open
-- pay nothing for it.
alter table oncelog.sessions add column active_at timestamptz not null default now();
create index sessions_by_activity on oncelog.sessions
    (tenant_id, (transactional_id is not null), active_at);

-- What an open id did is known as long as the id would be accepted, also when its producer has
-- expired: else a delayed open would run twice.
alter table oncelog.session_opens
    drop constraint session_opens_tenant_id_producer_id_fkey,
    -- its producer has expired
    add column orphaned boolean not null default false;
create index session_opens_orphaned on oncelog.session_opens (open_id) where orphaned;
