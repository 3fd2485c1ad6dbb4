"""The daily look at invitations that nobody took up: what is written, what is left alone, and when it stops."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from services.fulfillment import store
from services.fulfillment.flow import invitations
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.machine import (
    Accepted,
    Config,
    Delivered,
    Expired,
    FulfillmentState,
    HandleAnswer,
    HandleKnown,
    Invitation,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    Open,
    Outcome,
    Pause,
    Transient,
)
from tests.fixtures.database import Clock, Connection
from tests.fulfillment.conftest import Process, Purchases, Start
from tests.fulfillment.product import GATE

DELIVERED = FulfillmentState.DELIVERED.value
WEEK = timedelta(days=7)


@dataclass(slots=True)
class Invitations:
    """A vendor that says of each handle's invitation what a test wrote down; without a word, it is open."""

    says: dict[str, InvitationStanding] = field(default_factory=dict)
    asked: list[InvitationQuery] = field(default_factory=list)
    sent: list[InviteRequest] = field(default_factory=list)
    before: Callable[[InvitationQuery], Awaitable[object]] | None = None
    gate: str = GATE

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        self.asked.append(query)
        if self.before is not None:
            await self.before(query)
        return self.says.get(query.handle, Open())

    async def invite(self, request: InviteRequest) -> Outcome:
        self.sent.append(request)
        return Delivered("come in", invitation=Invitation(id=99, account_id=7))

    async def check(self, handle: str) -> HandleAnswer:
        return HandleKnown(handle)


@dataclass(slots=True)
class Desk:
    """A process whose vendor of invitations is scripted."""

    process: Process
    vendor: Invitations

    async def check(self) -> dict[str, object]:
        return dict(await check_invitations(self.process.fulfillment))


@pytest.fixture
async def desk(start: Start) -> Desk:
    process, vendor = await start(), Invitations()
    process.fulfillment.outside = replace(process.fulfillment.outside, inviter=vendor)
    return Desk(process, vendor)


async def invited(purchases: Purchases, handle: str | None, *, days: float = 8, **columns: object) -> int:
    """A delivered purchase whose invitation is so old."""
    at = await purchases.now() - timedelta(days=days)
    return await purchases.add(
        handle,
        age_s=days * 86400,
        **{
            "fulfillment_state": DELIVERED,
            "edge": "deliver",
            "claim_token": 1,
            "outcome_token": 1,
            "fulfillment_attempts": 1,
            "fulfillment_attempted_at": at,
            "fulfilled_at": at,
            "invited_at": at,
            "invitation_id": 41,
            "invited_account_id": 7,
        }
        | columns,
    )


@pytest.mark.promise("F83")
async def test_an_invitation_unaccepted_after_a_week_is_listed_with_the_instant_it_ran_out(
    desk: Desk, purchases: Purchases, owner: Connection
) -> None:
    old, young = await invited(purchases, "old", days=8), await invited(purchases, "young", days=6)
    desk.vendor.says = {"old": Expired(), "young": Expired()}
    assert await desk.check() == {
        "stopped": "drained",
        "asked": 1,
        "accepted": 0,
        "expired": 1,
        "open": 0,
        "unanswered": 0,
        "changed_meanwhile": 0,
    }
    assert desk.vendor.asked == [InvitationQuery("old", 7, 41)]
    row = await purchases.row(old)
    assert row["invitation_expired_at"] == row["invited_at"] + WEEK
    assert (await purchases.row(young))["invitation_expired_at"] is None
    listed = await owner.fetch("select id, why, since from desk.fulfillment_attention")
    assert [tuple(one) for one in listed] == [(str(old), "invitation_expired", row["invited_at"] + WEEK)]


async def test_what_is_decided_is_written_and_never_asked_again(desk: Desk, purchases: Purchases) -> None:
    """And what is not: an open one is asked about again the next day; what has no invitation, never."""
    accepted, still_open = await invited(purchases, "accepted"), await invited(purchases, "open")
    await invited(purchases, None)  # a buyer who is forgotten
    await invited(purchases, "forced", fulfillment_state="pending", edge="force_delivered", outcome_token=None)
    await invited(purchases, "had_it", invited_at=None, already_had_access=True, accepted_at=await purchases.now())
    await purchases.add("pending", age_s=1e6)
    desk.vendor.says = {"accepted": Accepted()}
    assert (await desk.check())["accepted"] == 1
    row = await purchases.row(accepted)
    assert row["accepted_at"] is not None
    assert row["invitation_expired_at"] is None
    assert [query.handle for query in desk.vendor.asked] == ["accepted", "open"]
    desk.vendor.says = {"open": Expired()}
    assert (await desk.check())["expired"] == 1
    assert [query.handle for query in desk.vendor.asked] == ["accepted", "open", "open"]
    assert (await purchases.row(still_open))["invitation_expired_at"] is not None
    assert (await desk.check())["asked"] == 0


async def test_it_changes_nothing_else_and_sends_nothing(desk: Desk, purchases: Purchases) -> None:
    purchase = await invited(purchases, "old")
    before = dict(await purchases.row(purchase))
    desk.vendor.says = {"old": Expired()}
    await desk.check()
    after = dict(await purchases.row(purchase))
    assert {name for name in after if after[name] != before[name]} == {"invitation_expired_at"}
    assert (desk.vendor.sent, desk.process.post.mails) == ([], [])


async def test_however_many_there_are_each_is_asked_about_once_oldest_first(
    desk: Desk, purchases: Purchases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of two; two invitations of one instant stand at the border of a page."""
    monkeypatch.setattr(invitations, "PAGE_SIZE", 2)
    same = await purchases.now() - timedelta(days=10)
    for handle, days in (("d", 8), ("a", 20)):
        await invited(purchases, handle, days=days)
    for handle in ("b", "c"):
        await invited(purchases, handle, invited_at=same)
    await invited(purchases, "e", days=7.5)
    desk.vendor.says = {"c": Accepted()}
    assert (await desk.check())["asked"] == 5
    assert [query.handle for query in desk.vendor.asked] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("standing", [Accepted(), Expired()])
async def test_what_was_sent_again_meanwhile_is_not_overwritten(
    desk: Desk, purchases: Purchases, standing: InvitationStanding
) -> None:
    """A person forces it while the vendor is asked about the old invitation: the new one has a week of its own."""
    purchase = await invited(purchases, "old")
    desk.vendor.says = {"old": standing}

    async def resent(query: InvitationQuery) -> None:
        db = desk.process.fulfillment.db
        assert await store.requeue(db, purchase, force=True)
        await desk.process.fulfillment.flush()

    desk.vendor.before = resent
    report = await desk.check()
    assert (report["changed_meanwhile"], report["expired"], report["accepted"]) == (1, 0, 0)
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["invitation_id"]) == (DELIVERED, 99)
    assert (row["accepted_at"], row["invitation_expired_at"]) == (None, None)


DECISIONS = (Accepted(), Expired())


@pytest.mark.parametrize("first", DECISIONS)
@pytest.mark.parametrize("second", DECISIONS)
async def test_two_runs_at_once_write_one_decision(
    desk: Desk, purchases: Purchases, first: InvitationStanding, second: InvitationStanding
) -> None:
    """A run that lost its lease and the one that took over."""
    purchase = await invited(purchases, "old")
    both, answers = asyncio.Barrier(2), [first, second]

    async def together(query: InvitationQuery) -> None:
        await both.wait()
        desk.vendor.says = {"old": answers.pop(0)}

    desk.vendor.before = together
    reports = await asyncio.gather(desk.check(), desk.check())
    assert sum(int(str(one["accepted"])) + int(str(one["expired"])) for one in reports) == 1
    row = await purchases.row(purchase)
    assert (row["accepted_at"] is None) != (row["invitation_expired_at"] is None)


# ------------------------------------------------------------------------------------------------------ when it stops
async def test_a_vendor_that_answers_nothing_twice_in_a_row_is_left_alone(desk: Desk, purchases: Purchases) -> None:
    for handle in ("a", "b", "c"):
        await invited(purchases, handle)
    desk.vendor.says = dict.fromkeys("abc", Transient("vendor_trouble", "HTTP 502"))
    report = await desk.check()
    assert (report["stopped"], report["asked"], report["unanswered"]) == ("transient", 2, 2)


async def test_one_that_is_never_answered_hides_no_other(desk: Desk, purchases: Purchases) -> None:
    for handle in ("bad", "good", "worse", "fine"):
        await invited(purchases, handle)
    desk.vendor.says = {
        "bad": Transient("timed_out", "no answer", timed_out=True),
        "good": Expired(),
        "worse": Transient("vendor_trouble", "HTTP 502"),
        "fine": Accepted(),
    }
    report = await desk.check()
    assert report == {
        "stopped": "drained",
        "asked": 4,
        "accepted": 1,
        "expired": 1,
        "open": 0,
        "unanswered": 2,
        "changed_meanwhile": 0,
    }


@pytest.mark.promise("F44")
async def test_a_refusal_of_everybody_closes_the_gate_for_the_flushes_too(
    desk: Desk, purchases: Purchases, clock: Clock
) -> None:
    for handle in ("a", "b"):
        await invited(purchases, handle)
    pending = await purchases.add("new")
    desk.vendor.says = {"a": Transient("rate_limited", "slow down", pause=Pause(timedelta(seconds=90)))}
    assert (await desk.check())["stopped"] == "transient"
    assert (await desk.check())["stopped"] == "gate_closed"
    assert len(desk.vendor.asked) == 1
    report = await desk.process.fulfillment.flush()
    assert (report.stopped, desk.vendor.sent) == ("gate_closed", [])
    assert (await purchases.row(pending))["fulfillment_attempts"] == 0
    await clock.shift(timedelta(seconds=91))
    assert (await desk.process.fulfillment.flush()).delivered == 1


async def test_a_refusal_that_names_no_instant_closes_the_gate_ever_longer(desk: Desk, purchases: Purchases) -> None:
    await invited(purchases, "a")
    desk.vendor.says = {"a": Transient("rate_limited", "slow down", pause=Pause())}
    await desk.check()
    until = await desk.process.gates.closed_until(GATE)
    assert until is not None
    assert until >= await purchases.now() + timedelta(seconds=55)


async def test_a_fault_of_ours_closes_the_gate_and_pages(desk: Desk, purchases: Purchases, owner: Connection) -> None:
    purchase = await invited(purchases, "very-private")
    await invited(purchases, "b")
    desk.vendor.says = {"very-private": Config("http_401", "bad token of very-private")}
    assert (await desk.check())["stopped"] == "config"
    until = await desk.process.gates.closed_until(GATE)
    assert until is not None
    assert until >= await purchases.now() + timedelta(minutes=14)
    pages = await owner.fetch("select dedup_key, summary from pages")
    assert [page["dedup_key"] for page in pages] == [f"fulfillment:{GATE}"]
    assert str(purchase) in pages[0]["summary"]
    assert "very-private" not in pages[0]["summary"]


# ---------------------------------------------------------------------------------------------------- and what follows
async def test_sent_again_a_dead_invitation_is_replaced_and_a_new_week_begins(desk: Desk, purchases: Purchases) -> None:
    purchase = await invited(purchases, "old")
    desk.vendor.says = {"old": Expired()}
    await desk.check()
    assert await store.requeue(desk.process.fulfillment.db, purchase, force=True)
    await desk.process.fulfillment.flush()
    assert [request.replaces for request in desk.vendor.sent] == [41]
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["invitation_id"]) == (DELIVERED, 99)
    assert (row["accepted_at"], row["invitation_expired_at"]) == (None, None)
    assert row["invited_at"] > await purchases.now() - timedelta(minutes=1)
    assert (await desk.check())["asked"] == 0
