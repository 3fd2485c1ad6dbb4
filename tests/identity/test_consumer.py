"""The card, and a process of the slice over the real inbox."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from services.identity.consumer import BATCH_MAX, SERVICE, IdentitySettings
from services.identity.machine import UserSeen
from services.identity.store import record_seen
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.deliveries import claim_deliveries
from services.kernel.errors import Stop
from services.kernel.service import Consumption
from services.kernel.settings import load_settings, variables
from services.operations.environment import load
from services.operations.paging import LogSender
from services.operations.process import Process
from services.operations.store import reap_deliveries
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl
from tests.identity.conftest import ROLE, USER, People, body, deleted, user
from tests.waiting import wait_until

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def environ(database_url: str) -> dict[str, str]:
    return {"ROWCLAIM_DATABASE_URL": database_url}


async def logs(_: Process) -> LogSender:
    return LogSender()


@asynccontextmanager
async def consuming(database_url: str) -> AsyncIterator[Consumption]:
    """A process of the slice with its worker at work."""
    async with Process.open("tests", [SERVICE], load([SERVICE], [SERVICE], environ(database_url)), logs) as process:
        assert SERVICE.consume is not None
        consumption = await SERVICE.consume(process)
        (worker,) = consumption.workers
        running = asyncio.create_task(worker.run(process.stopping))
        try:
            yield consumption
        finally:
            process.stopping.set()
            await running


async def states(owner: Connection) -> dict[str, tuple[str, str | None]]:
    """Every delivery's state, and why it is parked, by Clerk's id of the event."""
    rows = await owner.fetch(
        "select e.external_id, d.state, d.parked_reason from webhook_deliveries d join event_ids e on e.id = d.event_id"
    )
    return {row[0]: (row[1], row[2]) for row in rows}


async def all_ended(owner: Connection) -> bool:
    return not {state for state, _ in (await states(owner)).values()} & {"pending", "in_progress"}


def test_the_card_says_what_identity_is_owed() -> None:
    assert (SERVICE.name, SERVICE.role, SERVICE.machines) == ("identity", ROLE, ())
    assert {(one.source, one.kind) for one in SERVICE.subscriptions} == {
        ("clerk", "user.created"),
        ("clerk", "user.updated"),
        ("clerk", "user.deleted"),
    }
    assert SERVICE.topics == ("clerk.events.v1",)


def test_it_needs_no_setting_of_its_own() -> None:
    assert set(variables(IdentitySettings)) == {"ROWCLAIM_IDENTITY_DELIVERY_LEASE_S"}
    assert load_settings(IdentitySettings, {}).delivery_lease_s == 30.0
    with pytest.raises(Stop, match="ROWCLAIM_IDENTITY_DELIVERY_LEASE_S"):
        load_settings(IdentitySettings, {"ROWCLAIM_IDENTITY_DELIVERY_LEASE_S": "1"})


async def test_stored_events_become_users_and_their_deliveries_end(
    connect: Connect, owner: Connection, people: People, database_url: DatabaseUrl
) -> None:
    ingress = await connect("rowclaim_ingress")
    await inbox.subscribe(await connect(ROLE), SERVICE.name, SERVICE.subscriptions)
    await arrive(
        ingress,
        [
            Arrival("clerk", f"msg_{nth}", "user.created", body("created", user(user_id=f"user_{nth}")))
            for nth in range(BATCH_MAX + 1)
        ],
    )
    async with consuming(database_url()) as consumption:
        assert (list(consumption.sweeps), list(consumption.jobs)) == ([], [])
        await wait_until(lambda: all_ended(owner), within_s=30, what="two batches are worked off")
        await arrive(
            ingress,
            [
                Arrival("clerk", "msg_deleted", "user.deleted", deleted("user_0")),
                Arrival("clerk", "msg_unreadable", "user.updated", b"{}"),
                Arrival("clerk", "msg_session", "session.created", b"{}"),
            ],
        )
        consumption.workers[0].ring()
        await wait_until(lambda: all_ended(owner), within_s=30, what="the rest is worked off")
    assert len(await people()) == BATCH_MAX + 1
    assert (await people())["user_0"] == (None, None, True)
    ended = await states(owner)
    assert ended.pop("msg_unreadable") == ("parked", "unreadable_body")
    assert "msg_session" not in ended
    assert set(ended.values()) == {("done", None)}


async def test_the_card_forgets_under_the_slices_own_role(
    connect: Connect, people: People, database_url: DatabaseUrl
) -> None:
    await record_seen(await connect(ROLE), [UserSeen(USER, "ada@example.com", "cus_1", NOON, NOON)])
    personal = SERVICE.personal
    assert personal is not None
    async with Process.open("tests", [SERVICE], load([SERVICE], [], environ(database_url())), logs) as process:
        assert await personal.traces(process, USER) == {USER, "ada@example.com", "cus_1"}
        assert await personal.blank(process, USER, dry_run=True) == {"users": 1}
        assert (await people())[USER] == ("ada@example.com", "cus_1", False)
        assert await personal.blank(process, USER, dry_run=False) == {"users": 1}
    assert await people() == {USER: (None, None, False)}


async def test_a_dead_processs_event_brings_nobody_back(
    connect: Connect, people: People, database_url: DatabaseUrl, owner: Connection, clock: Clock
) -> None:
    """Its delivery comes again after the lease, when the user is long gone."""
    db, ingress = await connect(ROLE), await connect("rowclaim_ingress")
    await inbox.subscribe(db, SERVICE.name, SERVICE.subscriptions)
    await arrive(ingress, [Arrival("clerk", "msg_1", "user.created", body("created", user()))])
    assert len(await claim_deliveries(db, SERVICE.name, limit=1, lease=timedelta(seconds=30), floor=None)) == 1
    await arrive(ingress, [Arrival("clerk", "msg_2", "user.deleted", deleted())])
    async with consuming(database_url()) as consumption:

        async def ended(count: int) -> bool:
            return [state for state, _ in (await states(owner)).values()].count("done") == count

        await wait_until(lambda: ended(1), within_s=30, what="the deletion is worked off")
        await clock.shift(timedelta(seconds=31))
        assert len(await reap_deliveries(db)) == 1
        consumption.workers[0].ring()
        await wait_until(lambda: ended(2), within_s=30, what="the late event is worked off")
    assert await people() == {USER: (None, None, True)}
