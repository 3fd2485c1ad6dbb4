"""Every claim reads its partial index and writes by the primary key, whatever the statistics say.

Statistics taken while nothing was pending are the worst: the planner then believes the pending index empty, and a claim
whose update repeats the state is driven from it, 70 times slower on 20,000 rows and growing with the backlog.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from tests.conformance.kind import Kind
from tests.conformance.kinds import kinds
from tests.conformance.test_letters import TOY
from tests.fixtures.database import Connection, DatabaseUrl
from tests.house.database import claims

ROWS = 20_000
KINDS = kinds()


def test_every_claim_of_the_code_is_some_kinds() -> None:
    """A claim that no kind gives is a claim under no law."""
    of_kinds = {kind.claim_query for kind in KINDS}
    assert [claim.place for claim in claims() if claim.text not in of_kinds] == []
    assert len(claims()) == len(of_kinds) - 1, "the toy's claim is the only one outside services/"


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Every scan of a plan: table, what kind of scan, by which index."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        yield plan["Relation Name"], plan["Node Type"], plan.get("Index Name")
    for part in plan.get("Plans", ()):
        yield from scans(part)


async def claim_scans(client: Connection, kind: Kind) -> list[tuple[str, str, str | None]]:
    explained = await client.fetchval(f"explain (format json) {kind.claim_query}", *kind.claim_arguments)
    return sorted(scans(json.loads(explained)[0]["Plan"]))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.claim_index)
async def kind(request: pytest.FixtureRequest, owner: Connection) -> Kind:
    """20,000 rows of a kind, none of them claimable when the statistics were taken."""
    kind: Kind = request.param
    if kind.schema:
        await owner.execute(kind.schema)
    await owner.execute(f"alter table {kind.table} set (autovacuum_enabled = off)")
    await owner.fetch(kind.seed, ROWS)
    await move_all(owner, kind, settled(kind))
    await owner.execute(f"vacuum analyze {kind.table}")
    return kind


@pytest.fixture
async def client(kind: Kind, database_url: DatabaseUrl) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url(kind.role))
    yield connection
    await connection.close()


def settled(kind: Kind) -> str:
    return next(state for state in kind.machine.states if state not in (kind.claimable, kind.claimed))


async def move_all(owner: Connection, kind: Kind, state: str) -> None:
    """Set every row's state, past the guard: what matters here is what the planner believes."""
    fragment = kind.columns.get(state, "")
    await owner.execute("set session_replication_role = replica")
    await owner.execute(
        f"update {kind.table} set {kind.machine.column} = '{state}'{', ' + fragment if fragment else ''}"
    )
    await owner.execute("reset session_replication_role")


def lawful(kind: Kind) -> list[tuple[str, str, str | None]]:
    return [
        (kind.table, "Index Scan", kind.claim_index),
        (kind.table, "Index Scan", f"{kind.table}_pkey"),
    ]


async def check(owner: Connection, client: Connection, kind: Kind) -> None:
    for mode in ("force_custom_plan", "force_generic_plan"):
        await client.execute(f"set plan_cache_mode = {mode}")
        assert await claim_scans(client, kind) == sorted(lawful(kind)), mode


async def test_a_claim_uses_its_index_and_the_key(owner: Connection, client: Connection, kind: Kind) -> None:
    await check(owner, client, kind)  # nothing pending, and the planner knows it
    await move_all(owner, kind, kind.claimable)
    await check(owner, client, kind)  # all pending, and the planner believes nothing is
    await owner.execute(f"vacuum analyze {kind.table}")
    await check(owner, client, kind)  # all pending, and the planner knows it


async def test_the_trap_is_real(owner: Connection, database_url: DatabaseUrl) -> None:
    """The same claim with the state on its update side is seen here to leave the primary key."""
    await owner.execute(TOY.schema)
    await owner.execute("alter table letters set (autovacuum_enabled = off)")
    await owner.fetch(TOY.seed, ROWS)
    await move_all(owner, TOY, "posted")
    await owner.execute("create index letters_pending_by_id on letters (id) where state = 'pending'")
    await owner.execute("vacuum analyze letters")
    await move_all(owner, TOY, "pending")
    trap = TOY.claim_query.replace("l.claim_token = next.claim_token", "l.state = 'pending'")
    assert trap != TOY.claim_query
    explained = await owner.fetchval(f"explain (format json) {trap}", *TOY.claim_arguments)
    assert "letters_pkey" not in {index for _, _, index in scans(json.loads(explained)[0]["Plan"])}
