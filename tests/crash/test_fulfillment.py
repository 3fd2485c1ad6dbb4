"""From a paid event to an invitation and a mail: wherever the process dies, nobody is invited twice, nothing is hidden.

A buyer whose process died between claim and outcome is in sight and waits for a person, whose force completes it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import asyncpg
import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.flow.events import handle
from services.fulfillment.flow.flush import SLICE, Fulfillment, Outside
from services.fulfillment.flow.operator import retrigger
from services.fulfillment.gateway.checkout import StripeCheckout
from services.fulfillment.gateway.invite import GitHubInviter, InviteSettings, paces
from services.fulfillment.gateway.mail import open_mailer
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import DeliveryWorker
from services.kernel.doors import Door
from services.kernel.gate import Gates
from services.kernel.inbox import Subscription
from services.kernel.pager import Pager
from services.operations.store import reap_deliveries
from services.sandbox.control import SandboxControl
from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN
from services.sandbox.log import LoggedRequest
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.wire import CompleteSession, CreateSession, InvitationState, Mail, ShowRepository
from services.sandbox.world import Urls
from services.vendors.http import http_client
from services.vendors.stripe import stripe_client
from tests.crash.child import Ended, run_child
from tests.crash.plugin import Record
from tests.crash.sweep import Make, World, sweep
from tests.crash.worlds import among_vendors
from tests.fixtures.database import Server

T = TypeVar("T")
ROLE = "rowclaim_fulfillment"
KIND = "checkout.session.completed"
LEASE = timedelta(seconds=30)
PARTS = 2
BUYER, NOBODY = "octocat", "no-such-login"


@dataclass(frozen=True, slots=True)
class Seen:
    """The end, as the database, GitHub and the mail server have it."""

    purchases: dict[str, str]
    attempts: dict[str, int]
    in_sight: set[str]
    deliveries: Counter[str]
    invited: tuple[InvitationState, ...]
    requests: list[LoggedRequest]
    mails: list[Mail]

    @property
    def sent(self) -> int:
        """How often GitHub was asked to invite the buyer."""
        return sum(r.method == "PUT" and r.path.endswith(f"/collaborators/{BUYER}") for r in self.requests)


@dataclass(frozen=True, slots=True)
class Paid(World):
    """A paid event owed to fulfillment, behind an older purchase whose buyer does not exist."""

    server: Server
    database: str
    urls: Urls
    smtp: str

    async def arrange(self) -> None:
        async with SandboxControl(self.urls.control) as control:
            session = await control.do(CreateSession(checkout_params()))
            await control.do(CompleteSession(session["id"], email="buyer@example.com"))
        database = await self.open()
        await inbox.subscribe(database, SLICE, [Subscription("stripe", KIND)])
        await database.close()
        owner = await self.own()
        await owner.execute(
            "insert into purchases (stripe_session_id, email, github_handle, created_at, fulfillment_state, edge) "
            "values ('cs_older', 'nobody@example.com', $1, rowclaim_now() - interval '1 hour', 'pending', 'record')",
            NOBODY,
        )
        await owner.close()
        ingress = await Database.connect(self.server.url(self.database, role="rowclaim_ingress"))
        body = json.dumps({"type": KIND, "data": {"object": {"id": session["id"], "object": "checkout.session"}}})
        await arrive(ingress, [Arrival("stripe", "evt_1", KIND, body.encode())])
        await ingress.close()

    async def own(self) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(self.server.url(self.database))

    async def open(self) -> Database:
        return await Database.connect(self.server.url(self.database, role=ROLE), size_max=2)

    async def process(self, work: Callable[[Fulfillment], Coroutine[Any, Any, None]]) -> None:
        """One process of fulfillment, wired as its card does, over plain HTTP."""
        database = await self.open()
        async with _plain_client() as http:
            settings = InviteSettings(
                github_api_url=self.urls.github,
                github_token=SecretStr(DEFAULT_TOKEN),
                github_repository=DEFAULT_REPOSITORY,
                github_pace_s=0,
            )
            gates = Gates(database, pace_s=paces(settings))
            checkout = StripeCheckout(stripe_client(DEFAULT_KEY, http, api_url=self.urls.stripe), gates)
            mailer = open_mailer(SecretStr(self.smtp), gates, sender="shop@example.com", product="The course")
            outside = Outside(GitHubInviter(settings, http, gates), checkout, mailer, gates, Pager(database))
            await work(Fulfillment(database, outside, attempt_bound_s=20, stopping=asyncio.Event()))
        await database.close()

    async def flow(self) -> None:
        await self.process(work_off)

    async def redrive(self) -> None:
        """The dead process's leases are over, the reaper came by, another process takes the event up."""
        owner = await self.own()
        await owner.execute(
            "update webhook_deliveries set lease_until = rowclaim_now() - interval '1 s' where state = 'in_progress'"
        )
        await reap_deliveries(await self.open())
        await owner.close()
        await self.process(work_off)

    async def forced(self) -> None:
        """A person forces whatever is stranded."""
        owner = await self.own()
        stranded = await owner.fetch("select id from purchases where fulfillment_state = 'in_progress'")
        await owner.close()

        async def force(fulfillment: Fulfillment) -> None:
            for row in stranded:
                await retrigger(fulfillment, row["id"], actor="ann", reason="its process died", force=True)

        await self.process(force)

    async def seen(self) -> Seen:
        owner = await self.own()
        purchases = await owner.fetch(
            "select id::text, github_handle, fulfillment_state, fulfillment_attempts from purchases"
        )
        desk = await owner.fetch("select id from desk.fulfillment_attention")
        deliveries = await owner.fetch("select state from webhook_deliveries")
        await owner.close()
        handles = {row["id"]: row["github_handle"] for row in purchases}
        async with SandboxControl(self.urls.control) as control:
            repository = await control.do(ShowRepository(DEFAULT_REPOSITORY))
            return Seen(
                {row["github_handle"]: row["fulfillment_state"] for row in purchases},
                {row["github_handle"]: row["fulfillment_attempts"] for row in purchases},
                {handles[row["id"]] for row in desk},
                Counter(row["state"] for row in deliveries),
                repository.invitations,
                await control.log(),
                await control.mails(),
            )

    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        """Without force first: what no machine may do twice, and what it must not hide. Then with it: all is done."""
        before = asyncio.run(self.seen())
        held = sum(times(end, "edge = 'claim'", "purchases") for end in killed) - sum(
            times(end, f"edge = '{edge}'", "purchases") for end in killed for edge in ("deliver", "refuse", "put_back")
        )
        stranded = [handle for handle, state in before.purchases.items() if state == "in_progress"]
        wrong = [] if len(stranded) == held else [f"{held} claims were cut off, {stranded} in progress"]
        if not all(before.attempts[handle] == 1 for handle in stranded):
            wrong.append(f"attempts {before.attempts} of {stranded}")
        if not set(stranded) <= before.in_sight:
            wrong.append(f"{stranded} out of sight: the desk shows {before.in_sight}")
        settled = {BUYER: "delivered", NOBODY: "failed"}
        wrong += [
            f"{handle} ended {state}"
            for handle, state in before.purchases.items()
            if state not in (settled[handle], "in_progress")
        ]
        if before.deliveries != {"done": 1}:
            wrong.append(f"deliveries ended {before.deliveries}")
        if before.sent > 1:
            wrong.append(f"{before.sent} invitations were sent without force")
        if stranded:
            run_child(self.forced)
        return [*wrong, *self._judge_settled(asyncio.run(self.seen()) if stranded else before, killed)]

    def _judge_settled(self, end: Seen, killed: tuple[Ended, ...]) -> Iterator[str]:
        if end.purchases != {BUYER: "delivered", NOBODY: "failed"}:
            yield f"purchases ended {end.purchases}"
        if [(i.login, i.notified) for i in end.invited] != [(BUYER, 1)] or end.sent != 1:
            yield f"{end.sent} sent, invitations {end.invited}"
        lost = sum(_lost_a_mail(one) for one in killed)
        if len(end.mails) != 1 - lost:
            yield f"{len(end.mails)} mails, and {lost} lost"

    def seen_outside(self) -> Mapping[Door, int]:
        end = asyncio.run(self.seen())
        return {Door.HTTP: len(end.requests), Door.SMTP: len(end.mails)}


def checkout_params() -> dict[str, Any]:
    return {
        "mode": "payment",
        "success_url": "https://example.com/thanks",
        "client_reference_id": "user_1",
        "metadata": {"rowclaim_slice": SLICE, "github_username": BUYER},
        "line_items": [
            {"quantity": 1, "price_data": {"currency": "usd", "unit_amount": 4900, "product_data": {"name": "Course"}}}
        ],
    }


async def work_off(fulfillment: Fulfillment) -> None:
    worker = DeliveryWorker(fulfillment.db, SLICE, partial(handle, fulfillment), lease=LEASE, batch_max=20)
    while await worker.step():
        pass


def _plain_client() -> httpx.AsyncClient:
    """Without TLS, whose certificates take a fresh process 80 ms to read."""
    return http_client(httpx.AsyncHTTPTransport(verify=False))


def times(end: Ended, *parts: str) -> int:
    """How many statements with these words were certainly executed."""
    return sum(point.moment == "after" and all(part in point.what for part in parts) for point in end.crossed)


def _lost_a_mail(end: Ended) -> bool:
    """Killed with the outcome written and the mail not yet handed over."""
    mailed = any(point.door is Door.SMTP and point.moment == "after" for point in end.crossed)
    return bool(times(end, "edge = 'deliver'")) and not mailed


@pytest.fixture
def paid(migrated_server: Server) -> Make:
    return among_vendors(migrated_server, Paid)


@pytest.mark.promise("F18", "F19", "F32")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_kill_invites_twice_or_hides_a_purchase(paid: Make, record_points: Record, part: int) -> None:
    report = sweep(paid, part=part, parts=PARTS)
    record_points("fulfillment", report)
    assert report.faults == []
    assert report.points >= 40 // PARTS
    assert set(report.doors) == {Door.DATABASE, Door.HTTP, Door.SMTP}
