-- Where runs of members begin, and when what is to be let go of was told. Only adds: replicas of the
-- version before go on, and rows that they write are read as before.

-- what must be committed where a member commits; -1: nothing yet, null: whatever is
alter table oncelog.staged_offsets
    -- what the member itself expects
    add column member_expected_offset bigint check (member_expected_offset >= -1),
    -- what its cursor says was committed where its run began: it holds for transactions with appends
    add column began_at_offset bigint check (began_at_offset >= -1);

-- of a partition that is to go to another member
alter table oncelog.group_offsets
    -- the generation that takes it from its owner; null: the newest when this is asked for
    add column revoked_since bigint,
    -- the owner was told, and loses it then
    add column let_go_by timestamptz;
create index group_offsets_to_let_go on oncelog.group_offsets (let_go_by) where let_go_by is not null;
