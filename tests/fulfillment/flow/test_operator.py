"""What a person judges, in front of any product: this file runs unedited when the gateway is replaced."""

import asyncio
import json
import random
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from services.fulfillment.flow import buyer, operator
from services.fulfillment.flow.flush import FlushReport, Stopped
from services.fulfillment.flow.operator import OF_USER_MAX, Moved, link, list_attention, retrigger, retrigger_user
from services.fulfillment.machine import FulfillmentState
from services.kernel.errors import Refusal
from tests.fixtures.database import Clock, Connection
from tests.fulfillment.conftest import Process, Purchases, Start
from tests.fulfillment.vendor import Says
from tests.waiting import wait_until

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
ROUNDS = 100


async def again(process: Process, purchase: int, *, force: bool = False, reason: str | None = None) -> Any:
    return await retrigger(process.fulfillment, purchase, actor="op@desk", reason=reason, force=force)


async def again_for(
    process: Process, user: str, purchase: int | None = None, *, force: bool = False, reason: str | None = None
) -> tuple[list[Moved], FlushReport | None]:
    return await retrigger_user(
        process.fulfillment, user, purchase_id=purchase, actor="admin_1", reason=reason, force=force
    )


async def actions(owner: Connection) -> list[dict[str, Any]]:
    """What was kept of persons' acts, in order."""
    rows = await owner.fetch("select actor, verb, target, reason, before, after from admin_actions order by id")
    return [dict(row) | {side: json.loads(row[side]) for side in ("before", "after")} for row in rows]


def whole(rows: list[asyncpg.Record]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


# ----------------------------------------------------------------------------------------------------- one, by its id
@pytest.mark.promise("F25")
@pytest.mark.parametrize("state", [PENDING, FAILED])
async def test_a_pending_or_failed_purchase_is_attempted_once_more(
    start: Start, purchases: Purchases, owner: Connection, state: str
) -> None:
    given = {"fulfillment_last_error": "no", "fulfillment_last_code": "no", "attention": "no", "ask_first": True}
    slow = {"timeouts_in_row": 9, "deferrals": 3, "timeout_starts": []}
    purchase = await purchases.add(fulfillment_state=state, claim_token=4, **given, **slow)
    process = await start()
    process.vendor.say("octocat", Says.TROUBLE)
    done = await again(process, purchase)
    assert (done.before, done.after, done.report.attempted) == (state, PENDING, 1)
    row = await purchases.row(purchase)
    assert (row["claim_token"], row["fulfillment_attempts"], row["edge"]) == (6, 1, "put_back")
    assert (row["timeouts_in_row"], row["deferrals"], row["next_attempt_at"], row["attention"]) == (0, 0, None, None)
    assert await actions(owner) == [
        {
            "actor": "op@desk",
            "verb": "fulfillment.retrigger",
            "target": f"purchase:{purchase}",
            "reason": "re-triggered",
            "before": {"fulfillment_state": state},
            "after": {"fulfillment_state": PENDING},
        }
    ]


@pytest.mark.promise("F26")
@pytest.mark.parametrize("state", [IN_PROGRESS, DELIVERED])
async def test_without_force_what_a_flush_owns_or_has_delivered_is_refused(
    start: Start, purchases: Purchases, owner: Connection, state: str
) -> None:
    purchase = await purchases.in_state(state, user_id="user_1")
    before = await purchases.row(purchase)
    process = await start()
    with pytest.raises(Refusal, match="fulfillment_not_requeueable"):
        await again(process, purchase, reason="why not")
    for named in (purchase, None):
        with pytest.raises(Refusal, match=f"fulfillment_not_requeueable: purchase {purchase} is {state}"):
            await again_for(process, "user_1", named, reason="why not")
    assert await purchases.row(purchase) == before
    assert (process.vendor.calls, process.vendor.questions) == ([], [])
    assert await actions(owner) == []


@pytest.mark.promise("F27")
@pytest.mark.parametrize("state", [PENDING, FAILED, IN_PROGRESS, DELIVERED])
async def test_with_force_and_a_reason_any_purchase_is_sent_again(
    start: Start, purchases: Purchases, owner: Connection, state: str
) -> None:
    purchase = await purchases.in_state(state)
    attempts = (await purchases.row(purchase))["fulfillment_attempts"]
    process = await start()
    done = await again(process, purchase, force=True, reason=" stranded ")
    assert (done.before, done.after, done.report.delivered) == (state, DELIVERED, 1)
    assert (await purchases.row(purchase))["fulfillment_attempts"] == attempts + 1
    assert bool(process.vendor.questions) == (state == IN_PROGRESS), "a stranded attempt may have arrived: ask first"
    assert [(one["verb"], one["reason"]) for one in await actions(owner)] == [("fulfillment.force", "stranded")]


@pytest.mark.promise("F27")
async def test_a_live_attempt_is_forced_away_from_its_flush(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add("slow")
    slow = await start()
    desk = await start(like=slow)
    resume = slow.vendor.hold_first()
    flush = asyncio.create_task(slow.fulfillment.flush())
    await wait_until(lambda: slow.vendor.calls, within_s=10, what="the first attempt is in its call")
    done = await again(desk, purchase, force=True, reason="looks stuck")
    assert (done.before, done.after) == (IN_PROGRESS, DELIVERED)
    assert (await purchases.row(purchase))["fulfillment_attempts"] == 2
    resume.set()
    assert (await flush).stopped is Stopped.LEASE_LOST


@pytest.mark.promise("F28")
async def test_a_forced_delivery_to_who_accepted_long_ago_mails_again(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add()
    process = await start()
    await process.fulfillment.flush()
    process.vendor.say("octocat", Says.HAD_IT)
    done = await again(process, purchase, force=True, reason="mail never came")
    assert (done.before, done.after) == (DELIVERED, DELIVERED)
    assert process.vendor.calls == ["octocat", "octocat"]
    assert [mail.attempt for mail in process.post.mails] == [1, 2]
    assert (await purchases.row(purchase))["accepted_at"] is not None


@pytest.mark.promise("F16")
async def test_a_delivery_that_is_refused_when_it_is_repeated_reads_failed_to_everybody(
    start: Start, purchases: Purchases, clock: Clock
) -> None:
    purchase = await purchases.add(user_id="user_1")
    process = await start()
    await process.fulfillment.flush()
    delivered_at = (await purchases.row(purchase))["fulfilled_at"]
    assert await list_attention(process.fulfillment) == []
    await clock.shift(timedelta(days=1))
    process.vendor.say("octocat", Says.NO)
    done = await again(process, purchase, force=True, reason="asked for it")
    assert (done.before, done.after) == (DELIVERED, FAILED)
    (own,) = await buyer.list_own(process.fulfillment, "user_1")
    (seen,) = await list_attention(process.fulfillment)
    assert (own.state, own.fulfilled_at) == (FAILED, delivered_at)
    assert (seen.id, seen.state, seen.fulfilled_at) == (purchase, FAILED, delivered_at)


async def test_force_does_not_pass_a_closed_gate(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.in_state(DELIVERED)
    process = await start()
    await process.gates.close(process.fulfillment.outside.inviter.gate, timedelta(minutes=5), "by hand", "op")
    done = await again(process, purchase, force=True, reason="again")
    assert (done.after, done.report.stopped, process.vendor.calls) == (PENDING, Stopped.GATE_CLOSED, [])
    assert done.report.closed_until is not None


@pytest.mark.parametrize(
    ("which", "force", "reason", "code"),
    [
        ("there", True, None, "fulfillment_reason_missing"),
        ("there", True, "  ", "fulfillment_reason_missing"),
        ("nowhere", True, "because", "fulfillment_purchase_unknown"),
        ("nowhere", False, None, "fulfillment_purchase_unknown"),
        ("revoked", False, "because", "fulfillment_revoked"),
    ],
)
async def test_a_word_that_cannot_be_taken_is_refused_and_leaves_no_trace(
    start: Start,
    purchases: Purchases,
    owner: Connection,
    which: str,
    force: bool,
    reason: str | None,
    code: str,
) -> None:
    there = await purchases.in_state(FAILED, user_id="user_1")
    revoked = await purchases.in_state(PENDING, user_id="user_1", revoked_at=await purchases.now())
    process = await start()
    target = {"there": there, "revoked": revoked, "nowhere": 999_999}[which]
    for word in (
        again(process, target, force=force, reason=reason),
        again_for(process, "user_1", target, force=force, reason=reason),
    ):
        with pytest.raises(Refusal) as refused:
            await word
        assert refused.value.code.name == code
    assert await purchases.states() == [FAILED, PENDING]
    assert await actions(owner) == []
    assert (await process.fulfillment.flush()).attempted == 0, "a payment that was taken back is nobody's to send"


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("state", [PENDING, FAILED, DELIVERED])
async def test_a_dispute_that_was_won_is_reinstated_by_force_and_name(
    start: Start, purchases: Purchases, owner: Connection, state: str, by_user: bool
) -> None:
    at = await purchases.now()
    purchase = await purchases.in_state(state, user_id="user_1", revoked_at=at, revoked_why="disputed")
    process = await start()
    if by_user:
        ((moved,), _) = await again_for(process, "user_1", purchase, force=True, reason="dispute won")
    else:
        moved = await again(process, purchase, force=True, reason="dispute won")
    assert (moved.before, moved.after) == (state, DELIVERED)
    row = await purchases.row(purchase)
    assert (row["revoked_at"], row["revoked_why"]) == (None, None)
    (kept,) = await actions(owner)
    assert kept == {
        "actor": "admin_1" if by_user else "op@desk",
        "verb": "fulfillment.reinstate",
        "target": f"purchase:{purchase}",
        "reason": "dispute won",
        "before": {"fulfillment_state": state, "revoked_at": at.isoformat()},
        "after": {"fulfillment_state": PENDING, "revoked_at": None},
    }


# --------------------------------------------------------------------------------------------------- all of a user's
async def test_every_purchase_of_the_user_that_may_be_is_sent_again_and_no_other(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    failed = await purchases.in_state(FAILED, "a", user_id="user_1")
    pending = await purchases.in_state(PENDING, "b", user_id="user_1")
    delivered = await purchases.in_state(DELIVERED, "c", user_id="user_1")
    running = await purchases.in_state(IN_PROGRESS, "d", user_id="user_1")
    revoked = await purchases.in_state(FAILED, "e", user_id="user_1", revoked_at=await purchases.now())
    others = [await purchases.in_state(FAILED, "f", user_id="user_2"), await purchases.in_state(FAILED, "g")]
    process = await start()
    process.vendor.say("a", Says.NO)
    moved, report = await again_for(process, "user_1")
    assert moved == [
        Moved(failed, FulfillmentState.FAILED, FulfillmentState.FAILED),
        Moved(pending, FulfillmentState.PENDING, FulfillmentState.DELIVERED),
    ]
    assert report is not None
    assert (report.attempted, process.vendor.calls) == (2, ["a", "b"])
    assert [one["target"] for one in await actions(owner)] == [f"purchase:{failed}", f"purchase:{pending}"]

    moved, _ = await again_for(process, "user_1", force=True, reason="all again")
    assert [one.purchase_id for one in moved] == [failed, pending, delivered, running]
    assert (await purchases.row(revoked))["fulfillment_state"] == FAILED
    assert [(await purchases.row(one))["fulfillment_state"] for one in others] == [FAILED, FAILED]


async def test_a_user_of_many_purchases_hides_none_that_may_be_sent(start: Start, purchases: Purchases) -> None:
    for _ in range(OF_USER_MAX):
        await purchases.in_state(DELIVERED, user_id="user_1")
    await purchases.in_state(FAILED, user_id="user_1", revoked_at=await purchases.now())
    failed, named = [await purchases.in_state(state, user_id="user_1") for state in (FAILED, DELIVERED)]
    process = await start()
    moved, _ = await again_for(process, "user_1")
    assert moved == [Moved(failed, FulfillmentState.FAILED, FulfillmentState.DELIVERED)]
    moved, _ = await again_for(process, "user_1", named, force=True, reason="mail never came")
    assert moved == [Moved(named, FulfillmentState.DELIVERED, FulfillmentState.DELIVERED)]


async def test_only_the_users_own_purchases_are_there_to_be_named(start: Start, purchases: Purchases) -> None:
    others = await purchases.in_state(FAILED, user_id="user_2")
    await purchases.in_state(FAILED, user_id="user_1")
    process = await start()
    with pytest.raises(Refusal, match="fulfillment_user_unknown"):
        await again_for(process, "user_3")
    for absent in (others, 999_999):
        with pytest.raises(Refusal, match="fulfillment_purchase_unknown"):
            await again_for(process, "user_1", absent)
    assert await purchases.states() == [FAILED, FAILED]


async def test_the_answer_does_not_wait_for_a_flush_without_end(
    start: Start, purchases: Purchases, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchase = await purchases.in_state(FAILED, user_id="user_1")
    process = await start()
    resume = process.vendor.hold_first()
    whole_flushed = type(process.fulfillment).flushed
    monkeypatch.setattr(type(process.fulfillment), "flushed", lambda self: whole_flushed(self, 0.3))
    moved, report = await again_for(process, "user_1")
    assert (moved, report) == ([Moved(purchase, FulfillmentState.FAILED, FulfillmentState.IN_PROGRESS)], None)
    resume.set()
    await process.fulfillment.drain()
    assert await purchases.states() == [DELIVERED]


@pytest.mark.promise("F29")
async def test_a_requeue_and_a_claim_that_race_never_make_two_attempts_at_once(
    start: Start, purchases: Purchases
) -> None:
    """Over real connections: a flush, and an unforced re-trigger by another process with a flush of its own."""
    process = await start()
    desk = await start(like=process)
    chance = random.Random(29)
    refused = 0

    async def late(racer: Awaitable[Any]) -> Any:
        await asyncio.sleep(chance.uniform(0, 0.005))
        return await racer

    for nth in range(ROUNDS):
        purchase = await purchases.add(f"buyer-{nth}", user_id="user_1")
        racers = (process.fulfillment.flush(), again(desk, purchase))
        report, word = await asyncio.gather(*map(late, racers), return_exceptions=True)
        assert isinstance(report, FlushReport)
        if isinstance(word, Refusal):
            assert word.code.name == "fulfillment_not_requeueable"
            refused += 1
        else:
            assert isinstance(word, Moved)
        await process.fulfillment.flush()
        row = await purchases.row(purchase)
        assert row["fulfillment_state"] == DELIVERED
        assert process.vendor.calls.count(f"buyer-{nth}") == row["fulfillment_attempts"] == 1
    assert process.vendor.in_flight_max == 1
    assert 0 < refused < ROUNDS, "both won some of the races"


# -------------------------------------------------------------------------------------------------- what to look at
@pytest.mark.promise("F79")
async def test_the_list_holds_what_needs_a_look_and_nothing_healthy(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    now = await purchases.now()
    await purchases.in_state(PENDING, "healthy")
    await purchases.in_state(DELIVERED, "healthy")
    expected = {
        await purchases.in_state(FAILED): "no",
        await purchases.in_state(IN_PROGRESS, fulfillment_attempted_at=now - timedelta(days=1)): "in_progress",
        await purchases.in_state(PENDING, next_attempt_at=now, timeouts_in_row=6): "deferred_slow",
        await purchases.in_state(PENDING, timeouts_in_row=5, fulfillment_last_code="timed_out"): "timed_out",
        await purchases.in_state(PENDING, attention="invitation_quota"): "invitation_quota",
        await purchases.in_state(DELIVERED, attention="invitee_mismatch"): "invitee_mismatch",
        await purchases.in_state(DELIVERED, invitation_expired_at=now): "invitation_expired",
        await purchases.in_state(PENDING, revoked_at=now, revoked_why="refunded"): "refunded",
        await purchases.in_state(DELIVERED, revoked_at=now, revoked_why="disputed"): "disputed",
        await purchases.in_state(PENDING, revoked_at=now): "revoked",
    }
    await purchases.in_state(PENDING, timeouts_in_row=4)
    process = await start()
    live = await purchases.add("live", age_s=3600)
    seen: list[dict[int, str | None]] = []

    async def mid_call(_: str) -> None:
        seen.append({one.id: one.why for one in await list_attention(process.fulfillment)})

    process.vendor.before = mid_call
    process.vendor.say("live", Says.TROUBLE)
    await process.fulfillment.flush()
    assert seen == [expected | {live: "in_progress"}]
    assert {one.id for one in await list_attention(process.fulfillment)} == set(expected), "put back, it is healthy"
    desk = {int(row["id"]): row["why"] for row in await owner.fetch("select id, why from desk.fulfillment_attention")}
    assert desk == expected


@pytest.mark.promise("F80")
async def test_the_list_is_the_fifty_newest_attempts_with_their_beginnings(start: Start, purchases: Purchases) -> None:
    now = await purchases.now()
    begun = {}
    for nth in range(60):
        at = now - timedelta(minutes=(nth * 7) % 60)
        begun[await purchases.in_state(FAILED, fulfillment_attempted_at=at)] = at
    never = await purchases.in_state(PENDING, revoked_at=now)
    process = await start()
    listed = await list_attention(process.fulfillment)
    newest = sorted(begun, key=lambda one: begun[one], reverse=True)[:50]
    assert [(one.id, one.attempted_at) for one in listed] == [(one, begun[one]) for one in newest]
    assert never not in {one.id for one in listed}, "what was never attempted stands behind every attempt"


@pytest.mark.promise("F14")
@pytest.mark.parametrize("says", [Says.YES, Says.NO, Says.TROUBLE])
async def test_the_start_is_the_claims_and_neither_an_outcome_nor_a_person_moves_it(
    start: Start, purchases: Purchases, clock: Clock, says: Says
) -> None:
    """The clock goes on while the vendor is asked, and behind a closed gate a re-trigger stays without an attempt."""
    purchase = await purchases.add(user_id="user_1")
    process = await start()
    process.vendor.say("octocat", says)
    begun: list[object] = []

    async def before(_: str) -> None:
        begun.append((await purchases.row(purchase))["fulfillment_attempted_at"])
        await clock.shift(timedelta(hours=1))

    process.vendor.before = before
    await process.fulfillment.flush()
    assert [(await purchases.row(purchase))["fulfillment_attempted_at"]] == begun
    await process.gates.close(process.fulfillment.outside.inviter.gate, timedelta(minutes=5), "by hand", "op")
    assert (await again(process, purchase, force=True, reason="again")).after == PENDING
    assert [(await purchases.row(purchase))["fulfillment_attempted_at"]] == begun


async def test_the_start_that_is_shown_is_the_claims(start: Start, purchases: Purchases, clock: Clock) -> None:
    purchase = await purchases.add("nobody")
    process = await start()
    process.vendor.say("nobody", Says.NO)
    await clock.shift(timedelta(hours=3))
    began = await purchases.now()
    await process.fulfillment.flush()
    await clock.shift(timedelta(hours=3))
    (seen,) = await list_attention(process.fulfillment)
    assert seen.attempted_at is not None
    assert began <= seen.attempted_at < began + timedelta(hours=1)
    assert (seen.id, seen.since, seen.attempts, seen.last_error is not None) == (purchase, seen.attempted_at, 1, True)


async def test_every_reason_tells_since_when(start: Start, purchases: Purchases, owner: Connection) -> None:
    now = await purchases.now()
    attempted, expired, revoked = (now - timedelta(days=days) for days in (30, 20, 10))
    given = {"fulfillment_attempted_at": attempted, "invitation_expired_at": expired}
    since = {
        await purchases.in_state(FAILED, **given): attempted,
        await purchases.in_state(DELIVERED, **given): expired,
        await purchases.in_state(DELIVERED, attention="invitee_mismatch", **given): attempted,
        await purchases.in_state(DELIVERED, revoked_at=revoked, **given): revoked,
    }
    process = await start()
    assert {one.id: one.since for one in await list_attention(process.fulfillment)} == since
    desk = await owner.fetch("select id::bigint as id, since from desk.fulfillment_attention")
    assert {row["id"]: row["since"] for row in desk} == since


# -------------------------------------------------------------------------------------------------------- whose it is
@pytest.mark.promise("F81")
async def test_a_link_gives_an_owner_and_grants_nothing(start: Start, purchases: Purchases, owner: Connection) -> None:
    purchase = await purchases.in_state(PENDING, timeouts_in_row=7, deferrals=2, next_attempt_at=await purchases.now())
    await purchases.in_state(FAILED)
    await owner.execute(
        "insert into entitlements (purchase_id, user_id, kind) values ($1, 'user_0', 'course')", purchase
    )
    entitlements = whole(await owner.fetch("select *, xmin::text, ctid::text from entitlements"))
    before = dict(await purchases.row(purchase))
    process = await start()
    for _ in range(2):  # said again to the same owner, it is as it was
        linked = await link(process.fulfillment, purchase, "user_1", actor="admin_1", reason="wrote to us")
        assert (linked.id, linked.user_id, linked.why) == (purchase, "user_1", None)
    reset = {"timeouts_in_row": 0, "timeout_starts": [], "deferrals": 0, "next_attempt_at": None}
    assert dict(await purchases.row(purchase)) == before | {"user_id": "user_1"} | reset
    assert whole(await owner.fetch("select *, xmin::text, ctid::text from entitlements")) == entitlements
    assert process.vendor.calls == [], "a link is no trigger"
    assert [(one["verb"], one["before"], one["after"]) for one in await actions(owner)] == [
        ("fulfillment.link", {"user_id": None}, {"user_id": "user_1"}),
        ("fulfillment.link", {"user_id": "user_1"}, {"user_id": "user_1"}),
    ]


async def test_a_link_never_replaces_an_owner(start: Start, purchases: Purchases, owner: Connection) -> None:
    purchase = await purchases.in_state(FAILED, user_id="user_1")
    process = await start()
    for target, code in ((purchase, "purchase_owned"), (999_999, "fulfillment_purchase_unknown")):
        with pytest.raises(Refusal, match=code):
            await link(process.fulfillment, target, "user_2", actor="admin_1", reason=None)
    assert (await purchases.row(purchase))["user_id"] == "user_1"
    assert await actions(owner) == []


async def test_of_two_persons_who_link_at_once_one_is_refused(start: Start, purchases: Purchases) -> None:
    process = await start()
    for _ in range(20):
        purchase = await purchases.in_state(FAILED)
        ended = await asyncio.gather(
            *(link(process.fulfillment, purchase, user, actor="admin_1", reason=None) for user in ("user_1", "user_2")),
            return_exceptions=True,
        )
        (refused,) = [one for one in ended if isinstance(one, Refusal)]
        (linked,) = [one for one in ended if not isinstance(one, BaseException)]
        assert refused.code.name == "purchase_owned"
        assert (await purchases.row(purchase))["user_id"] == linked.user_id


@pytest.mark.promise("F82")
async def test_a_purchase_without_an_owner_can_be_sent_again_once_it_has_one(
    start: Start, purchases: Purchases
) -> None:
    purchase = await purchases.in_state(FAILED)
    revoked = await purchases.in_state(FAILED, user_id="user_2", revoked_at=await purchases.now())
    process = await start()
    can = {one.id: operator.can_resend(one) for one in await list_attention(process.fulfillment)}
    assert can == {purchase: False, revoked: False}
    with pytest.raises(Refusal, match="fulfillment_user_unknown"):
        await again_for(process, "user_1", purchase)
    linked = await link(process.fulfillment, purchase, "user_1", actor="admin_1", reason=None)
    assert operator.can_resend(linked)
    moved, _ = await again_for(process, "user_1")
    assert moved == [Moved(purchase, FulfillmentState.FAILED, FulfillmentState.DELIVERED)]
