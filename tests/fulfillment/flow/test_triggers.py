"""The four triggers together: what each of them sets going, and what none of them touches.

A checkout event, a Clerk event, a buyer's correction, an operator's re-trigger. Each needs something of its own to be
about; what is asked here is what becomes of everything else.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import pytest

from services.fulfillment import store
from services.fulfillment.flow import events
from services.fulfillment.flow.buyer import list_own, requeue
from services.fulfillment.flow.operator import list_attention, retrigger
from services.fulfillment.machine import (
    Accepted,
    Delivered,
    FulfillmentState,
    HandleAnswer,
    HandleKnown,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    Outcome,
    Terminal,
)
from services.kernel.deliveries import Delivery, Done
from services.kernel.errors import Refusal
from tests.fixtures.database import Clock
from tests.fulfillment.conftest import Process, Purchases, Start
from tests.fulfillment.product import GATE
from tests.fulfillment.vendor import Says

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
REFUSED: Final = {
    "fulfillment_state": FAILED,
    "edge": "refuse",
    "fulfillment_attempts": 1,
    "fulfillment_last_error": "no such account",
}


@dataclass(slots=True)
class Inviter:
    """Knows everybody, and delivers unless told otherwise."""

    calls: list[str] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    gate: str = GATE

    async def invite(self, request: InviteRequest) -> Outcome:
        self.calls.append(request.handle)
        return Terminal("no_such_account", "nobody") if request.handle in self.refuses else Delivered("come in")

    async def check(self, handle: str) -> HandleAnswer:
        return HandleKnown(handle)

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        return Accepted()


def scripted(process: Process) -> Inviter:
    """Put a vendor of one's own in front of a process."""
    inviter = Inviter()
    process.fulfillment.outside = replace(process.fulfillment.outside, inviter=inviter)
    return inviter


# --------------------------------------------------------------------------------------------------------- the triggers
Trigger = Callable[[Process, Purchases], Awaitable[object]]


async def told(process: Process, source: str, kind: str, about: dict[str, str]) -> None:
    body = json.dumps({"type": kind, "data": {"object": about}}).encode()
    delivery = Delivery(1, 1, 1, source, "evt_1", kind, body)
    assert await events.handle(process.fulfillment, [delivery]) == {1: Done()}


async def checkout(process: Process, purchases: Purchases) -> None:
    metadata = {"rowclaim_slice": "fulfillment", "github_username": "bought"}
    process.sessions.put("cs_test_new", metadata=metadata)
    about = {"object": "checkout.session", "id": "cs_test_new"}
    await told(process, "stripe", "checkout.session.completed", about)


async def clerk(process: Process, purchases: Purchases) -> None:
    await told(process, "clerk", "user.updated", {"id": "user_1"})


async def correction(process: Process, purchases: Purchases) -> None:
    failed = await purchases.add("mistyped", user_id="user_9", **REFUSED)
    await requeue(process.fulfillment, "user_9", failed, "corrected")


async def retriggered(process: Process, purchases: Purchases) -> None:
    failed = await purchases.add("again", **REFUSED)
    await retrigger(process.fulfillment, failed, actor="op@desk", reason=None, force=False)


TRIGGERS: Final[dict[str, Trigger]] = {
    "checkout": checkout,
    "clerk": clerk,
    "correction": correction,
    "retrigger": retriggered,
}
every_trigger = pytest.mark.parametrize("trigger", TRIGGERS)


@every_trigger
async def test_each_trigger_flushes(start: Start, purchases: Purchases, trigger: str) -> None:
    waiting = await purchases.add("waiting", age_s=60)
    process = await start()
    inviter = scripted(process)
    await TRIGGERS[trigger](process, purchases)
    assert (await purchases.row(waiting))["fulfillment_state"] == DELIVERED
    assert inviter.calls[0] == "waiting", "the oldest first"


@pytest.mark.promise("F17")
async def test_age_alone_never_frees_a_row_in_progress(start: Start, purchases: Purchases, clock: Clock) -> None:
    """Not within a month, not by any trigger, not by the buyer's or an operator's word about it without force."""
    stuck = await purchases.add(
        "stuck",
        user_id="user_1",
        fulfillment_state=IN_PROGRESS,
        edge="claim",
        claim_token=1,
        fulfillment_attempts=1,
        fulfillment_attempted_at=await purchases.now(),
    )
    before = await purchases.row(stuck)
    process = await start()
    inviter = scripted(process)
    for _ in range(2):
        await clock.shift(timedelta(days=31))
        for fire in TRIGGERS.values():
            await fire(process, purchases)
        with pytest.raises(Refusal, match="fulfillment_not_failed"):
            await requeue(process.fulfillment, "user_1", stuck, "another")
        with pytest.raises(Refusal, match="fulfillment_not_requeueable"):
            await retrigger(process.fulfillment, stuck, actor="op@desk", reason=None, force=False)
    assert await purchases.row(stuck) == before
    assert "stuck" not in inviter.calls
    assert {"bought", "corrected", "again"} <= set(inviter.calls)


@pytest.mark.promise("F44")
async def test_a_closed_gate_stops_every_trigger_of_every_process_until_its_instant(
    start: Start, purchases: Purchases, clock: Clock
) -> None:
    refused = await purchases.add("refused", age_s=60)
    process = await start()
    other = await start(like=process)
    process.vendor.say("refused", Says.WAIT)
    await process.fulfillment.flush()
    for one in (process, other):
        for fire in TRIGGERS.values():
            await fire(one, purchases)
    assert (process.vendor.calls, process.vendor.questions) == (["refused"], [])
    assert (await purchases.row(refused))["fulfillment_attempts"] == 1
    assert set(await purchases.states()) == {PENDING}

    await clock.shift(timedelta(seconds=31))
    await clerk(other, purchases)
    assert (await purchases.row(refused))["fulfillment_state"] == DELIVERED


# ------------------------------------------------------------------------------------- killed between commit and flush
async def recorded(process: Process, purchases: Purchases) -> int:
    """A purchase was recorded, and its process died."""
    new = store.NewPurchase("cs_test_dead", "pi_1", "user_1", "b@example.com", "owed", None, 4900, "usd")
    assert await store.record_purchase(process.fulfillment.db, new)
    return (await purchases.ids())[-1]


async def corrected(process: Process, purchases: Purchases) -> int:
    """A buyer's correction was written, and its process died."""
    failed = await purchases.add("mistyped", user_id="user_1", **REFUSED)
    db = process.fulfillment.db
    read = await store.find_own(db, "user_1", failed, cooldown=timedelta())
    assert read is not None
    assert await store.correct(db, "user_1", read, handle="owed", account_id=None)
    return failed


async def set_back(process: Process, purchases: Purchases) -> int:
    """An operator's re-trigger was committed, and its process died."""
    failed = await purchases.add("owed", **REFUSED)
    assert await store.requeue(process.fulfillment.db, failed, force=False)
    return failed


@every_trigger
@pytest.mark.promise("F32")
@pytest.mark.parametrize("died_after", [recorded, corrected, set_back])
async def test_what_was_committed_before_the_death_is_delivered_by_the_next_trigger_of_any_kind(
    start: Start,
    purchases: Purchases,
    trigger: str,
    died_after: Callable[[Process, Purchases], Awaitable[int]],
) -> None:
    purchase = await died_after(await start(), purchases)
    assert (await purchases.row(purchase))["fulfillment_state"] == PENDING
    process = await start()
    inviter = scripted(process)
    await TRIGGERS[trigger](process, purchases)
    assert (await purchases.row(purchase))["fulfillment_state"] == DELIVERED
    assert inviter.calls.count("owed") == 1


# --------------------------------------------------------------------------------------------- forced, and then refused
@pytest.mark.promise("F16")
async def test_a_forced_re_send_that_is_refused_is_failed_for_everybody_and_keeps_its_first_delivery(
    start: Start, purchases: Purchases
) -> None:
    purchase = await purchases.add("gone", user_id="user_1")
    process = await start()
    inviter = scripted(process)
    await process.fulfillment.flush()
    await purchases.age(purchase, timedelta(hours=1))
    delivered = await purchases.row(purchase)
    assert [one.id for one in await list_attention(process.fulfillment)] == []

    inviter.refuses.add("gone")
    done = await retrigger(process.fulfillment, purchase, actor="op@desk", reason="mail lost", force=True)
    assert (done.before, done.after) == (DELIVERED, FAILED)
    row = await purchases.row(purchase)
    assert row["fulfilled_at"] == delivered["fulfilled_at"]
    (listed,) = await list_attention(process.fulfillment)
    assert (listed.id, listed.state, listed.fulfilled_at) == (purchase, FAILED, delivered["fulfilled_at"])
    (seen,) = await list_own(process.fulfillment, "user_1")
    assert (seen.id, seen.state, seen.fulfilled_at) == (purchase, FAILED, delivered["fulfilled_at"])
