"""A batch of user events: wherever the process dies, the rows end as Clerk last told, and every event is settled."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from services.identity.consumer import SERVICE
from services.identity.flow import SLICE, handle
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import DeliveryWorker
from services.kernel.doors import Door
from services.operations.store import reap_deliveries
from tests.crash.child import Ended
from tests.crash.plugin import Record
from tests.crash.sweep import Make, World, sweep
from tests.crash.worlds import on_a_database
from tests.fixtures.database import Server
from tests.identity.conftest import ROLE, body, deleted, user

TOLD = (
    ("user.created", body("created", user("first@example.com", at=1, user_id="user_ada"))),
    ("user.updated", body("updated", user("last@example.com", at=2, user_id="user_ada", customer="cus_1"))),
    ("user.deleted", deleted("user_bob")),
    ("user.created", body("created", user(user_id="user_bob"))),
    ("user.updated", b"{}"),
)
PEOPLE = [("user_ada", "last@example.com", "cus_1", False), ("user_bob", None, None, True)]
SETTLED = ["done"] * 4 + ["parked"]


@dataclass(frozen=True, slots=True)
class ToldByClerk(World):
    """Five events in the inbox, worked off in batches of three."""

    server: Server
    database: str

    async def open(self, role: str) -> Database:
        return await Database.connect(self.server.url(self.database, role=role), size_max=2)

    async def arrange(self) -> None:
        database, ingress = await self.open(ROLE), await self.open("rowclaim_ingress")
        await inbox.subscribe(database, SLICE, SERVICE.subscriptions)
        await arrive(ingress, [Arrival("clerk", f"msg_{nth}", kind, raw) for nth, (kind, raw) in enumerate(TOLD)])
        await database.close()
        await ingress.close()

    async def flow(self) -> None:
        database = await self.open(ROLE)
        worker = DeliveryWorker(database, SLICE, partial(handle, database), lease=timedelta(seconds=30), batch_max=3)
        while await worker.step():
            pass
        await database.close()

    async def redrive(self) -> None:
        """The dead process's leases are over, the reaper came by, another process takes the events up."""
        owner = await asyncpg.connect(self.server.url(self.database))
        await owner.execute(
            "update webhook_deliveries set lease_until = rowclaim_now() - interval '1 s' where state = 'in_progress'"
        )
        await owner.close()
        database = await self.open(ROLE)
        await reap_deliveries(database)
        await database.close()
        await self.flow()

    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        people, states = asyncio.run(self.seen())
        wrong = []
        if people != PEOPLE:
            wrong.append(f"people ended as {people}")
        if states != SETTLED:
            wrong.append(f"deliveries ended {states}")
        return wrong

    async def seen(self) -> tuple[list[tuple[object, ...]], list[str]]:
        owner = await asyncpg.connect(self.server.url(self.database))
        people = await owner.fetch(
            "select user_id, email, stripe_customer_id, deleted_at is not null from users order by user_id"
        )
        deliveries = await owner.fetch("select state from webhook_deliveries order by state")
        await owner.close()
        return [tuple(row) for row in people], [row["state"] for row in deliveries]

    def seen_outside(self) -> dict[Door, int]:
        return {Door.HTTP: 0, Door.KAFKA: 0}


@pytest.fixture
def told(migrated_server: Server) -> Make:
    return on_a_database(migrated_server, ToldByClerk)


def test_no_kill_loses_a_user_or_brings_one_back(told: Make, record_points: Record) -> None:
    report = sweep(told)
    record_points("identity", report)
    assert report.faults == []
    assert report.points >= 16
    assert set(report.doors) == {Door.DATABASE}
