"""The flush, in front of any product: this file runs unedited when the gateway is replaced."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from services.fulfillment import store
from services.fulfillment.flow.flush import Stopped
from services.fulfillment.flow.operator import retrigger
from services.fulfillment.machine import FulfillmentState, MailNotSent
from services.kernel.errors import Invariant, Retryable
from tests.fixtures.database import Clock, Connection
from tests.fulfillment.conftest import Process, Purchases, Start
from tests.fulfillment.vendor import Says
from tests.waiting import wait_until

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)


# ------------------------------------------------------------------------------------------------ one row after another
@pytest.mark.promise("F7")
async def test_a_flush_delivers_all_that_is_pending_in_the_order_it_was_bought(
    start: Start, purchases: Purchases
) -> None:
    for handle, age_s in (("third", 30), ("first", 50), ("fifth", 10), ("second", 40), ("fourth", 20)):
        await purchases.add(handle, age_s=age_s)
    process = await start()
    report = await process.fulfillment.flush()
    assert process.vendor.calls == ["first", "second", "third", "fourth", "fifth"]
    assert await purchases.states() == [DELIVERED] * 5
    assert (report.stopped, report.attempted, report.delivered) == (Stopped.DRAINED, 5, 5)


@pytest.mark.promise("F42")
async def test_calls_never_overlap_and_begin_a_second_apart(start: Start, purchases: Purchases) -> None:
    """The second is a setting, and shortened here to a tenth."""
    for _ in range(10):
        await purchases.add()
    process = await start(pace_s=0.1)
    await process.fulfillment.flush()
    assert len(process.vendor.started_at) == 10
    assert process.vendor.in_flight_max == 1
    gaps = [later - earlier for earlier, later in pairwise(process.vendor.started_at)]
    assert min(gaps) > 0.099, "the pace, but for the resolution of the loop's clock"


@pytest.mark.promise("F41", "F62")
async def test_a_purchase_that_cannot_be_delivered_does_not_hold_up_the_next(
    start: Start, purchases: Purchases
) -> None:
    unknown, unnamed, good = (await purchases.add("nobody"), await purchases.add(None), await purchases.add("good"))
    process = await start()
    process.vendor.say("nobody", Says.NO)
    report = await process.fulfillment.flush()
    assert await purchases.states() == [FAILED, FAILED, DELIVERED]
    assert process.vendor.calls == ["nobody", "good"]
    assert (await purchases.row(unnamed))[
        "fulfillment_last_error"
    ] == "No GitHub handle was recorded for this purchase."
    assert (await purchases.row(unnamed))["fulfillment_attempts"] == 1
    assert (await purchases.row(unknown))["fulfillment_last_error"]
    assert (await purchases.row(good))["fulfilled_at"]
    assert (report.failed, report.delivered) == (2, 1)


@pytest.mark.promise("F39")
async def test_a_vendor_that_is_down_costs_one_call_a_flush(start: Start, purchases: Purchases) -> None:
    for handle in ("a", "b", "c"):
        await purchases.add(handle)
    process = await start()
    process.vendor.say("a", Says.TROUBLE)
    report = await process.fulfillment.flush()
    assert process.vendor.calls == ["a"]
    assert await purchases.states() == [PENDING] * 3
    assert await purchases.attempts() == [1, 0, 0]
    assert (report.stopped, report.put_back, report.closed_until) == (Stopped.TRANSIENT, 1, None)


@pytest.mark.promise("F38")
async def test_a_fault_of_ours_is_nobodys_failure(
    start: Start, purchases: Purchases, owner: Connection, clock: Clock
) -> None:
    for handle in ("a", "b", "c"):
        await purchases.add(handle)
    process = await start()
    process.vendor.say("a", Says.YOUR_FAULT, Says.YOUR_FAULT)
    report = await process.fulfillment.flush()
    assert (report.stopped, process.vendor.calls) == (Stopped.CONFIG, ["a"])
    assert await purchases.states() == [PENDING] * 3
    pages = "select dedup_key, seen, resolved_at is not null as over, summary from pages"
    assert [(p["seen"], p["over"]) for p in await owner.fetch(pages)] == [(1, False)]

    # A quarter of an hour nobody calls; then the first trigger tries again, and the page stays the same one.
    assert (await process.fulfillment.flush()).stopped is Stopped.GATE_CLOSED
    await clock.shift(timedelta(minutes=14))
    assert (await process.fulfillment.flush()).stopped is Stopped.GATE_CLOSED
    assert len(process.vendor.calls) == 1
    await clock.shift(timedelta(minutes=1, seconds=1))
    assert (await process.fulfillment.flush()).stopped is Stopped.CONFIG
    assert [(p["seen"], p["over"]) for p in await owner.fetch(pages)] == [(2, False)]

    await clock.shift(timedelta(minutes=16))
    assert (await process.fulfillment.flush()).delivered == 3
    assert [(p["seen"], p["over"]) for p in await owner.fetch(pages)] == [(2, True)]
    assert all("a" not in p["summary"].split() for p in await owner.fetch(pages)), "a page names nobody"


async def test_a_refusal_of_everybody_closes_the_gate_for_everybody(
    start: Start, purchases: Purchases, clock: Clock
) -> None:
    purchase = await purchases.add("a")
    process = await start()
    other = await start(like=process)
    process.vendor.say("a", Says.WAIT)
    report = await process.fulfillment.flush()
    assert (report.stopped, report.put_back) == (Stopped.TRANSIENT, 1)
    assert report.closed_until is not None
    for fulfillment in (process.fulfillment, other.fulfillment):
        closed = await fulfillment.flush()
        assert (closed.stopped, closed.closed_until, closed.attempted) == (Stopped.GATE_CLOSED, report.closed_until, 0)
    assert (await purchases.row(purchase))["fulfillment_attempts"] == 1
    await clock.shift(timedelta(seconds=31))
    assert (await other.fulfillment.flush()).delivered == 1
    assert process.vendor.calls == ["a", "a"]


@pytest.mark.promise("F46")
async def test_the_third_buyer_in_a_row_refused_for_no_known_reason_is_our_fault(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    rows = [await purchases.add(handle) for handle in ("a", "A", None, "b", "c", "d")]
    process = await start()
    for handle in ("a", "A", "b", "c"):
        process.vendor.say(handle, Says.NO_BECAUSE)
    report = await process.fulfillment.flush()
    assert await purchases.states() == [FAILED, FAILED, FAILED, FAILED, PENDING, PENDING]
    assert (report.stopped, report.failed) == (Stopped.CONFIG, 4)
    shown = [(await purchases.row(row))["attention"] is not None for row in rows]
    assert shown == [True, True, False, True, False, False]
    assert await owner.fetchval("select count(*) from pages where resolved_at is null") == 1


async def test_a_delivery_or_another_refusal_in_between_breaks_the_row(start: Start, purchases: Purchases) -> None:
    for handle in ("a", "b", "fine", "c", "nobody", "d"):
        await purchases.add(handle)
    process = await start()
    for handle in ("a", "b", "c", "d"):
        process.vendor.say(handle, Says.NO_BECAUSE)
    process.vendor.say("nobody", Says.NO)
    await process.fulfillment.flush()
    assert await purchases.states() == [FAILED, FAILED, DELIVERED, FAILED, FAILED, FAILED]


# ------------------------------------------------------------------------------------------------------ whose row it is
@pytest.mark.promise("F6")
async def test_two_flushes_take_two_rows_and_do_not_wait_for_each_other(start: Start, purchases: Purchases) -> None:
    await purchases.add("held")
    await purchases.add("free")
    a = await start()
    b = await start(like=a)
    resume = a.vendor.hold_first()
    flush_a = asyncio.create_task(a.fulfillment.flush())
    await wait_until(lambda: a.vendor.calls == ["held"], within_s=10, what="the first flush is in its call")
    async with asyncio.timeout(30):
        report = await b.fulfillment.flush()
    assert report.delivered == 1
    assert await purchases.states() == [IN_PROGRESS, DELIVERED]
    resume.set()
    assert (await flush_a).delivered == 1
    assert await purchases.states() == [DELIVERED, DELIVERED]


async def test_many_flushes_attempt_each_row_exactly_once(start: Start, purchases: Purchases) -> None:
    """Sixteen processes, no pace, again and again: whatever the interleaving, a row is attempted once."""
    first = await start()
    processes = [first, *[await start(like=first) for _ in range(15)]]
    for again in range(1, 5):
        for n in range(20):
            await purchases.add(f"buyer-{again}-{n}")
        reports = await asyncio.gather(*(process.fulfillment.flush() for process in processes))
        assert sum(report.delivered for report in reports) == 20
        assert len(set(first.vendor.calls)) == len(first.vendor.calls) == 20 * again
        assert await purchases.attempts() == [1] * 20 * again


@pytest.mark.promise("F10")
async def test_a_flush_that_lost_its_row_writes_nothing_mails_nobody_and_stops(
    start: Start, purchases: Purchases
) -> None:
    purchase, later = await purchases.add("slow"), await purchases.add("later")
    slow = await start()
    desk = await start(like=slow)
    resume = slow.vendor.hold_first()
    slow.vendor.say("slow", Says.NO, Says.YES)  # attempt 2 is answered first: it gets the refusal
    flush = asyncio.create_task(slow.fulfillment.flush())
    await wait_until(lambda: slow.vendor.calls, within_s=10, what="attempt 1 is in its call")
    await retrigger(desk.fulfillment, purchase, actor="op@desk", reason="looks stuck", force=True)
    settled = await purchases.row(purchase)
    assert (settled["fulfillment_state"], settled["fulfillment_attempts"]) == (FAILED, 2)
    mails = len(desk.post.mails)
    await purchases.add("newer")

    resume.set()
    report = await flush
    assert (report.stopped, report.delivered, report.mails_sent) == (Stopped.LEASE_LOST, 0, 0)
    assert await purchases.row(purchase) == settled
    assert len(desk.post.mails) == mails
    assert (await purchases.row(later))["fulfillment_state"] == DELIVERED  # by the desk's own flush
    assert (await purchases.states())[-1] == PENDING


@pytest.mark.promise("F11")
async def test_a_vendor_is_never_called_inside_a_transaction(start: Start, purchases: Purchases) -> None:
    await purchases.add()
    process = await start()
    with pytest.raises(Invariant, match="vendor_call_in_transaction"):
        async with process.fulfillment.db.transaction():
            await process.fulfillment.flush()
    assert (process.vendor.calls, process.vendor.questions) == ([], [])


async def test_callers_during_a_flush_share_the_one_that_follows(start: Start, purchases: Purchases) -> None:
    await purchases.add("first")
    process = await start()
    resume = process.vendor.hold_first()
    running = asyncio.create_task(process.fulfillment.flush())
    await wait_until(lambda: process.vendor.calls == ["first"], within_s=10, what="the first flush is in its call")
    waiting = [asyncio.create_task(process.fulfillment.flush()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    resume.set()
    first, *shared = await asyncio.gather(running, *waiting)
    assert (first.delivered, [report.attempted for report in shared]) == (1, [0, 0, 0])
    assert shared[0] is shared[1] is shared[2]
    assert process.vendor.in_flight_max == 1


async def test_a_stopping_process_finishes_the_attempt_in_hand_and_claims_nothing_more(
    start: Start, purchases: Purchases
) -> None:
    await purchases.add("first")
    await purchases.add("second")
    process = await start()

    async def before(handle: str) -> None:
        process.stopping.set()

    process.vendor.before = before
    report = await process.fulfillment.flush()
    assert (report.stopped, report.delivered, report.mails_sent) == (Stopped.STOPPING, 1, 1)
    assert await purchases.states() == [DELIVERED, PENDING]
    assert (await process.fulfillment.flush()).stopped is Stopped.STOPPING


async def test_a_caller_that_goes_away_does_not_take_the_flush_with_it(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add()
    process = await start()
    resume = process.vendor.hold_first()
    caller = asyncio.create_task(process.fulfillment.flush())
    await wait_until(lambda: process.vendor.calls, within_s=10, what="the flush is in its call")
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    resume.set()
    assert (await process.fulfillment.flush()).attempted == 0
    assert (await purchases.row(purchase))["fulfillment_state"] == DELIVERED


# --------------------------------------------------------------------------------------------------------- time passing
@pytest.mark.promise("F15")
async def test_every_delivery_moves_its_instant_forward(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add()
    process = await start()
    await process.fulfillment.flush()
    await purchases.age(purchase, timedelta(hours=1))
    before = (await purchases.row(purchase))["fulfilled_at"]
    process.vendor.say("octocat", Says.HAD_IT)
    await retrigger(process.fulfillment, purchase, actor="op@desk", reason="asked again", force=True)
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["already_had_access"]) == (DELIVERED, True)
    assert row["fulfilled_at"] >= before + timedelta(minutes=59)


@pytest.mark.promise("F48")
async def test_a_vendor_that_hangs_ends_with_the_bound(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add("hung")
    await purchases.add("next")
    process = await start(bound_s=0.2)
    process.vendor.say("hung", Says.NOTHING)
    async with asyncio.timeout(5):
        report = await process.fulfillment.flush()
    assert (report.stopped, report.attempted) == (Stopped.TRANSIENT, 1)
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["ask_first"], row["timeouts_in_row"]) == (PENDING, True, 1)


@pytest.mark.promise("F40")
async def test_no_number_of_outages_fails_a_purchase_or_costs_it_its_place(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add("patient")
    process = await start()
    process.vendor.say("patient", *[Says.TROUBLE] * 200)
    for _ in range(200):
        await process.fulfillment.flush()
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["fulfillment_attempts"], row["next_attempt_at"]) == (PENDING, 200, None)
    await purchases.add("younger")
    process.vendor.calls.clear()
    await process.fulfillment.flush()
    assert process.vendor.calls == ["patient", "younger"]


async def _time_out(start: Start, purchases: Purchases, times: int, *, others_at: int | None) -> tuple[int, Process]:
    """A purchase whose calls always time out; before attempt `others_at`, another purchase is delivered."""
    slow = await purchases.add("slow", age_s=60)
    process = await start(bound_s=0.1)
    for nth in range(1, times + 1):
        if nth == others_at:
            await purchases.add("other", fulfillment_state=DELIVERED, fulfilled_at=await purchases.now())
        process.vendor.say("slow", Says.NOTHING)
        await process.fulfillment.flush()
    process.vendor.take_back("slow")  # an attempt can run into so short a bound before it asks
    return slow, process


@pytest.mark.promise("F40")
async def test_a_row_that_alone_times_out_is_put_off_and_tried_after_the_others(
    start: Start, purchases: Purchases, owner: Connection, clock: Clock
) -> None:
    slow, process = await _time_out(start, purchases, 5, others_at=3)
    row = await purchases.row(slow)
    assert (row["fulfillment_state"], row["timeouts_in_row"], row["deferrals"]) == (PENDING, 5, 1)
    assert row["next_attempt_at"] is not None
    assert await owner.fetchval("select why from desk.fulfillment_attention where id = $1::bigint::text", slow)

    await purchases.add("good-1")
    await purchases.add("good-2")
    process = await start(like=process, bound_s=2)
    process.vendor.calls.clear()
    process.vendor.say("slow", Says.NOTHING)
    await process.fulfillment.flush()
    assert process.vendor.calls == ["good-1", "good-2", "slow"], "due rows first, the deferred one once, and last"
    assert (await purchases.row(slow))["deferrals"] == 2

    # Its instant come, it is due like any other, and oldest first again.
    await purchases.add("good-3")
    await clock.shift(timedelta(minutes=2))
    process.vendor.calls.clear()
    await process.fulfillment.flush()
    assert process.vendor.calls == ["slow", "good-3"]
    row = await purchases.row(slow)
    assert (row["fulfillment_state"], row["timeouts_in_row"], row["deferrals"], row["next_attempt_at"]) == (
        DELIVERED,
        0,
        0,
        None,
    )


async def test_of_several_deferred_rows_a_flush_tries_the_oldest_alone(start: Start, purchases: Purchases) -> None:
    later = await purchases.now() + timedelta(minutes=5)
    for handle, age_s in (("younger", 10), ("oldest", 30), ("older", 20)):
        await purchases.add(handle, age_s=age_s, next_attempt_at=later)
    await purchases.add("due")
    process = await start()
    await process.fulfillment.flush()
    assert process.vendor.calls == ["due", "oldest"]
    await process.fulfillment.flush()
    assert process.vendor.calls == ["due", "oldest", "older"]


async def test_a_deferral_doubles_from_half_a_minute_to_a_quarter_of_an_hour(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    slow, process = await _time_out(start, purchases, 4, others_at=4)
    deferred: list[float] = []
    for _ in range(7):
        process.vendor.say("slow", Says.NOTHING)
        await process.fulfillment.flush()
        deferred.append(
            await owner.fetchval(
                "select extract(epoch from next_attempt_at - rowclaim_now())::float8 from purchases where id = $1", slow
            )
        )
        # Another is delivered between any five attempts.
        await owner.execute("update purchases set fulfilled_at = rowclaim_now() where github_handle = 'other'")
    assert [round(seconds / 30) * 30 for seconds in deferred] == [30, 60, 120, 240, 480, 900, 900]


@pytest.mark.parametrize(("times", "others_at"), [(4, 2), (7, None), (7, 2)])
async def test_an_outage_defers_nobody(start: Start, purchases: Purchases, times: int, others_at: int | None) -> None:
    """Fewer than five timeouts, none delivered meanwhile, or delivered before the latest five: it keeps its place."""
    slow, process = await _time_out(start, purchases, times, others_at=others_at)
    row = await purchases.row(slow)
    assert (row["timeouts_in_row"], row["deferrals"], row["next_attempt_at"]) == (times, 0, None)
    assert len(row["timeout_starts"]) == min(times, 5)
    process.vendor.say("slow", Says.TROUBLE)
    await process.fulfillment.flush()
    row = await purchases.row(slow)
    assert (row["timeouts_in_row"], row["timeout_starts"]) == (0, []), "an answer ends the row of timeouts"


async def test_after_an_answer_that_was_lost_nothing_is_delivered_twice(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add("unlucky")
    process = await start()
    process.vendor.say("unlucky", Says.CUT_OFF, Says.YES)
    assert (await process.fulfillment.flush()).stopped is Stopped.TRANSIENT
    assert (await purchases.row(purchase))["ask_first"] is True
    assert (await process.fulfillment.flush()).delivered == 1
    assert process.vendor.delivered == ["unlucky"]
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["ask_first"], row["fulfillment_attempts"]) == (DELIVERED, False, 2)


# -------------------------------------------------------------------------------------------------------------- mails
@pytest.mark.promise("F53")
@pytest.mark.parametrize("says", [Says.NO, Says.NO_BECAUSE, Says.TROUBLE, Says.WAIT, Says.YOUR_FAULT, Says.CUT_OFF])
async def test_no_mail_tells_of_what_did_not_happen(start: Start, purchases: Purchases, says: Says) -> None:
    await purchases.add("a")
    await purchases.add(None)
    process = await start()
    process.vendor.say("a", says)
    report = await process.fulfillment.flush()
    assert process.post.mails == []
    assert (report.delivered, report.mails_sent, report.mails_not_sent) == (0, 0, 0)


async def test_a_mail_that_fails_costs_nothing(start: Start, purchases: Purchases) -> None:
    for handle in ("a", "b"):
        await purchases.add(handle)
    unreachable = await purchases.add("c", email=None)
    process = await start()
    process.post.answer = MailNotSent("550")
    report = await process.fulfillment.flush()
    assert await purchases.states() == [DELIVERED] * 3
    assert (report.delivered, report.mails_sent, report.mails_not_sent) == (3, 0, 2)
    assert unreachable not in {mail.purchase_id for mail in process.post.mails}


async def test_the_mail_says_what_the_product_says(start: Start, purchases: Purchases) -> None:
    purchase = await purchases.add("octocat", email="octocat@example.com")
    process = await start()
    await process.fulfillment.flush()
    (mail,) = process.post.mails
    assert (mail.purchase_id, mail.attempt, mail.to) == (purchase, 1, "octocat@example.com")
    assert mail.attempted_at == (await purchases.row(purchase))["fulfillment_attempted_at"]
    assert mail.instructions


# ------------------------------------------------------------------------------------- a database away for a moment
async def test_an_outcome_is_written_when_the_database_is_back(
    start: Start, purchases: Purchases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up at the first refusal, the row would wait for a person, and the buyer for what they have."""
    purchase = await purchases.add()
    outages = [Retryable("database_unavailable"), Retryable("database_busy")]

    async def deliver(*args: Any) -> bool:
        if outages:
            raise outages.pop()
        return await real(*args)

    real = store.deliver
    monkeypatch.setattr(store, "deliver", deliver)
    monkeypatch.setattr("services.kernel.worker.BACKOFF_MIN_S", 0.001)
    process = await start()
    report = await process.fulfillment.flush()
    assert (report.stopped, report.delivered, report.mails_sent) == (Stopped.DRAINED, 1, 1)
    assert (await purchases.row(purchase))["fulfillment_state"] == DELIVERED
    assert process.vendor.calls == ["octocat"]


async def test_a_refusal_that_cannot_be_weighed_goes_back(
    start: Start, purchases: Purchases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unread(*_: Any, **__: Any) -> list[store.FailedLogin]:
        raise Retryable("database_unavailable")

    monkeypatch.setattr(store, "list_failed_in_a_row", unread)
    await purchases.add("odd")
    process = await start()
    process.vendor.say("odd", Says.NO_BECAUSE)
    report = await process.fulfillment.flush()
    assert (report.stopped, await purchases.states()) == (Stopped.TRANSIENT, [PENDING])
