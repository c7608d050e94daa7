-- What deleted tenants have is removed by the janitor. Only adds: replicas of the version before go on.

create index tenants_deleted on oncelog.tenants (tenant_id) where deleted_at is not null;
