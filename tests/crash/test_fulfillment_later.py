"""What comes after the sale: a refund, a user who changed, an invitation that ran out, a correction, an owner found.

Wherever the process dies in the middle of it: what was taken back is never claimed, a correction is delivered by the
next trigger of any kind, what was learned of an invitation is written once, and nothing is hidden.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import asyncpg
import pytest

from services.fulfillment.consumer import SERVICE
from services.fulfillment.flow.buyer import list_own, requeue
from services.fulfillment.flow.flush import SLICE, Fulfillment
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.flow.operator import link
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.doors import Door
from services.operations.store import reap_deliveries
from services.sandbox.control import SandboxControl
from services.sandbox.log import LoggedRequest
from services.sandbox.wire import AddAccount, CompleteSession, CreateSession, Mail, RefundCharge
from tests.crash.child import Ended, run_child
from tests.crash.plugin import Record
from tests.crash.sweep import Make, sweep
from tests.crash.test_fulfillment import KIND, Paid, checkout_params, times, work_off
from tests.crash.worlds import among_vendors
from tests.fixtures.database import Server

PARTS: Final = 4
WAITING, REFUNDED, CORRECTED, OLD, NOBODYS = "octocat", "refunded", "hubot", "long-ago", "nobodys"
BUYER: Final = "user_1"
ENDS: Final = {
    WAITING: "delivered",
    REFUNDED: "pending",
    CORRECTED: "delivered",
    OLD: "delivered",
    NOBODYS: "delivered",
}

ARRANGE: Final = """
insert into purchases (stripe_session_id, user_id, email, github_handle, created_at, fulfillment_state, edge,
  claim_token, fulfillment_attempts, fulfillment_attempted_at, fulfilled_at, fulfillment_last_error, invited_at,
  invitation_id)
values
  ('cs_waiting', 'user_2', 'w@example.com', 'octocat', rowclaim_now() - interval '3 h', 'pending', 'put_back',
   1, 1, rowclaim_now() - interval '2 h', null, 'HTTP 502', null, null),
  ('cs_mistyped', 'user_1', 'c@example.com', 'mistyped', rowclaim_now() - interval '2 h', 'failed', 'refuse',
   1, 1, rowclaim_now() - interval '2 h', null, 'nobody', null, null),
  ('cs_long_ago', 'user_3', 'o@example.com', 'long-ago', rowclaim_now() - interval '9 d', 'delivered', 'deliver',
   1, 1, rowclaim_now() - interval '9 d', rowclaim_now() - interval '9 d', null, rowclaim_now() - interval '9 d', 41),
  ('cs_nobodys', null, 'n@example.com', 'nobodys', rowclaim_now() - interval '9 d', 'delivered', 'deliver',
   1, 1, rowclaim_now() - interval '9 d', rowclaim_now() - interval '9 d', null, null, null)"""


@dataclass(frozen=True, slots=True)
class Row:
    """A purchase at the end."""

    state: str
    attempts: int
    user_id: str | None
    revoked_why: str | None
    ran_out: timedelta | None
    """After how long its invitation did."""


@dataclass(frozen=True, slots=True)
class End:
    """The end, as the database, the vendors and the mail server have it."""

    purchases: dict[str, Row]
    in_sight: set[str]
    deliveries: Counter[str]
    linked: int
    requests: list[LoggedRequest]
    mails: list[Mail]

    def sent(self, login: str) -> int:
        """How often GitHub was asked to invite somebody."""
        return sum(r.method == "PUT" and r.path.endswith(f"/collaborators/{login}") for r in self.requests)


@dataclass(frozen=True, slots=True)
class Later(Paid):
    """The same installation, a week on."""

    async def arrange(self) -> None:
        async with SandboxControl(self.urls.control) as control:
            await control.do(AddAccount(CORRECTED))
            metadata = {"rowclaim_slice": SLICE, "github_username": REFUNDED}
            session = await control.do(CreateSession(checkout_params() | {"metadata": metadata}))
            await control.do(CompleteSession(session["id"], email="r@example.com"))
            charge = await control.do(RefundCharge(session["id"]))
        database = await self.open()
        await inbox.subscribe(database, SLICE, SERVICE.subscriptions)
        await database.close()
        owner = await self.own()
        async with owner.transaction():
            await owner.execute("set local session_replication_role = replica")
            await owner.execute(ARRANGE)
        await owner.close()
        events = [
            ("stripe", "charge.refunded", {"object": "charge", "id": charge["id"]}),
            ("stripe", KIND, {"object": "checkout.session", "id": session["id"]}),
            ("clerk", "user.updated", {"object": "user", "id": "user_9"}),
        ]
        await self.arrives(*events)

    async def arrives(self, *events: tuple[str, str, Mapping[str, str]]) -> None:
        """Events at the door, each with an id of its own."""
        ingress = await Database.connect(self.server.url(self.database, role="rowclaim_ingress"))
        for source, kind, about in events:
            body = json.dumps({"type": kind, "data": {"object": about}}).encode()
            await arrive(ingress, [Arrival(source, f"evt_{time.monotonic_ns()}", kind, body)])
        await ingress.close()

    async def flow(self) -> None:
        await self.process(_the_day)

    async def redrive(self) -> None:
        """Leases are over, the reaper came by; buyer and operator look again, and do again what is not done. Then
        another user changes: the next trigger of any kind."""
        owner = await self.own()
        await owner.execute(
            "update webhook_deliveries set lease_until = rowclaim_now() - interval '1 s' where state = 'in_progress'"
        )
        await owner.close()
        database = await self.open()
        await reap_deliveries(database)
        await database.close()
        await self.process(_the_day)
        await self.arrives(("clerk", "user.updated", {"id": "user_8"}))
        await self.process(work_off)

    async def end(self) -> End:
        owner: asyncpg.Connection[asyncpg.Record] = await self.own()
        rows = await owner.fetch(
            "select id::text, github_handle, fulfillment_state, fulfillment_attempts, user_id, revoked_why,"
            " invitation_expired_at - invited_at as ran_out from purchases"
        )
        desk = await owner.fetch("select id from desk.fulfillment_attention")
        deliveries = await owner.fetch("select state from webhook_deliveries")
        linked = await owner.fetchval("select count(*) from admin_actions where verb = 'fulfillment.link'")
        await owner.close()
        handles = {row["id"]: row["github_handle"] for row in rows}
        async with SandboxControl(self.urls.control) as control:
            return End(
                {row["github_handle"]: Row(*list(row.values())[2:]) for row in rows},
                {handles[row["id"]] for row in desk},
                Counter(row["state"] for row in deliveries),
                linked,
                await control.log(),
                await control.mails(),
            )

    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        """Without force: what nobody may do twice or hide. Then whatever is stranded is forced: all is done."""
        before = asyncio.run(self.end())
        stranded = {handle for handle, row in before.purchases.items() if row.state == "in_progress"}
        held = sum(times(end, "edge = 'claim'", "purchases") for end in killed) - sum(
            times(end, f"edge = '{edge}'", "purchases") for end in killed for edge in ("deliver", "refuse", "put_back")
        )
        wrong = [] if len(stranded) == held else [f"{held} claims were cut off, {stranded} in progress"]
        if not stranded <= before.in_sight:
            wrong.append(f"{stranded} out of sight: the desk shows {before.in_sight}")
        if max(before.sent(WAITING), before.sent(CORRECTED)) > 1:
            wrong.append("an invitation was sent twice without force")
        if stranded:
            run_child(self.forced)
        return [*wrong, *self._judge_settled(asyncio.run(self.end()) if stranded else before)]

    def _judge_settled(self, end: End) -> Iterator[str]:
        if (states := {handle: row.state for handle, row in end.purchases.items()}) != ENDS:
            yield f"purchases ended {states}"
        refunded = end.purchases[REFUNDED]
        if (refunded.attempts, refunded.revoked_why, end.sent(REFUNDED)) != (0, "refunded", 0):
            yield f"what was taken back ended {refunded}, sent {end.sent(REFUNDED)} times"
        if {row.ran_out for row in end.purchases.values()} != {None, timedelta(days=7)}:
            yield f"invitations ran out {[row.ran_out for row in end.purchases.values()]}"
        if not {REFUNDED, OLD} <= end.in_sight:
            yield f"the desk shows {end.in_sight}"
        if (end.purchases[NOBODYS].user_id, end.linked) != (BUYER, 1):
            yield f"linked {end.linked} times to {end.purchases[NOBODYS].user_id}"
        if (end.sent(WAITING), end.sent(CORRECTED), end.sent(OLD)) != (1, 1, 0):
            yield f"sent {end.sent(WAITING)}, {end.sent(CORRECTED)}, {end.sent(OLD)} times"
        if set(end.deliveries) != {"done"}:
            yield f"deliveries ended {end.deliveries}"

    def seen_outside(self) -> Mapping[Door, int]:
        end = asyncio.run(self.end())
        return {Door.HTTP: len(end.requests), Door.SMTP: len(end.mails)}


async def _the_day(fulfillment: Fulfillment) -> None:
    """One process's day. Buyer and operator do only what they see to be undone."""
    await work_off(fulfillment)
    for purchase in await list_own(fulfillment, BUYER):
        if purchase.state == "failed":
            await requeue(fulfillment, BUYER, purchase.id, CORRECTED)
    await check_invitations(fulfillment)
    nobodys = await fulfillment.db.value("select id from purchases where user_id is null")
    if nobodys is not None:
        await link(fulfillment, nobodys, BUYER, actor="ann", reason=None)


@pytest.fixture
def later(migrated_server: Server) -> Make:
    return among_vendors(migrated_server, Later)


@pytest.mark.promise("F32")
@pytest.mark.timeout(400)  # thirty worlds a part, each with servers of its own
@pytest.mark.parametrize("part", range(PARTS))
def test_no_kill_sends_what_was_taken_back_or_loses_a_correction(later: Make, record_points: Record, part: int) -> None:
    report = sweep(later, part=part, parts=PARTS)
    record_points("fulfillment, later", report)
    assert report.faults == []
    assert report.points >= 80 // PARTS
    assert set(report.doors) == {Door.DATABASE, Door.HTTP, Door.SMTP}
