"""Least privilege from the first migration: what no role may do, whatever the code says."""

import asyncpg
import pytest

from tests.fixtures.database import Connection, DatabaseUrl
from tests.house.database import LOGIN_ROLES, OWNER_ROLE, SERVICE_ROLES, created

TABLES = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
  and n.nspname !~ '^pg_'"""
TRIGGERED = """
select distinct t.tgrelid::regclass::text from pg_trigger t join pg_proc p on p.oid = t.tgfoid
where p.proname = $1 and not t.tgisinternal"""
WRITABLE = """
select attname from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and attidentity = ''"""
WITH_OWNERS_RIGHTS = """
select p.oid::regprocedure::text, p.proconfig, has_function_privilege('public', p.oid, 'execute') as for_all
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where p.prosecdef and n.nspname in ('public', 'law')"""
BOUNDS = {
    "timezone": "UTC",
    "lock_timeout": "2s",
    "statement_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
}


HISTORY_ROWS = {
    "admin_actions": "insert into admin_actions (actor, verb, target, reason) values ('ann', 'force', 'row 1', 'why')",
}
"""One row for each append-only table: a trigger for each row says nothing about an empty table."""


async def triggered(owner: Connection, function: str) -> list[str]:
    found = [row[0] for row in await owner.fetch(TRIGGERED, function)]
    assert found
    return found


async def holders(owner: Connection, table: str, privilege: str) -> set[str]:
    """The login roles that hold a privilege on a table, directly, by membership or as everybody."""
    query = "select has_table_privilege($1::name, $2::text::regclass, $3)"
    return {role for role in LOGIN_ROLES if await owner.fetchval(query, role, table, privilege)}


async def test_the_login_roles_are_those_the_laws_know(owner: Connection) -> None:
    rows = await owner.fetch("select rolname from pg_roles where rolname ~ '^rowclaim_' and rolcanlogin")
    assert {row[0] for row in rows} == set(LOGIN_ROLES)


async def test_a_login_role_is_bounded_and_nothing_special(owner: Connection) -> None:
    for role in LOGIN_ROLES:
        row = await owner.fetchrow("select * from pg_roles where rolname = $1", role)
        assert row is not None
        assert dict(setting.split("=", 1) for setting in row["rolconfig"]).items() >= {
            (name if name != "timezone" else "TimeZone", value) for name, value in BOUNDS.items()
        }
        assert not any(row[power] for power in ("rolsuper", "rolcreaterole", "rolcreatedb", "rolbypassrls"))
        assert row["rolreplication"] is False or role == "rowclaim_cdc"
        assert not await owner.fetchval("select pg_has_role($1::name, $2::name, 'member')", role, OWNER_ROLE)
        for schema in ("public", "law", "desk", "identity"):
            assert not await owner.fetchval("select has_schema_privilege($1::name, $2, 'create')", role, schema)
        serves = await owner.fetchval("select pg_has_role($1::name, 'rowclaim_service', 'member')", role)
        assert serves == (role in SERVICE_ROLES)


async def test_nobody_owns_a_table_but_the_owner_who_cannot_log_in(owner: Connection) -> None:
    assert await owner.fetchval("select rolcanlogin from pg_roles where rolname = $1", OWNER_ROLE) is False
    owned = "select pg_get_userbyid(relowner) from pg_class where oid = $1::text::regclass"
    tables = [row[0] for row in await owner.fetch(TABLES)]
    assert set(created()) <= set(tables)
    for table in tables:
        # Who migrates keeps the record of migrations.
        assert await owner.fetchval(owned, table) == ("postgres" if table == "schema_migrations" else OWNER_ROLE), table


async def test_no_service_deletes_a_guarded_row(owner: Connection) -> None:
    """A row that is gone is a claim nobody can prove; retention deletes under a role of its own."""
    for table in await triggered(owner, "guard_state"):
        assert await holders(owner, table, "DELETE") <= {"rowclaim_retention"}, table
        for privilege in ("TRUNCATE", "TRIGGER", "REFERENCES"):
            assert await holders(owner, table, privilege) == set(), (table, privilege)


async def test_a_service_is_refused_a_delete(database_url: DatabaseUrl) -> None:
    for role in SERVICE_ROLES:
        connection = await asyncpg.connect(database_url(role))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("delete from webhook_deliveries")
        await connection.close()


async def test_history_is_refused_a_change_by_grant_and_by_trigger(owner: Connection) -> None:
    """By grant for every login role, by trigger even for the superuser."""
    for table in await triggered(owner, "guard_history"):
        for privilege in ("UPDATE", "DELETE", "TRUNCATE"):
            assert await holders(owner, table, privilege) == set(), (table, privilege)
        (column, *_) = [row[0] for row in await owner.fetch(WRITABLE, table)]
        await owner.execute("set session_replication_role = replica")
        await owner.execute(HISTORY_ROWS[table])
        await owner.execute("reset session_replication_role")
        for change in (f"update {table} set {column} = {column}", f"delete from {table}", f"truncate {table}"):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await owner.execute(change)
            assert refused.value.sqlstate == "RC003", change


async def test_the_law_itself_is_read_only(owner: Connection) -> None:
    for privilege in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        assert await holders(owner, "law.state_edges", privilege) == set()
    assert await holders(owner, "law.state_edges", "SELECT") == set(LOGIN_ROLES)


async def test_a_reader_reads(owner: Connection) -> None:
    for table in [row[0] for row in await owner.fetch(TABLES)]:
        for privilege in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
            assert "rowclaim_reader" not in await holders(owner, table, privilege), (table, privilege)


async def test_a_slices_tables_are_its_own(owner: Connection) -> None:
    """What one slice's migrations make, no other slice's role may write."""
    for table, maker in created().items():
        if maker in ("kernel", "ingress") or "." in table:
            continue
        allowed = {f"rowclaim_{maker}", "rowclaim_operator"}
        for privilege in ("INSERT", "UPDATE"):
            assert await holders(owner, table, privilege) <= allowed, (table, privilege)


async def test_a_function_with_its_owners_rights_has_its_own_search_path(owner: Connection) -> None:
    rows = await owner.fetch(WITH_OWNERS_RIGHTS)
    assert rows
    for name, config, for_all in rows:
        assert any(setting.startswith("search_path=pg_catalog") for setting in config or ()), name
        assert not for_all, name
