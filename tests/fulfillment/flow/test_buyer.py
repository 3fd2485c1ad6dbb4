"""The correction of a username, in front of any product: this file runs unedited when the gateway is replaced."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from services.fulfillment import store
from services.fulfillment.flow import operator
from services.fulfillment.flow.buyer import OWN_MAX, list_own, requeue
from services.fulfillment.flow.forgetting import blank
from services.fulfillment.machine import FulfillmentState, HandleKnown, HandleUnknown, HandleUnverified
from services.kernel.errors import Refusal, Retryable
from tests.fixtures.database import Connect, Connection
from tests.fulfillment.conftest import ROLE, Process, Purchases, Start
from tests.fulfillment.vendor import Says

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
PAST = timedelta(minutes=11)
"""Longer than the cooldown."""


async def failed(purchases: Purchases, handle: str | None = "typo", *, ago: timedelta = PAST, **columns: Any) -> int:
    """A failed purchase of user_1, attempted so long ago."""
    at = await purchases.now() - ago
    return await purchases.in_state(FAILED, handle, user_id="user_1", fulfillment_attempted_at=at, **columns)


async def expired(purchases: Purchases, handle: str = "octocat", **columns: Any) -> int:
    """A delivered purchase of user_1 whose invitation nobody took up."""
    at = await purchases.now()
    given = {
        "user_id": "user_1",
        "invitation_id": 42,
        "invited_at": at - timedelta(days=8),
        "invitation_expired_at": at,
    }
    return await purchases.in_state(DELIVERED, handle, **(given | columns))


async def corrects(process: Process, purchase: int, handle: str = "octocat", *, user: str = "user_1") -> Any:
    return await requeue(process.fulfillment, user, purchase, handle)


async def refusal(corrected: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await corrected
    return refused.value


async def stand_still(owner: Connection, at: datetime) -> None:
    """The database's clock shows this instant, for everybody."""
    stands = f"parallel safe return timestamptz '{at.isoformat()}'"
    await owner.execute(
        f"create or replace function rowclaim_now() returns timestamptz language sql stable {stands};"
        f"create or replace function rowclaim_clock() returns timestamptz language sql volatile {stands}"
    )


# ------------------------------------------------------------------------------------------------------------- the list
@pytest.mark.promise("F67")
async def test_a_buyer_sees_their_own_newest_first_and_no_reason(start: Start, purchases: Purchases) -> None:
    older = await purchases.in_state(FAILED, user_id="user_1", age_s=60)
    newer = await purchases.in_state(DELIVERED, user_id="user_1")
    await purchases.in_state(FAILED, user_id="user_2")
    await purchases.in_state(FAILED)
    process = await start()
    own = await list_own(process.fulfillment, "user_1")
    assert [(one.id, one.state) for one in own] == [(newer, DELIVERED), (older, FAILED)]
    assert not [name for name in store.OwnPurchase.__slots__ if "error" in name or "code" in name]
    assert await list_own(process.fulfillment, "user_3") == []


async def test_the_list_is_bounded(start: Start, purchases: Purchases) -> None:
    for nth in range(OWN_MAX + 1):
        await purchases.add(user_id="user_1", age_s=1000 - nth)
    process = await start()
    assert len(await list_own(process.fulfillment, "user_1")) == OWN_MAX


@pytest.mark.promise("F74")
async def test_there_is_an_instant_to_wait_for_only_where_waiting_helps(start: Start, purchases: Purchases) -> None:
    at = await purchases.now() - timedelta(minutes=1)
    cooling = await failed(purchases, ago=timedelta(minutes=1))
    others = [
        await failed(purchases),
        await failed(purchases, None, ago=timedelta(seconds=1)),
        await failed(purchases, ago=timedelta(minutes=1), revoked_at=at),
        *[await purchases.in_state(state, user_id="user_1") for state in (PENDING, IN_PROGRESS, DELIVERED)],
    ]
    process = await start()
    until = {one.id: one.cooldown_until for one in await list_own(process.fulfillment, "user_1")}
    begun = (await purchases.row(cooling))["fulfillment_attempted_at"]
    assert until == {cooling: begun + timedelta(minutes=10)} | dict.fromkeys(others)


# --------------------------------------------------------------------------------------------------------- the refusals
@pytest.mark.promise("F68")
async def test_anothers_purchase_is_as_absent_as_a_made_up_one(start: Start, purchases: Purchases) -> None:
    mine = await failed(purchases)
    ownerless = await purchases.in_state(FAILED, "typo")
    before = [await purchases.row(one) for one in (mine, ownerless)]
    process = await start()
    answers = [await refusal(corrects(process, one, user="user_2")) for one in (mine, ownerless, 999_999)]
    assert {(one.code.name, one.code.status, one.detail) for one in answers} == {
        ("fulfillment_purchase_unknown", 404, "")
    }
    assert [await purchases.row(one) for one in (mine, ownerless)] == before
    assert process.vendor.checked == []


@pytest.mark.promise("F69")
@pytest.mark.parametrize("handle", ["typo", "TYPO", "tYpO"])
async def test_the_same_username_is_refused_whatever_its_letter_case(
    start: Start, purchases: Purchases, handle: str
) -> None:
    purchase = await failed(purchases, ago=timedelta(0))
    before = await purchases.row(purchase)
    process = await start()
    refused = await refusal(corrects(process, purchase, handle))
    assert (refused.code.name, refused.code.status) == ("github_handle_unchanged", 409)
    assert (process.vendor.checked, process.vendor.calls) == ([], [])
    assert await purchases.row(purchase) == before


@pytest.mark.promise("F70", "F73")
async def test_refusal_and_published_instant_turn_together(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    purchase = await failed(purchases, ago=timedelta(seconds=5))
    before = await purchases.row(purchase)
    process = await start()
    (listed,) = await list_own(process.fulfillment, "user_1")
    until = listed.cooldown_until
    assert until == before["fulfillment_attempted_at"] + timedelta(minutes=10)

    await stand_still(owner, until - timedelta(microseconds=1))
    (listed,) = await list_own(process.fulfillment, "user_1")
    refused = await refusal(corrects(process, purchase))
    assert (refused.code.name, refused.code.status) == ("fulfillment_cooldown", 429)
    assert refused.members == {"cooldownUntil": until.isoformat().replace("+00:00", "Z")}
    assert refused.retry_after_s == pytest.approx(1e-6)
    assert listed.cooldown_until == until
    assert (await purchases.row(purchase), process.vendor.checked) == (before, [])

    await stand_still(owner, until)
    (listed,) = await list_own(process.fulfillment, "user_1")
    assert listed.cooldown_until is None
    (corrected,) = await corrects(process, purchase)
    assert (corrected.state, corrected.github_handle) == (DELIVERED, "octocat")


@pytest.mark.promise("F71")
@pytest.mark.parametrize("state", [PENDING, IN_PROGRESS, DELIVERED])
async def test_a_purchase_that_did_not_fail_is_not_its_buyers_to_move(
    start: Start, purchases: Purchases, state: str
) -> None:
    purchase = await purchases.in_state(state, "typo", user_id="user_1")
    before = await purchases.row(purchase)
    process = await start()
    for handle in ("octocat", "typo"):
        refused = await refusal(corrects(process, purchase, handle))
        assert (refused.code.name, refused.code.status) == ("fulfillment_not_failed", 409)
    assert await purchases.row(purchase) == before
    assert (process.vendor.checked, process.vendor.calls) == ([], [])


@pytest.mark.promise("F72")
async def test_the_first_username_is_taken_at_once(start: Start, purchases: Purchases) -> None:
    purchase = await failed(purchases, None, ago=timedelta(seconds=1))
    process = await start()
    (corrected,) = await corrects(process, purchase)
    assert (corrected.id, corrected.state, corrected.github_handle) == (purchase, DELIVERED, "octocat")


async def test_what_was_taken_back_is_nobodys_to_correct(start: Start, purchases: Purchases) -> None:
    at = await purchases.now()
    process = await start()
    for purchase in (await failed(purchases, revoked_at=at), await expired(purchases, revoked_at=at)):
        refused = await refusal(corrects(process, purchase))
        assert (refused.code.name, refused.code.status) == ("fulfillment_revoked", 409)
    assert (process.vendor.checked, process.vendor.calls) == ([], [])


@pytest.mark.promise("F75")
async def test_the_username_is_checked_as_before_the_payment(start: Start, purchases: Purchases) -> None:
    purchase = await failed(purchases, github_account_id=99)
    before = await purchases.row(purchase)
    process = await start()
    process.vendor.checks |= {"nobody": HandleUnknown("no_such_account"), "away": HandleUnverified("http_503")}
    refused = await refusal(corrects(process, purchase, "nobody"))
    assert (refused.code.name, refused.code.status) == ("github_handle_unknown", 400)
    assert await purchases.row(purchase) == before

    (corrected,) = await corrects(process, purchase, "away")
    assert (corrected.state, corrected.github_handle, corrected.github_account_id) == (DELIVERED, "away", None)


# ------------------------------------------------------------------------------------------------------- the correction
@pytest.mark.promise("F76", "F14")
async def test_a_correction_writes_all_of_it_at_once_and_touches_no_instant(start: Start, purchases: Purchases) -> None:
    slow = {"timeouts_in_row": 6, "deferrals": 2, "next_attempt_at": await purchases.now()}
    purchase = await failed(purchases, attention="unexplained_refusal", claim_token=3, github_account_id=1, **slow)
    before = dict(await purchases.row(purchase))
    process = await start()
    process.vendor.checks["Fixed"] = HandleKnown("fixed", 7)
    await process.gates.close(process.fulfillment.outside.inviter.gate, timedelta(minutes=5), "by hand", "op")
    (corrected,) = await corrects(process, purchase, "Fixed")
    assert corrected.state == PENDING, "behind a closed gate it waits"
    assert dict(await purchases.row(purchase)) == before | {
        "github_handle": "fixed",
        "github_account_id": 7,
        "fulfillment_state": PENDING,
        "edge": "retrigger_failed",
        "claim_token": 4,
        "fulfillment_last_error": None,
        "fulfillment_last_code": None,
        "attention": None,
        "timeouts_in_row": 0,
        "deferrals": 0,
        "next_attempt_at": None,
    }


@pytest.mark.promise("F78")
async def test_the_answer_is_the_whole_list_after_the_flush(start: Start, purchases: Purchases) -> None:
    first, second = await failed(purchases, "typo", age_s=60), await failed(purchases, "tpyo")
    process = await start()
    process.vendor.say("wrong", Says.NO)
    answer = await corrects(process, first, "wrong")
    assert [(one.id, one.state, one.github_handle) for one in answer] == [
        (second, FAILED, "tpyo"),
        (first, FAILED, "wrong"),
    ]
    assert answer[1].cooldown_until is not None
    answer = await corrects(process, second, "right")
    assert [(one.id, one.state) for one in answer] == [(second, DELIVERED), (first, FAILED)]
    assert process.vendor.calls == ["wrong", "right"]


@pytest.mark.promise("F84")
@pytest.mark.parametrize("handle", ["octocat", "OCTOCAT", "hubot"])
async def test_an_invitation_that_ran_out_is_issued_anew_to_whom_its_buyer_says(
    start: Start, purchases: Purchases, handle: str
) -> None:
    purchase = await expired(purchases, github_account_id=None)
    process = await start()
    (corrected,) = await corrects(process, purchase, handle)
    assert (corrected.state, corrected.github_handle, corrected.expired_at) == (DELIVERED, handle, None)
    assert process.vendor.calls == [handle]
    row = await purchases.row(purchase)
    assert (row["accepted_at"], row["invitation_expired_at"]) == (None, None)
    refused = await refusal(corrects(process, purchase, "another"))
    assert refused.code.name == "fulfillment_not_failed", "its new week has just begun"


async def test_a_username_that_stays_keeps_the_account_that_was_pinned_to_it(
    start: Start, purchases: Purchases
) -> None:
    """The name may be a stranger's by now; sending it again is no word on that."""
    purchase = await expired(purchases, "octocat", github_account_id=1)
    process = await start()
    process.vendor.checks["octocat"] = HandleKnown("octocat", 666)
    await process.gates.close(process.fulfillment.outside.inviter.gate, timedelta(minutes=5), "by hand", "op")
    await corrects(process, purchase, "octocat")
    assert (await purchases.row(purchase))["github_account_id"] == 1


# -------------------------------------------------------------------------------------------------------------- racing
async def _retriggered(process: Process, purchase: int) -> None:
    await operator.retrigger(process.fulfillment, purchase, actor="op", reason=None, force=False)


async def _claimed(process: Process, purchase: int) -> None:
    await store.requeue(process.fulfillment.db, purchase, force=False)
    assert await store.claim_oldest(process.fulfillment.db) is not None


async def _put_back(process: Process, purchase: int) -> None:
    """Back to failed, and only the token tells that somebody was here."""
    process.vendor.say("typo", Says.NO)
    await _retriggered(process, purchase)


async def _revoked(process: Process, purchase: int) -> None:
    await process.fulfillment.db.execute("update purchases set revoked_at = rowclaim_now() where id = $1", purchase)


async def _forgotten(process: Process, purchase: int) -> None:
    await blank(process.fulfillment.db, "user_1", dry_run=False)


async def _another_correction(process: Process, purchase: int) -> None:
    process.vendor.before_check = None
    await corrects(process, purchase, "faster")


@pytest.mark.promise("F77")
@pytest.mark.parametrize(
    ("meanwhile", "code"),
    [
        (_retriggered, "fulfillment_not_failed"),
        (_claimed, "fulfillment_not_failed"),
        (_put_back, "fulfillment_cooldown"),
        (_revoked, "fulfillment_revoked"),
        (_another_correction, "fulfillment_not_failed"),
        (_forgotten, "fulfillment_changed"),
    ],
)
async def test_what_was_written_while_the_vendor_was_asked_is_not_overwritten(
    start: Start, purchases: Purchases, meanwhile: Callable[[Process, int], Awaitable[None]], code: str
) -> None:
    purchase = await failed(purchases)
    process = await start()
    other = await start(like=process)
    left: list[dict[str, Any]] = []

    async def before_check(_: str) -> None:
        await meanwhile(other, purchase)
        left.append(dict(await purchases.row(purchase)))

    process.vendor.before_check = before_check
    refused = await refusal(corrects(process, purchase, "octocat"))
    assert refused.code.name == code, "the reason that stands now"
    assert [dict(await purchases.row(purchase))] == left
    assert "octocat" not in process.vendor.calls


async def test_a_change_that_leaves_no_other_reason_is_told_as_such(start: Start, purchases: Purchases) -> None:
    """Re-triggered and failed again, a cooldown ago: the buyer looked at something else than what stands."""
    purchase = await failed(purchases)
    process = await start()
    other = await start(like=process)

    async def before_check(_: str) -> None:
        process.vendor.say("typo", Says.NO)
        await _retriggered(other, purchase)
        await purchases.age(purchase, PAST)

    process.vendor.before_check = before_check
    refused = await refusal(corrects(process, purchase))
    assert (refused.code.name, refused.code.status) == ("fulfillment_changed", 409)
    assert (await purchases.row(purchase))["github_handle"] == "typo"


@pytest.mark.promise("F77")
async def test_of_two_corrections_at_once_one_is_taken(start: Start, purchases: Purchases) -> None:
    """Both have read, both have checked; then both write, over two real connections."""
    process = await start()
    other = await start(like=process)
    for nth in range(25):
        purchase = await failed(purchases, f"typo-{nth}")
        both = asyncio.Barrier(2)

        async def before_check(_: str, both: asyncio.Barrier = both) -> None:
            await both.wait()

        process.vendor.before_check = before_check
        ended = await asyncio.gather(
            corrects(process, purchase, f"left-{nth}"),
            corrects(other, purchase, f"right-{nth}"),
            return_exceptions=True,
        )
        (refused,) = [one for one in ended if isinstance(one, Refusal)]
        assert refused.code.name == "fulfillment_not_failed"
        row = await purchases.row(purchase)
        (called,) = [handle for handle in process.vendor.calls if handle.endswith(f"-{nth}")]
        assert (row["fulfillment_state"], row["github_handle"], row["fulfillment_attempts"]) == (DELIVERED, called, 2)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("user_id", "'user_2'"),
        ("claim_token", "claim_token + 1"),
        ("revoked_at", "rowclaim_now()"),
        ("fulfillment_state", "'in_progress'"),
        ("invitation_expired_at", "null"),
        ("github_handle", "null"),
        ("email", "null"),
    ],
)
async def test_the_write_repeats_every_condition_of_the_read(
    connect: Connect, purchases: Purchases, owner: Connection, column: str, value: str
) -> None:
    purchase = await expired(purchases)
    db = await connect(ROLE)
    read = await store.find_own(db, "user_1", purchase, cooldown=timedelta(0))
    assert read is not None
    async with owner.transaction():
        await owner.execute("set local session_replication_role = replica")
        await owner.execute(f"update purchases set {column} = {value} where id = $1", purchase)
    before = await purchases.row(purchase)
    assert not await store.correct(db, "user_1", read, handle="hubot", account_id=None)
    assert await purchases.row(purchase) == before


async def test_of_two_purchases_that_are_alike_the_one_that_is_named_is_corrected(
    connect: Connect, purchases: Purchases
) -> None:
    """The same mistyped name twice over: what is read of both is equal but for the id."""
    named, other = [await failed(purchases, email="ann@example.com") for _ in range(2)]
    db = await connect(ROLE)
    read = await store.find_own(db, "user_1", named, cooldown=timedelta(0))
    assert read is not None
    before = await purchases.row(other)
    assert await store.correct(db, "user_1", read, handle="octocat", account_id=None)
    assert (await purchases.row(named))["github_handle"] == "octocat"
    assert await purchases.row(other) == before


# --------------------------------------------------------------------------------------------------- others in trouble
@pytest.mark.parametrize("says", [Says.TROUBLE, Says.YOUR_FAULT, Says.WAIT, Says.CUT_OFF])
async def test_the_vendors_trouble_is_not_the_corrections(start: Start, purchases: Purchases, says: Says) -> None:
    purchase = await failed(purchases)
    process = await start()
    process.vendor.say("octocat", says)
    (corrected,) = await corrects(process, purchase)
    assert (corrected.state, corrected.github_handle) == (PENDING, "octocat")


async def test_a_correction_that_could_not_be_read_back_stands(
    start: Start, purchases: Purchases, monkeypatch: pytest.MonkeyPatch
) -> None:
    purchase = await failed(purchases)
    process = await start()

    async def lost(*_: Any, **__: Any) -> Any:
        raise Retryable("database_unavailable")

    monkeypatch.setattr(store, "list_own", lost)
    with pytest.raises(Retryable):
        await corrects(process, purchase)
    assert (await purchases.row(purchase))["fulfillment_state"] == DELIVERED
