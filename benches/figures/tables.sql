-- The tables of all references, made afresh for each run.

create table heads (log_id bigint primary key, next_offset bigint not null) with (fillfactor = 20);
insert into heads values (1, 0);

create table events (
    log_id bigint not null,
    "offset" bigint not null,
    appended_at timestamptz not null,
    event text not null,
    primary key (log_id, "offset")
);

-- as oncelog.batches
create table batches (
    tenant_id bigint not null,
    log_id bigint not null,
    base_offset bigint not null,
    record_count bigint not null check (record_count > 0),
    appended_at timestamptz not null,
    producers bytea,
    transaction_id uuid,
    staged_ordinal bigint,
    records text,
    primary key (tenant_id, log_id, base_offset)
);
alter table batches alter column records set storage main;
do $$
begin
    alter table batches alter column records set compression lz4;
exception when feature_not_supported or invalid_parameter_value then null;
end
$$;

create sequence offsets as bigint;
