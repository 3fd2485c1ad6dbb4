"""Every statement is understood by the migrated schema, allowed to its role, and returns what its reader expects."""

import ast
import inspect
import typing
from collections.abc import Iterator
from dataclasses import fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from importlib import import_module
from types import UnionType
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import sqlglot
from sqlglot import exp

from tests.fixtures.database import Connection, DatabaseUrl
from tests.house.database import SERVICE_ROLES, created
from tests.house.source import ROOT
from tests.house.test_sql_text import AUDIENCE, Statement, statements

# The audience of the demo reads from outside, as the superuser of its own run; the demo shows that its statements work.
STATEMENTS = [statement for statement in statements(ROOT) if not statement.module.place.startswith(AUDIENCE)]
# The operator's commands are no slice; they log in as the operator.
OPERATIONS = "operations"
# Two of them do what no service may, under a role of its own.
RETENTION = "services.operations.retention_store"
# The one view of a slice that every other slice reads; its table is its own slice's alone.
PEOPLE = "identity.people"
NOT_FOR_ALL = {
    "services.ingress.store ARRIVE": {"rowclaim_ingress"},
}
"""Kernel statements that only some of the kernel's users may run; every other one is for all of them."""
TYPES: dict[str, type] = {
    "bool": bool,
    "bytea": bytes,
    "date": date,
    "float8": float,
    "int2": int,
    "int4": int,
    "int8": int,
    "interval": timedelta,
    "jsonb": str,
    "name": str,
    "numeric": Decimal,
    "text": str,
    "timestamptz": datetime,
    "uuid": UUID,
}


def name_of(statement: Statement) -> str:
    return f"{statement.module.name} {statement.name}"


def roles_of(statement: Statement) -> set[str]:
    """The login roles that run a statement."""
    package = statement.module.name.split(".")[1]
    if statement.module.name == RETENTION:
        return {"rowclaim_retention"}
    if package == "kernel":
        return NOT_FOR_ALL.get(name_of(statement), set(SERVICE_ROLES))
    return {"rowclaim_operator"} if package == OPERATIONS else {f"rowclaim_{package}"}


@pytest.fixture
async def clients(database_url: DatabaseUrl) -> typing.AsyncIterator[dict[str, Connection]]:
    roles = {role for statement in STATEMENTS for role in (*roles_of(statement), *SERVICE_ROLES)}
    connections = {role: await asyncpg.connect(database_url(role)) for role in sorted(roles)}
    yield connections
    for connection in connections.values():
        await connection.close()


# ------------------------------------------------------------------------------------------------- understood, allowed
async def test_every_statement_is_prepared_and_permitted_as_its_role(clients: dict[str, Connection]) -> None:
    """An EXPLAIN checks privileges; a PREPARE alone does not."""
    refused = []
    for statement in STATEMENTS:
        for role in sorted(roles_of(statement)):
            try:
                await clients[role].execute(f"explain (generic_plan) {statement.text}")
            except asyncpg.PostgresError as error:
                refused.append(f"{statement.place} as {role}: {error}")
    assert refused == []


async def test_a_statement_for_some_is_refused_to_the_others(clients: dict[str, Connection]) -> None:
    limited = [statement for statement in STATEMENTS if name_of(statement) in NOT_FOR_ALL]
    assert {name_of(statement) for statement in limited} == set(NOT_FOR_ALL)
    for statement in limited:
        for role in set(SERVICE_ROLES) - roles_of(statement):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await clients[role].execute(f"explain (generic_plan) {statement.text}")


# -------------------------------------------------------------------------------------------------------------- shapes
def uses(statement: Statement) -> Iterator[tuple[str, ast.Call]]:
    """Calls that run this constant, by verb, in the module that defines it; the driver's own verb is the pool's."""
    for node in ast.walk(statement.module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            verb = node.func.attr
            place = {"row": 1, "rows": 1, "value": 0, "execute": 0, "fetchval": 0}.get(verb)
            if place is not None and len(node.args) > place:
                named = node.args[place]
                if isinstance(named, ast.Name) and named.id == statement.name:
                    yield verb, node


def python_types(hint: Any) -> set[type]:
    """What a field may hold, None left aside: enums are text, new types are what they are made of."""
    if isinstance(hint, typing.NewType):
        return python_types(hint.__supertype__)
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        return {found for part in typing.get_args(hint) if part is not type(None) for found in python_types(part)}
    if typing.get_origin(hint) is typing.Literal:
        return {type(value) for value in typing.get_args(hint)}
    origin = typing.get_origin(hint) or hint
    return {str} if inspect.isclass(origin) and issubclass(origin, StrEnum) else {origin}


def mismatch(attributes: tuple[asyncpg.Attribute, ...], shape: Any) -> str | None:
    """How the columns of a statement differ from the fields of the class that its rows become."""
    columns = [attribute.name for attribute in attributes]
    expected = [field.name for field in fields(shape)]
    if columns != expected:
        return f"columns {columns}, fields {expected}"
    hints = typing.get_type_hints(shape)
    for attribute in attributes:
        wanted = {list} if attribute.type.kind == "array" else {TYPES[attribute.type.name]}
        held = python_types(hints[attribute.name])
        if held - {tuple} != wanted - {tuple}:
            return f"{attribute.name} is {attribute.type.name}, the field holds {held}"
    return None


async def test_columns_are_those_of_the_class_that_reads_them(clients: dict[str, Connection]) -> None:
    wrong = []
    for statement in STATEMENTS:
        role = min(roles_of(statement))
        attributes = (await clients[role].prepare(statement.text)).get_attributes()
        module = import_module(statement.module.name)
        for verb, call in uses(statement):
            if verb in ("row", "rows"):
                assert isinstance(call.args[0], ast.Name), f"{statement.place}: a row class is named where it is read"
                found = mismatch(attributes, getattr(module, call.args[0].id))
            elif verb in ("value", "fetchval"):
                found = None if len(attributes) == 1 else f"{len(attributes)} columns read as one value"
            else:
                found = f"{len(attributes)} columns that nobody reads" if attributes else None
            if found:
                wrong.append(f"{statement.place}: {found}")
    assert wrong == []


async def test_a_wrong_shape_is_seen(owner: Connection) -> None:
    from services.kernel.service import EDGES
    from services.kernel.transition import EdgeRow

    async def against(query: str) -> str | None:
        return mismatch((await owner.prepare(query)).get_attributes(), EdgeRow)

    assert await against(EDGES) is None
    assert "columns ['edge', 'source'" in str(await against("select edge, source, fence, target from law.state_edges"))
    assert "columns ['edge']" in str(await against("select edge from law.state_edges"))
    assert "source is int4" in str(await against("select edge, 1 as source, target, fence from law.state_edges"))


def test_every_statement_is_run_where_it_is_written() -> None:
    """By one of the four verbs, in its own module: elsewhere nobody could compare its columns."""
    assert [statement.place for statement in STATEMENTS if not list(uses(statement))] == []


# ------------------------------------------------------------------------------------------------------------- borders
def named_tables(statement: Statement) -> set[str]:
    """Tables and views a statement names, CTEs left aside; with its schema unless it is public."""
    names: set[str] = set()
    for tree in sqlglot.parse(statement.text, dialect="postgres"):
        assert tree is not None
        own = {cte.alias for cte in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            if table.name and (table.name not in own or table.db):
                names.add(f"{table.db}.{table.name}" if table.db else table.name)
    return names


def trespasses(statement: Statement) -> set[str]:
    """What a statement names that its slice does not own, the kernel does not lend, no desk shows and is not people."""
    makers = created()
    package = statement.module.name.split(".")[1]
    # The inbox is made by ingress and worked by the kernel; the operator's commands tell how it stands.
    lenders = {"kernel", "ingress"} if package in ("kernel", OPERATIONS) else {"kernel", package}
    return {
        table
        for table in named_tables(statement)
        if not table.startswith(("desk.", "pg_")) and table != PEOPLE and makers.get(table) not in lenders
    }


def test_a_slice_names_its_own_tables_and_the_kernels() -> None:
    assert {statement.place: found for statement in STATEMENTS if (found := trespasses(statement))} == {}


def test_a_trespass_is_seen() -> None:
    kernel = next(s.module for s in STATEMENTS if s.module.name.startswith("services.kernel."))
    for text, found in {
        "select id from purchases": {"purchases"},
        "with purchases as (select 1 as id) select id from purchases": set(),
        "update no_such_table set a = 1": {"no_such_table"},
        "select edge from law.state_edges e join event_ids i on true": set(),
        "select id from desk.fulfillment_attention": set(),
        "select email from identity.people": set(),
        "select email from users": {"users"},
        "insert into job_runs (job) select stripe_session_id from purchases": {"purchases"},
    }.items():
        assert trespasses(Statement(kernel, 1, "PLANTED", text)) == found, text
