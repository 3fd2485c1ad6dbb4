"""The door as a serving process has it: routes in the app of ``rowclaim serve``, its database, a bell that tells."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import asyncpg
import httpx
import pytest
from starlette.types import ASGIApp

from services.ingress.api.webhooks import routes
from services.ingress.flow.intake import Bell, Intake, Outside, Verifier
from services.ingress.gateway.clerk import ClerkVerifier
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import Source
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.errors import Invariant
from services.kernel.inbox import Subscription
from services.operations import web
from tests.fixtures.database import Connect
from tests.ingress.signing import CLERK_NEW, CLERK_OLD, NEW, OLD, Headers, clerk_headers, stripe_headers

BODY_BYTES_MAX = 64 * 1024
VERIFIERS = {Source.STRIPE: StripeVerifier([OLD, NEW]), Source.CLERK: ClerkVerifier([CLERK_OLD, CLERK_NEW])}
FULFILLMENT = [Subscription("stripe", "checkout.session.completed"), Subscription("clerk", "user.created")]


@dataclass
class RecordingBell:
    """What was rung for, in order."""

    rings: list[tuple[str, list[int]]] = field(default_factory=list)

    def ring(self, topic: str, ids: Iterable[int]) -> None:
        self.rings.append((topic, list(ids)))


@dataclass
class Door:
    """One serving process: its intake, its app, and a client of it. ``bell``: the rings of a recording one."""

    db: Database
    intake: Intake
    bell: RecordingBell
    app: ASGIApp
    http: httpx.AsyncClient

    async def stripe(self, body: bytes, headers: Headers | None = None) -> httpx.Response:
        return await self.http.post(
            "/webhooks/stripe", content=body, headers=stripe_headers(body) if headers is None else headers
        )

    async def clerk(self, body: bytes, headers: Headers | None = None) -> httpx.Response:
        return await self.http.post(
            "/webhooks/clerk", content=body, headers=clerk_headers(body) if headers is None else headers
        )


OpenDoor = Callable[[], Awaitable[Door]]


def make_door(db: Database, bell: Bell, verifiers: Mapping[Source, Verifier] = VERIFIERS) -> Door:
    intake = Intake(db, Outside(verifiers=verifiers, bell=bell))

    async def nobody(error: Invariant) -> None:
        raise error

    app = web.make_app(routes(intake, body_bytes_max=BODY_BYTES_MAX), {}, nobody)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://door")
    return Door(db, intake, bell if isinstance(bell, RecordingBell) else RecordingBell(), app, client)


@pytest.fixture
async def open_door(connect: Connect) -> AsyncIterator[OpenDoor]:
    """Opens one more serving process over this test's database."""
    doors: list[Door] = []

    async def open_one() -> Door:
        doors.append(make_door(await connect("rowclaim_ingress"), RecordingBell()))
        return doors[-1]

    yield open_one
    for door in doors:
        await door.http.aclose()
        await door.intake.close()


@pytest.fixture
async def door(open_door: OpenDoor, connect: Connect) -> Door:
    """A serving process; fulfillment is owed checkouts and new users."""
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", FULFILLMENT)
    return await open_door()


@dataclass
class Stored:
    """What the database holds, looked at from outside."""

    owner: "asyncpg.Connection[asyncpg.Record]"

    async def events(self) -> list[tuple[str, str, str]]:
        rows = await self.owner.fetch("select source, external_id, kind from event_ids order by id")
        return [tuple(row) for row in rows]

    async def bodies(self) -> list[bytes]:
        return [row["body"] for row in await self.owner.fetch("select body from event_bodies order by event_id")]

    async def deliveries(self) -> list[tuple[int, str, str]]:
        rows = await self.owner.fetch("select event_id, consumer, state from webhook_deliveries order by 1, 2")
        return [tuple(row) for row in rows]

    async def nothing(self) -> bool:
        tables = ("event_ids", "event_bodies", "webhook_deliveries")
        return [await self.owner.fetchval(f"select count(*) from {table}") for table in tables] == [0, 0, 0]


@pytest.fixture
def stored(owner: "asyncpg.Connection[asyncpg.Record]") -> Stored:
    return Stored(owner)
