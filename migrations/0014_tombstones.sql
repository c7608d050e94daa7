-- The names of deleted tenants: a token does not bring one back. Only adds: replicas of the version
-- before go on, and leave none.

create table oncelog.tenant_tombstones (
    name text collate "C" primary key,
    deleted_at timestamptz not null
);
