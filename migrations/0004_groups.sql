-- Groups have members now. Only adds: replicas of the version before go on.

alter table oncelog.tenants
    -- grows with every partition made or deleted, so that groups are looked at again
    add column topics_version bigint not null default 0;

alter table oncelog.groups
    -- one life of the group. A number of logs, as it is watched as they are: its generation only grows
    add column group_id bigint not null default nextval('oncelog.log_ids'),
    add column auto_offset_reset text collate "C" not null default 'earliest'
        check (auto_offset_reset in ('earliest', 'latest', 'error')),
    -- all that members have ever subscribed with: what matches and is made later is read from its start
    add column patterns text[] not null default '{}',
    add column member_count integer not null default 0,
    -- the tenant's topics as the newest assignment knows them
    add column topics_version bigint not null default 0,
    -- when it last had members; without any, when it was made
    add column active_at timestamptz not null default now();
create index groups_by_id on oncelog.groups (tenant_id, group_id);
create index groups_alive on oncelog.groups (tenant_id, name) where member_count > 0;
create index groups_empty on oncelog.groups (tenant_id, active_at) where member_count = 0;

-- A member is a lease; all but that changes only under the lock of its group's row.
alter table oncelog.group_members
    add column instance_id text collate "C",
    add column topics text[] not null default '{}',
    add column topic_pattern text,
    add column session_timeout_ms bigint not null default 45000,
    add column joined_at timestamptz not null default now(),
    add column lease_expires_at timestamptz not null default now() + interval '45 seconds';
alter table oncelog.group_members set (fillfactor = 70);
create unique index group_members_by_instance on oncelog.group_members (tenant_id, group_name, instance_id)
    where instance_id is not null;

-- Who owns a partition, and is to own it, changes only under the lock of its group's row and its own.
alter table oncelog.group_offsets
    -- the member that the newest assignment gives it to; another owner is to let go
    add column assigned_to text collate "C",
    -- the owner has been told
    add column announced boolean not null default false,
    -- where the group begins without a committed offset: as it says, or, in what was made after it
    -- first subscribed, at the log's start; null: it has not subscribed
    add column starts text collate "C" check (starts in ('reset', 'earliest')),
    -- when its owner got it
    add column owned_at timestamptz;
create index group_offsets_by_member on oncelog.group_offsets (tenant_id, group_name, member_id)
    where member_id is not null;
