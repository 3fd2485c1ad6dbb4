"""An event at the door: wherever the process dies, the sender tries again, and it is stored once and owed once."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette

from services.ingress.api.webhooks import routes
from services.ingress.flow.intake import Intake, Outside
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import Source
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.doors import Door
from services.kernel.inbox import Subscription
from tests.crash.child import Ended
from tests.crash.plugin import Record
from tests.crash.sweep import Make, World, sweep
from tests.crash.worlds import on_a_database
from tests.fixtures.database import Server
from tests.ingress.signing import NEW, stripe_event, stripe_signature

EVENTS = ("evt_1", "evt_2")
KIND = "checkout.session.completed"


class LostRings:
    """Every trigger is dropped: what was stored must be found all the same."""

    def ring(self, topic: str, ids: Iterable[int]) -> None:
        return


@dataclass(frozen=True, slots=True)
class AtTheDoor(World):
    """Two events, one after the other, to one subscriber."""

    server: Server
    database: str

    async def open(self, role: str) -> Database:
        return await Database.connect(self.server.url(self.database, role=role), size_max=2)

    async def arrange(self) -> None:
        database = await self.open("rowclaim_fulfillment")
        await inbox.subscribe(database, "fulfillment", [Subscription("stripe", KIND)])
        await database.close()

    async def flow(self) -> None:
        database = await self.open("rowclaim_ingress")
        intake = Intake(database, Outside({Source.STRIPE: StripeVerifier([NEW])}, LostRings()))
        app = Starlette(routes=list(routes(intake, body_bytes_max=1 << 20)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as sender:
            for event in EVENTS:
                body = stripe_event(event, KIND)
                answer = await sender.post(
                    "/webhooks/stripe", content=body, headers={"Stripe-Signature": stripe_signature(body)}
                )
                assert answer.is_success, answer.text
        await intake.close()
        await database.close()

    async def redrive(self) -> None:
        """No 2xx was seen, so the sender sends again; and even one that was seen comes again some day."""
        await self.flow()

    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        stored, owed = asyncio.run(self.seen())
        wrong = []
        if stored != [(event, stripe_event(event, KIND)) for event in EVENTS]:
            wrong.append(f"stored {[external_id for external_id, _ in stored]}")
        if owed != [(event, "fulfillment", "pending") for event in EVENTS]:
            wrong.append(f"owed {owed}")
        return wrong

    async def seen(self) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        owner = await asyncpg.connect(self.server.url(self.database))
        stored = await owner.fetch(
            "select e.external_id, b.body from event_ids e left join event_bodies b on b.event_id = e.id "
            "order by e.id, b.body"
        )
        owed = await owner.fetch(
            "select e.external_id, d.consumer, d.state from webhook_deliveries d join event_ids e on e.id = d.event_id "
            "order by 1, 2"
        )
        await owner.close()
        return [tuple(row) for row in stored], [tuple(row) for row in owed]

    def seen_outside(self) -> dict[Door, int]:
        return {Door.HTTP: 0, Door.KAFKA: 0}


@pytest.fixture
def door(migrated_server: Server) -> Make:
    return on_a_database(migrated_server, AtTheDoor)


def test_no_kill_loses_or_doubles_an_event(door: Make, record_points: Record) -> None:
    report = sweep(door)
    record_points("ingress", report)
    assert report.faults == []
    assert report.points >= 10
    assert set(report.doors) == {Door.DATABASE}
