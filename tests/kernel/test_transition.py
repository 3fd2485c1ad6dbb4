"""Machines: what they refuse at import, how they are kept and drawn, and what boot demands of the database."""

from enum import StrEnum

import pytest

from services.kernel.errors import Stop
from services.kernel.service import verify_machine
from services.kernel.transition import Edge, EdgeRow, Fence, Machine
from tests.fixtures.database import Connect, Connection


class S(StrEnum):
    IDLE = "idle"
    HELD = "held"


BIRTH = Edge("record", None, S.IDLE, Fence.BIRTH)
CLAIM = Edge("claim", S.IDLE, S.HELD, Fence.CLAIM)
BACK = Edge("put_back", S.HELD, S.IDLE, Fence.TOKEN)


def test_a_machine_is_its_edges() -> None:
    machine = Machine("things", S, [BIRTH, CLAIM, BACK], column="thing_state")
    assert (machine.table, machine.column, list(machine.edges)) == (
        "things",
        "thing_state",
        ["record", "claim", "put_back"],
    )
    assert machine.rows() == {
        EdgeRow("record", None, "idle", "birth"),
        EdgeRow("claim", "idle", "held", "claim"),
        EdgeRow("put_back", "held", "idle", "token"),
    }
    assert machine.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> idle: record",
        "    idle --> held: claim",
        "    held --> idle: put_back",
    ]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([BIRTH, CLAIM, BACK, Edge("claim", S.HELD, S.IDLE, Fence.TOKEN)], "an edge name stands twice"),
        ([BIRTH], "unreachable"),
        ([BIRTH, CLAIM], "cannot be put back"),
        ([BIRTH, CLAIM, Edge("reap", S.HELD, S.IDLE, Fence.CLAIM)], "cannot be put back"),
        ([BIRTH, CLAIM, Edge("stay", S.HELD, S.HELD, Fence.TOKEN)], "cannot be put back"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(edges: list[Edge], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Machine("things", S, edges)


async def test_the_database_may_know_more_edges_than_the_code_and_never_fewer(
    connect: Connect, owner: Connection
) -> None:
    database = await connect("rowclaim_fulfillment")
    machine = Machine("things", S, [BIRTH, CLAIM, BACK])
    with pytest.raises(Stop, match="things lacks the edges claim, put_back, record") as stopped:
        await verify_machine(database, machine)
    assert (stopped.value.code.name, stopped.value.code.exit) == ("machine_unknown", 78)
    insert = "insert into law.state_edges (table_name, edge, source, target, fence) values ($1, $2, $3, $4, $5)"
    for row in machine.rows():
        await owner.execute(insert, "others", row.edge, row.source, row.target, row.fence)
    with pytest.raises(Stop, match="things lacks the edges claim, put_back, record"):
        await verify_machine(database, machine)
    for row in machine.rows():
        await owner.execute(insert, "things", row.edge, row.source, row.target, row.fence)
    await verify_machine(database, machine)
    await owner.execute(insert, "things", "force", "held", "idle", "person")
    await verify_machine(database, machine)
    await owner.execute("update law.state_edges set fence = 'token' where table_name = 'things' and edge = 'claim'")
    with pytest.raises(Stop, match=r"things lacks the edges claim$"):
        await verify_machine(database, machine)
