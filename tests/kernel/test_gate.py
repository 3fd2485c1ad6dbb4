"""Gates: closed for every process, opened by the database's clock; starts paced by reservation, never by a lock."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from prometheus_client import REGISTRY

from services.kernel import gate
from services.kernel.db import Database
from services.kernel.errors import Invariant, Retryable
from services.kernel.gate import Closed, Gates, Go, vendor
from services.operations.store import list_gates, open_gate
from tests.fixtures.database import Clock, Connect


class Vendor:
    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.calls = 0

    @vendor("github", bound_s=5)
    async def call(self) -> str:
        self.calls += 1
        return "answered"

    @vendor("github", bound_s=0.05)
    async def hang(self) -> None:
        self.calls += 1
        await asyncio.Event().wait()


class Hurried(Vendor):
    @vendor("github", bound_s=5, patience_s=30)
    async def call(self) -> str:
        self.calls += 1
        return "answered"


@pytest.fixture
async def db(connect: Connect) -> Database:
    return await connect("rowclaim_fulfillment")


async def test_a_closed_gate_stops_reservations_and_calls_of_every_process_until_the_clock_opens_it(
    db: Database, connect: Connect, clock: Clock
) -> None:
    here, elsewhere = Gates(db), Gates(await connect("rowclaim_fulfillment"), pace_s={"github": 0.001})
    await here.close("github", timedelta(minutes=2), "retry_after", "flush")
    github = Vendor(elsewhere)
    assert isinstance(await elsewhere.reserve("github"), Closed)
    with pytest.raises(Retryable, match="gate_closed"):
        await github.call()
    assert github.calls == 0
    await clock.shift(timedelta(minutes=2))
    assert await elsewhere.reserve("github") == Go()
    assert await github.call() == "answered"


async def test_a_gate_is_its_own_vendors_and_no_other_waits_for_it(db: Database) -> None:
    gates = Gates(db, pace_s={"stripe": 0.001})
    await gates.close("github", timedelta(minutes=2), "retry_after", "flush")
    assert await gates.closed_until("github") is not None
    assert await gates.closed_until("stripe") is None
    assert await gates.reserve("stripe") == Go()


async def test_a_gate_is_only_ever_closed_for_longer(db: Database) -> None:
    gates = Gates(db)
    await gates.close("github", timedelta(hours=1), "operator", "ann")
    until = await gates.closed_until("github")
    await gates.close("github", timedelta(minutes=1), "retry_after", "flush")
    assert await gates.closed_until("github") == until
    assert [(g.vendor, g.closed_until, g.reason, g.closed_by) for g in await list_gates(db)] == [
        ("github", until, "operator", "ann")
    ]
    assert await open_gate(db, "github") is True
    assert await open_gate(db, "github") is False
    assert await gates.closed_until("github") is None


async def test_refusals_in_a_row_double_the_wait_up_to_an_hour_and_a_success_ends_the_row(
    db: Database, owner: asyncpg.Connection
) -> None:
    gates = Gates(db)
    waits = []
    for _ in range(9):
        await owner.execute("update vendor_gates set closed_until = null")
        await gates.refuse("github", "secondary_limit", "flush")
        waits.append(
            await owner.fetchval("select round(extract(epoch from closed_until - closed_at)) from vendor_gates")
        )
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    await gates.succeed("github")
    await owner.execute("update vendor_gates set closed_until = null")
    await gates.refuse("github", "secondary_limit", "flush")
    assert await owner.fetchval("select round(extract(epoch from closed_until - closed_at)) from vendor_gates") == 60


async def test_reserved_starts_are_a_pace_apart_however_many_reserve_at_once(
    db: Database, owner: asyncpg.Connection
) -> None:
    waits = await asyncio.gather(*(db.value(gate.RESERVE, "github", timedelta(seconds=10), None) for _ in range(5)))
    rounded = sorted(round(wait_s / 10) for wait_s in waits if wait_s is not None)
    assert rounded == [0, 1, 2, 3, 4]
    await owner.execute("update vendor_gates set closed_until = rowclaim_now() + interval '1 minute'")
    assert await db.value(gate.RESERVE, "github", timedelta(seconds=10), None) is None
    assert await db.value(gate.RESERVE, "stripe", timedelta(seconds=10), None) == 0.0


async def test_a_call_after_a_reservation_uses_its_slot_and_the_next_call_takes_its_own(
    db: Database, owner: asyncpg.Connection
) -> None:
    gates = Gates(db, pace_s={"github": 0.02})
    github = Vendor(gates)

    async def next_start() -> object:
        return await owner.fetchval("select next_start_at from vendor_gates")

    await gates.reserve("github")
    reserved = await next_start()
    await github.call()
    assert await next_start() == reserved
    await github.call()
    assert await next_start() != reserved


async def test_whoever_cannot_wait_is_refused_and_takes_no_slot_from_the_others(
    db: Database, owner: asyncpg.Connection
) -> None:
    gates = Gates(db, pace_s={"github": 60})
    hurried = Hurried(Gates(db, pace_s={"github": 60}))
    assert await Vendor(gates).call() == "answered"
    taken = await owner.fetchval("select next_start_at from vendor_gates")
    with pytest.raises(Retryable, match="vendor_busy"):
        await hurried.call()
    assert (hurried.calls, await owner.fetchval("select next_start_at from vendor_gates")) == (0, taken)
    await owner.execute("update vendor_gates set next_start_at = rowclaim_now() + interval '10 ms'")
    assert await hurried.call() == "answered"
    assert await owner.fetchval("select next_start_at > rowclaim_now() + interval '50 s' from vendor_gates")
    await gates.close("github", timedelta(minutes=1), "retry_after", "flush")
    with pytest.raises(Retryable, match="gate_closed"):
        await hurried.call()


async def test_a_slot_used_late_does_not_bring_the_next_call_nearer(db: Database) -> None:
    """The vendor sees at least the pace between two calls, wherever in the one it looked at the clock."""
    loop = asyncio.get_running_loop()
    gates = Gates(db, pace_s={"github": 0.1})
    seen: list[float] = []

    class Watched(Vendor):
        @vendor("github", bound_s=5)
        async def call(self) -> str:
            seen.append(loop.time())
            return "answered"

    github = Watched(gates)
    await gates.reserve("github")
    await asyncio.sleep(0.08)  # a slow claim between slot and call
    await github.call()
    await gates.reserve("github")
    await github.call()
    assert seen[1] - seen[0] > 0.099, "the pace, but for the resolution of the loop's clock"


async def test_a_vendor_is_never_called_inside_a_transaction(db: Database) -> None:
    github = Vendor(Gates(db))
    async with db.transaction():
        with pytest.raises(Invariant, match="vendor_call_in_transaction"):
            await github.call()
        with pytest.raises(Invariant, match="vendor_call_in_transaction"):
            await asyncio.create_task(github.call())
    assert github.calls == 0
    assert await github.call() == "answered"


async def test_a_call_is_bounded_and_counted_by_how_it_ended(db: Database) -> None:
    github = Vendor(Gates(db))

    def counted(call: str, result: str) -> float:
        labels = {"vendor": "github", "call": call, "result": result}
        return REGISTRY.get_sample_value("rowclaim_vendor_calls_total", labels) or 0.0

    timed_out, answered = counted("hang", "timed_out"), counted("call", "answered")
    with pytest.raises(TimeoutError):
        await github.hang()
    await github.call()
    assert counted("hang", "timed_out") == timed_out + 1
    assert counted("call", "answered") == answered + 1


async def test_a_success_ends_the_refusals_of_its_own_vendor(db: Database, owner: asyncpg.Connection) -> None:
    gates = Gates(db)
    for name in ("github", "stripe"):
        await gates.refuse(name, "secondary_limit", "flush")
    await gates.succeed("github")
    rows = await owner.fetch("select vendor, refusals from vendor_gates order by vendor")
    assert [tuple(row) for row in rows] == [("github", 0), ("stripe", 1)]
