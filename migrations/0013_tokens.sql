-- What is remembered of the token that made something. Only adds: replicas of the version before go on.

alter table oncelog.sessions
    -- SHA-256 of the `sub` that opened a session without a name. Null: it has a name, or the token had no
    -- `sub`, or a replica of the version before opened it. (It then belongs to unnarrowed tokens alone.)
    add column opened_by bytea;
-- not valid: the rows there are have none, and need not be read to know it
alter table oncelog.sessions
    add constraint sessions_opened_by_check check (length(opened_by) = 32) not valid;

alter table oncelog.group_members
    -- the patterns of topics that the member's token covered at its join: it is assigned no others. Null:
    -- all, or a replica of the version before let it join
    add column readable text[];
