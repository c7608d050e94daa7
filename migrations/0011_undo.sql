-- Undoes the statement that calls it, where one of its conditions turns out not to hold after it has
-- written. The SQLSTATE is this function's own, so that nothing else is taken for it.
create function oncelog.undo_statement() returns integer
    language plpgsql volatile
    as $$
begin
    raise exception 'a condition of the statement does not hold' using errcode = 'OL001';
end
$$;

revoke execute on function oncelog.undo_statement() from public;
