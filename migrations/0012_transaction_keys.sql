-- One-request transactions that are repeated by an Idempotency-Key. Only adds: replicas of the version
-- before go on, and their transactions have no keys.

create table oncelog.transaction_keys (
    tenant_id bigint not null,
    -- a hash of the key
    key uuid not null,
    transaction_id uuid not null,
    -- in a key that is a UUIDv7: its outcome is remembered from then on, if that is later
    instant timestamptz,
    primary key (tenant_id, key),
    -- A key is forgotten with its outcome, also by a replica that knows no keys. Checked at the commit:
    -- a begin inserts its key before it knows that its session has no ongoing transaction.
    foreign key (tenant_id, transaction_id) references oncelog.transactions on delete cascade
        deferrable initially deferred
);
create index transaction_keys_by_transaction on oncelog.transaction_keys (tenant_id, transaction_id);
