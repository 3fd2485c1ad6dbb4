"""From a stored event: the Session is fetched, the purchase recorded once, the flush run, the verdict given."""

import asyncio
import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from services.fulfillment import store
from services.fulfillment.consumer import FulfillmentSettings
from services.fulfillment.flow import events
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.machine import (
    Charge,
    Fetched,
    FulfillmentState,
    SessionMisconfigured,
    SessionTrouble,
    TakenBack,
)
from services.ingress.store import Arrival, arrive
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, NotOurs, Parked, PutBack, Verdict
from services.kernel.inbox import Subscription, subscribe
from services.operations.store import owe_missing
from tests.fixtures.database import Clock, Connect, Connection
from tests.fulfillment.conftest import Process, Purchases, Start
from tests.fulfillment.vendor import Says

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
COMPLETED, SUCCEEDED = "checkout.session.completed", "checkout.session.async_payment_succeeded"
REFUNDED, DISPUTED = "charge.refunded", "charge.dispute.created"
BACK, OURS = Charge("pi_1", frozenset(TakenBack)), Charge("pi_1", frozenset())


def event(session_id: str, *, kind: str = COMPLETED, event_id: int = 1, attempt: int = 1, **embedded: Any) -> Delivery:
    """A delivery as the inbox hands it over; `embedded`: what the body claims about the Session."""
    session = {"object": "checkout.session", "id": session_id} | embedded
    body = {"id": f"evt_{event_id}", "type": kind, "data": {"object": session}}
    return Delivery(event_id, 1, attempt, "stripe", f"evt_{event_id}", kind, json.dumps(body).encode())


def about_charge(kind: str = REFUNDED, *, event_id: int = 9, attempt: int = 1, **embedded: Any) -> Delivery:
    """An event about the charge `ch_1`; `embedded`: what else its body claims."""
    about = (
        {"object": "dispute", "id": "du_1", "charge": "ch_1"}
        if kind == DISPUTED
        else {"object": "charge", "id": "ch_1"}
    )
    body = {"id": f"evt_{event_id}", "type": kind, "data": {"object": about | embedded}}
    return Delivery(event_id, 1, attempt, "stripe", f"evt_{event_id}", kind, json.dumps(body).encode())


def from_clerk(kind: str, body: bytes | None = b"{}", *, event_id: int = 7) -> Delivery:
    return Delivery(event_id, 1, 1, "clerk", f"msg_{event_id}", kind, body)


async def handled(process: Process, *batch: Delivery) -> list[Verdict]:
    verdicts = await events.handle(process.fulfillment, batch)
    assert set(verdicts) == {delivery.event_id for delivery in batch}
    return [verdicts[delivery.event_id] for delivery in batch]


# ------------------------------------------------------------------------------------------------- from event to access
@pytest.mark.promise("F20")
async def test_the_purchase_is_committed_before_the_first_call(start: Start, owner: Connection) -> None:
    process = await start()
    process.sessions.put("cs_test_paid")
    seen: list[str] = []

    async def before(handle: str) -> None:
        seen.append(
            await owner.fetchval("select fulfillment_state from purchases where stripe_session_id = 'cs_test_paid'")
        )

    process.vendor.before = before
    assert await handled(process, event("cs_test_paid")) == [Done()]
    assert seen == [IN_PROGRESS]


@pytest.mark.promise("F56")
async def test_what_is_recorded_is_the_session_fetched_again(start: Start, owner: Connection) -> None:
    process = await start()
    process.sessions.put(
        "cs_test_1",
        metadata={"rowclaim_slice": "fulfillment", "github_username": "Octo-Cat", "github_account_id": "583231"},
        customer_details=None,
        customer_email="given@example.com",
    )
    told = {"metadata": {"rowclaim_slice": "fulfillment", "github_username": "mallory"}, "payment_status": "unpaid"}
    await handled(process, event("cs_test_1", **told))
    assert process.sessions.asked == ["cs_test_1"]
    row = await owner.fetchrow("select * from purchases")
    assert (row["github_handle"], row["github_account_id"], row["email"]) == ("Octo-Cat", 583231, "given@example.com")
    assert (row["user_id"], row["amount_minor"], row["currency"]) == ("user_1", 4900, "usd")


@pytest.mark.promise("F21")
async def test_a_session_delivered_five_times_is_one_purchase_and_one_invite(
    start: Start, purchases: Purchases
) -> None:
    """Two of them at the same instant in two processes, one beside another kind of event about the same Session."""
    a = await start()
    b = await start(like=a)
    a.sessions.put("cs_test_1")
    await asyncio.gather(handled(a, event("cs_test_1", event_id=1)), handled(b, event("cs_test_1", event_id=2)))
    await handled(a, event("cs_test_1", event_id=3), event("cs_test_1", event_id=4, kind=SUCCEEDED))
    assert await handled(b, event("cs_test_1", event_id=1)) == [Done()]
    assert await purchases.states() == [DELIVERED]
    assert a.vendor.calls == ["octocat"]


@pytest.mark.promise("F31")
async def test_any_event_serves_every_pending_purchase(start: Start, purchases: Purchases) -> None:
    process = await start()
    process.sessions.put("cs_test_a", metadata={"rowclaim_slice": "fulfillment", "github_username": "a"})
    process.sessions.put("cs_test_b", metadata={"rowclaim_slice": "fulfillment", "github_username": "b"})
    process.vendor.say("a", Says.TROUBLE)
    await handled(process, event("cs_test_a", event_id=1))
    assert await purchases.states() == [PENDING]
    assert await handled(process, event("cs_test_b", event_id=2)) == [Done()]
    assert await purchases.states() == [DELIVERED, DELIVERED]
    assert process.vendor.calls == ["a", "a", "b"]


async def test_a_vendor_in_trouble_never_fails_the_event_that_caused_the_flush(
    start: Start, purchases: Purchases
) -> None:
    process = await start()
    process.sessions.put("cs_test_1")
    process.vendor.say("octocat", Says.YOUR_FAULT)
    assert await handled(process, event("cs_test_1")) == [Done()]
    assert await purchases.states() == [PENDING]


async def test_an_unpaid_session_owes_nothing_until_it_is_paid(start: Start, purchases: Purchases) -> None:
    process = await start()
    process.sessions.put("cs_test_1", payment_status="unpaid")
    assert await handled(process, event("cs_test_1")) == [Done()]
    assert (await purchases.states(), process.vendor.calls) == ([], [])
    process.sessions.put("cs_test_1", payment_status="paid")
    assert await handled(process, event("cs_test_1", kind=SUCCEEDED, event_id=2)) == [Done()]
    assert process.vendor.calls == ["octocat"]


async def test_a_session_with_nothing_to_pay_is_a_purchase(start: Start, purchases: Purchases) -> None:
    process = await start()
    process.sessions.put("cs_test_1", payment_status="no_payment_required", amount_total=0)
    await handled(process, event("cs_test_1"))
    assert await purchases.states() == [DELIVERED]


async def test_a_session_without_a_username_is_a_purchase_that_waits_for_one(
    start: Start, purchases: Purchases
) -> None:
    process = await start()
    process.sessions.put("cs_test_1", metadata={"rowclaim_slice": "fulfillment"})
    process.sessions.put("cs_test_2", metadata={"rowclaim_slice": "fulfillment", "github_username": ""})
    await handled(process, event("cs_test_1"), event("cs_test_2", event_id=2))
    assert await purchases.states() == [FAILED, FAILED]
    assert (process.vendor.calls, process.vendor.questions) == ([], [])


# --------------------------------------------------------------------------------------------- a payment was taken back
@pytest.mark.parametrize(("kind", "why"), [(REFUNDED, "refunded"), (DISPUTED, "disputed")])
async def test_what_was_taken_back_before_the_invitation_is_never_claimed(
    start: Start, purchases: Purchases, kind: str, why: str
) -> None:
    purchase = await purchases.add("octocat", stripe_payment_id="pi_1")
    await purchases.add("hubot", stripe_payment_id="pi_2")
    process = await start()
    process.sessions.charges["ch_1"] = BACK
    assert await handled(process, about_charge(kind)) == [Done()]
    await process.fulfillment.flush()
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["revoked_why"], process.vendor.calls) == (PENDING, why, ["hubot"])
    assert row["revoked_at"] is not None


async def test_the_charge_decides_and_not_what_the_event_says_of_it(start: Start, purchases: Purchases) -> None:
    """A part of the money went back, or the event is old: the charge as it is now is wholly ours."""
    purchase = await purchases.add("octocat", stripe_payment_id="pi_1")
    process = await start()
    process.sessions.charges["ch_1"] = OURS
    assert await handled(process, about_charge(refunded=True, amount_refunded=4900, disputed=True)) == [Done()]
    assert (await purchases.row(purchase))["revoked_at"] is None
    process.sessions.charges["ch_1"] = BACK
    assert await handled(process, about_charge(refunded=False, payment_intent="pi_other")) == [Done()]
    assert (await purchases.row(purchase))["revoked_at"] is not None


@pytest.mark.parametrize("refund_first", [True, False])
@pytest.mark.parametrize("one_batch", [True, False])
async def test_refund_and_checkout_end_alike_in_either_order(
    start: Start, purchases: Purchases, owner: Connection, refund_first: bool, one_batch: bool
) -> None:
    process = await start()
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = BACK, "cs_test_1"
    batch = [about_charge(), event("cs_test_1")]
    batch = batch if refund_first else batch[::-1]
    process.stopping.clear()
    if one_batch:
        assert await handled(process, *batch) == [Done(), Done()]
    else:
        for one in batch:
            assert await handled(process, one) == [Done()]
    row = await owner.fetchrow("select * from purchases")
    assert (row["stripe_payment_id"], row["revoked_why"]) == ("pi_1", "refunded")
    assert (row["github_handle"], row["user_id"], row["email"]) == ("octocat", "user_1", "buyer@example.com")
    delivered_before = not refund_first and not one_batch
    assert row["fulfillment_state"] == (DELIVERED if delivered_before else PENDING)
    assert process.vendor.calls == (["octocat"] if delivered_before else [])
    why = await owner.fetchval("select why from desk.fulfillment_attention")
    assert why == "refunded", "listed, and never taken back by a machine"


async def test_a_refund_whose_purchase_is_not_recorded_leaves_no_instant_to_claim_it(
    start: Start, purchases: Purchases, connect: Connect
) -> None:
    """Another process flushes all the while: recorded and marked are one commit."""
    process = await start()
    other = await start(like=process)
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = BACK, "cs_test_1"
    done = asyncio.create_task(handled(process, about_charge()))
    while not done.done():
        await other.fulfillment.flush()
    await other.fulfillment.flush()
    assert await done == [Done()]
    assert (await purchases.states(), process.vendor.calls) == ([PENDING], [])


async def test_an_attempt_in_hand_is_finished_and_its_purchase_listed(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    purchase = await purchases.add("octocat", stripe_payment_id="pi_1")
    process = await start()
    process.sessions.charges["ch_1"] = BACK

    async def before(handle: str) -> None:
        await handled(process, about_charge())

    process.vendor.before = before
    await process.fulfillment.flush()
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["revoked_why"]) == (DELIVERED, "refunded")
    assert await owner.fetchval("select why from desk.fulfillment_attention") == "refunded"


@pytest.mark.parametrize("order", [(DISPUTED, REFUNDED), (REFUNDED, DISPUTED), (REFUNDED, REFUNDED)])
async def test_the_first_instant_is_kept_and_the_word_that_is_final(
    start: Start, purchases: Purchases, clock: Clock, order: tuple[str, str]
) -> None:
    """A dispute can be won; a person who judges that must see that the money went back all the same."""
    purchase = await purchases.add(
        "octocat", stripe_payment_id="pi_1", fulfillment_state=FAILED, fulfillment_last_error="no"
    )
    process = await start()
    process.sessions.charges["ch_1"] = BACK
    await handled(process, about_charge(order[0]))
    first = await purchases.row(purchase)
    assert first["revoked_why"] == events.TAKEN_BACK[order[0]]
    await clock.shift(timedelta(days=3))
    await handled(process, about_charge(order[1]), about_charge(DISPUTED, event_id=10))
    again = await purchases.row(purchase)
    assert (again["revoked_at"], again["revoked_why"]) == (first["revoked_at"], "refunded")


@pytest.mark.parametrize(
    ("kind", "how", "why"),
    [
        (REFUNDED, TakenBack.DISPUTED, None),
        (DISPUTED, TakenBack.REFUNDED, None),
        (REFUNDED, TakenBack.REFUNDED, "refunded"),
        (DISPUTED, TakenBack.DISPUTED, "disputed"),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
async def test_an_event_says_what_it_is_about_and_no_more(
    start: Start, purchases: Purchases, owner: Connection, kind: str, how: TakenBack, why: str | None, recorded: bool
) -> None:
    """A part goes back of a payment whose dispute was won, and which a person has reinstated: it stays so."""
    process = await start()
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = Charge("pi_1", frozenset({how})), "cs_test_1"
    if recorded:
        await purchases.add("octocat", stripe_session_id="cs_test_1", stripe_payment_id="pi_1")
    assert await handled(process, about_charge(kind)) == [Done()]
    assert await owner.fetchval("select revoked_why from purchases") == why


async def test_a_purchase_recorded_before_payments_were_kept_is_found_by_its_session(
    start: Start, purchases: Purchases
) -> None:
    purchase = await purchases.add("octocat", stripe_session_id="cs_test_1")
    another = await purchases.add("hubot", stripe_session_id="cs_test_2")
    process = await start()
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = BACK, "cs_test_1"
    assert await handled(process, about_charge()) == [Done()]
    row = await purchases.row(purchase)
    assert (row["stripe_payment_id"], row["revoked_why"]) == ("pi_1", "refunded")
    assert (await purchases.row(another))["revoked_at"] is None


@pytest.mark.parametrize(
    ("session", "verdict"),
    [
        (None, NotOurs()),
        ({"metadata": {"rowclaim_slice": "rewards"}}, NotOurs()),
        ({"metadata": {}}, Parked("unmarked_object")),
        ({"payment_status": "unpaid"}, Done()),
        ({"amount_total": "a lot"}, Parked("unreadable_session")),
    ],
)
async def test_a_charge_of_no_session_of_ours_is_anothers_or_shown(
    start: Start, purchases: Purchases, session: dict[str, Any] | None, verdict: Verdict
) -> None:
    process = await start()
    process.sessions.charges["ch_1"] = BACK
    if session is not None:
        process.sessions.put("cs_test_1", **session)
        process.sessions.paid_in["pi_1"] = "cs_test_1"
    assert await handled(process, about_charge()) == [verdict]
    assert await purchases.states() == []


async def test_a_charge_without_a_payment_is_no_checkouts(start: Start) -> None:
    process = await start()
    process.sessions.charges["ch_1"] = Charge(None, frozenset(TakenBack))
    assert await handled(process, about_charge()) == [NotOurs()]


async def test_an_unknown_charge_is_shown(start: Start) -> None:
    process = await start()
    assert await handled(process, about_charge()) == [Parked("unknown_charge")]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (REFUNDED, b"nope"),
        (REFUNDED, b'{"data": {"object": {"object": "charge", "id": "../v1/refunds"}}}'),
        (REFUNDED, b'{"data": {"object": {"object": "checkout.session", "id": "cs_1"}}}'),
        (DISPUTED, b'{"data": {"object": {"object": "dispute", "id": "du_1"}}}'),
        (DISPUTED, None),
    ],
)
async def test_a_body_without_a_charge_is_shown_and_nobody_is_asked(
    start: Start, kind: str, body: bytes | None
) -> None:
    process = await start()
    assert await handled(process, Delivery(1, 1, 1, "stripe", "evt_1", kind, body)) == [Parked("unreadable_body")]
    assert process.sessions.asked == []


@pytest.mark.parametrize("asking", ["charge", "session"])
async def test_a_charge_that_cannot_be_read_now_is_tried_again(
    start: Start, purchases: Purchases, owner: Connection, asking: str
) -> None:
    process = await start()

    def says(answer: SessionTrouble | SessionMisconfigured) -> None:
        if asking == "charge":
            process.sessions.charges["ch_1"] = answer
        else:
            process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = BACK, "cs_test_1"
            process.sessions.found["cs_test_1"] = answer

    says(SessionTrouble("no_answer"))
    assert await handled(process, about_charge(attempt=3)) == [PutBack(timedelta(seconds=120))]
    assert await process.gates.closed_until("stripe") is None
    says(SessionMisconfigured("401"))
    assert await handled(process, about_charge()) == [PutBack(timedelta(seconds=30))]
    assert await process.gates.closed_until("stripe") is not None
    assert [p["dedup_key"] for p in await owner.fetch("select dedup_key from pages")] == ["fulfillment:stripe"]
    assert await purchases.states() == []


async def test_what_a_batch_points_at_is_fetched_once(start: Start) -> None:
    process = await start()
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"] = BACK
    batch = [
        event("cs_test_1"),
        event("cs_test_1", kind=SUCCEEDED, event_id=2),
        about_charge(event_id=3),
        about_charge(DISPUTED, event_id=4),
    ]
    assert await handled(process, *batch) == [Done()] * 4
    assert process.sessions.asked == ["cs_test_1", "ch_1"]


async def test_a_session_found_by_its_payment_is_not_fetched_again(start: Start, purchases: Purchases) -> None:
    process = await start()
    process.sessions.put("cs_test_1", payment_intent="pi_1")
    process.sessions.charges["ch_1"], process.sessions.paid_in["pi_1"] = BACK, "cs_test_1"
    assert await handled(process, about_charge(), event("cs_test_1")) == [Done()] * 2
    assert process.sessions.asked == ["ch_1", "cs_test_1"]
    assert await purchases.states() == [PENDING]


# ---------------------------------------------------------------------------------------------- a user came or changed
@pytest.mark.promise("F23")
@pytest.mark.parametrize("kind", ["user.created", "user.updated"])
async def test_a_user_who_came_or_changed_is_a_reason_to_flush(start: Start, purchases: Purchases, kind: str) -> None:
    await purchases.add("octocat")
    process = await start()
    process.vendor.say("octocat", Says.TROUBLE)
    await process.fulfillment.flush()
    assert await purchases.states() == [PENDING]
    assert await handled(process, from_clerk(kind)) == [Done()]
    assert await purchases.states() == [DELIVERED]


@pytest.mark.promise("F24")
@pytest.mark.parametrize("kind", ["user.created", "user.updated"])
async def test_clerk_writes_nothing_into_a_purchase(start: Start, purchases: Purchases, kind: str) -> None:
    """Neither into a parked one of that very user, nor into one without an owner that has their address."""
    parked = await purchases.add(
        None, user_id="user_1", fulfillment_state=FAILED, edge="refuse", fulfillment_last_error="No handle."
    )
    nobodys = await purchases.add(
        "mallory", email="buyer@example.com", fulfillment_state=FAILED, edge="refuse", fulfillment_last_error="no"
    )
    before = [await purchases.row(parked), await purchases.row(nobodys)]
    user = {
        "id": "user_1",
        "username": "octocat",
        "email_addresses": [{"id": "idn_1", "email_address": "buyer@example.com"}],
        "external_accounts": [{"provider": "oauth_github", "username": "octocat"}],
    }
    process = await start()
    for body in (json.dumps({"type": kind, "data": user}).encode(), b"nope", None):
        assert await handled(process, from_clerk(kind, body)) == [Done()]
    assert [await purchases.row(parked), await purchases.row(nobodys)] == before
    assert (process.vendor.calls, process.vendor.questions, process.sessions.asked) == ([], [], [])


# ------------------------------------------------------------------------------------------------- what stands in sight
@pytest.mark.parametrize(
    ("session", "verdict"),
    [
        ({"metadata": {"rowclaim_slice": "rewards"}}, NotOurs()),
        ({"metadata": {"rowclaim_slice": "rewards"}, "payment_status": "who_knows"}, NotOurs()),
        ({"metadata": {}}, Parked("unmarked_object")),
        ({"metadata": None}, Parked("unmarked_object")),
        ({"metadata": {"rowclaim_slice": ""}}, Parked("unmarked_object")),
        ({"payment_status": "who_knows"}, Parked("unreadable_session")),
        ({"payment_status": None}, Parked("unreadable_session")),
        ({"object": "subscription"}, Parked("unreadable_session")),
        ({"amount_total": "a lot"}, Parked("unreadable_session")),
        ({"amount_total": 2**63}, Parked("unreadable_session")),
        ({"client_reference_id": "user\0"}, Parked("unreadable_session")),
        (
            {"metadata": {"rowclaim_slice": "fulfillment", "github_username": "a\ud800"}},
            Parked("unreadable_session"),
        ),
        (
            {"metadata": {"rowclaim_slice": "fulfillment", "github_account_id": "octocat"}},
            Parked("unreadable_session"),
        ),
    ],
)
async def test_a_session_is_ours_anothers_or_shown_to_a_person(
    start: Start, purchases: Purchases, session: dict[str, Any], verdict: Verdict
) -> None:
    process = await start()
    process.sessions.put("cs_test_1", **session)
    assert await handled(process, event("cs_test_1")) == [verdict]
    assert (await purchases.states(), process.vendor.calls) == ([], [])


@pytest.mark.parametrize("session", [[], "nope", None, {}])
async def test_an_answer_that_is_no_session_is_shown(start: Start, session: object) -> None:
    process = await start()
    process.sessions.found["cs_test_1"] = Fetched(session)
    assert await handled(process, event("cs_test_1")) == [Parked("unreadable_session")]


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"nope",
        b"[]",
        b"{}",
        b'{"data": {"object": {"object": "checkout.session"}}}',
        b'{"data": {"object": {"object": "checkout.session", "id": "../v1/refunds"}}}',
        b'{"data": {"object": {"object": "checkout.session", "id": "cs_a/b"}}}',
        b'{"data": {"object": {"object": "invoice", "id": "cs_test_1"}}}',
        b'\xff{"data": {"object": {"object": "checkout.session", "id": "cs_test_1"}}}',
    ],
)
async def test_a_body_without_a_session_id_is_shown_and_nobody_is_asked(start: Start, body: bytes | None) -> None:
    process = await start()
    assert await handled(process, Delivery(1, 1, 1, "stripe", "evt_1", COMPLETED, body)) == [Parked("unreadable_body")]
    assert process.sessions.asked == []


# ----------------------------------------------------------------------------------------------------- Stripe's trouble
async def test_a_session_that_cannot_be_fetched_is_tried_again_later_and_later(start: Start) -> None:
    process = await start()
    process.sessions.found["cs_test_1"] = SessionTrouble("no_answer")
    waits = [await handled(process, event("cs_test_1", attempt=attempt)) for attempt in (1, 2, 3, 5, 6, 60)]
    assert waits == [[PutBack(timedelta(seconds=s))] for s in (30, 60, 120, 480, 900, 900)]


async def test_an_unknown_session_is_shown(start: Start) -> None:
    process = await start()
    assert await handled(process, event("cs_test_1")) == [Parked("unknown_session")]


async def test_a_key_that_stripe_refuses_closes_its_gate_and_wakes_somebody(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    process = await start()
    process.sessions.put("cs_test_good")
    process.sessions.found["cs_test_1"] = SessionMisconfigured("401")
    assert await handled(process, event("cs_test_1"), event("cs_test_good", event_id=2)) == [
        PutBack(timedelta(seconds=30)),
        Done(),
    ]
    assert await process.gates.closed_until("stripe") is not None
    assert [p["dedup_key"] for p in await owner.fetch("select dedup_key from pages")] == ["fulfillment:stripe"]
    assert await purchases.states() == [DELIVERED]


async def test_a_session_fetched_ends_the_page_about_the_key(start: Start, owner: Connection) -> None:
    process = await start()
    process.sessions.found["cs_test_1"] = SessionMisconfigured("401")
    await handled(process, event("cs_test_1"))
    process.sessions.put("cs_test_1")
    await handled(process, event("cs_test_1"))
    assert await owner.fetchval("select resolved_at is not null from pages where dedup_key = 'fulfillment:stripe'")


# ------------------------------------------------------------------------------------------------- the delivery's life
async def _subscribed(process: Process) -> DeliveryWorker:
    """The worker of a process that is owed what arrives; nobody rings it."""
    db = process.fulfillment.db
    await subscribe(db, "fulfillment", [Subscription("stripe", COMPLETED)])
    return DeliveryWorker(
        db, "fulfillment", partial(events.handle, process.fulfillment), lease=timedelta(seconds=30), batch_max=20
    )


async def _store(connect: Connect, session_id: str, event_id: str) -> None:
    ingress = await connect("rowclaim_ingress")
    delivery = event(session_id)
    assert delivery.body is not None
    await arrive(ingress, [Arrival("stripe", event_id, COMPLETED, delivery.body)])


@pytest.mark.promise("F33")
async def test_without_a_single_ring_the_stored_event_is_found_and_its_purchase_delivered(
    start: Start, connect: Connect, purchases: Purchases, owner: Connection, clock: Clock
) -> None:
    """Every ring is lost, and one event was stored before anybody was subscribed: the delivery sweep finds it."""
    process = await start()
    process.sessions.put("cs_test_1")
    process.sessions.put("cs_test_2", metadata={"rowclaim_slice": "fulfillment", "github_username": "early"})
    worker = await _subscribed(process)
    await _store(connect, "cs_test_1", "evt_1")
    await _store(connect, "cs_test_2", "evt_2")
    await owner.execute(
        "delete from webhook_deliveries where event_id = (select id from event_ids where external_id = 'evt_2')"
    )
    assert await worker.step() == 1  # what the tick does
    assert await purchases.states() == [DELIVERED]
    assert await worker.step() == 0
    await clock.shift(timedelta(seconds=5))
    assert len(await owe_missing(process.fulfillment.db, timedelta(seconds=30))) == 1
    assert await worker.step() == 1
    assert await purchases.states() == [DELIVERED, DELIVERED]
    assert [r["state"] for r in await owner.fetch("select state from webhook_deliveries")] == ["done", "done"]


@pytest.mark.promise("F30")
async def test_an_idle_system_with_pending_purchases_calls_nobody_however_long_it_waits(
    start: Start, connect: Connect, purchases: Purchases, clock: Clock
) -> None:
    """No event outstanding: the worker's ticks, the delivery sweep and a year of waiting change nothing."""
    for handle in ("a", "b"):
        await purchases.add(handle)
    stranded = await purchases.add("c", fulfillment_state=IN_PROGRESS, fulfillment_attempted_at=await purchases.now())
    process = await start()
    worker = await _subscribed(process)
    for _ in range(12):
        await clock.shift(timedelta(days=30))
        assert await worker.step() == 0
        await owe_missing(process.fulfillment.db, timedelta(days=1))
        await check_invitations(process.fulfillment)
    assert (process.vendor.calls, process.vendor.questions) == ([], [])
    assert await purchases.states() == [PENDING, PENDING, IN_PROGRESS]
    assert (await purchases.row(stranded))["fulfillment_attempts"] == 0
    assert FulfillmentSettings.model_fields["sweep"].default is False


async def test_an_event_is_done_only_after_its_flush_returned(
    start: Start, connect: Connect, owner: Connection
) -> None:
    process = await start()
    process.sessions.put("cs_test_1")
    worker = await _subscribed(process)
    await _store(connect, "cs_test_1", "evt_1")
    seen: list[str] = []

    async def before(handle: str) -> None:
        seen.append(await owner.fetchval("select state from webhook_deliveries"))

    process.vendor.before = before
    await worker.step()
    assert (seen, await owner.fetchval("select state from webhook_deliveries")) == (["in_progress"], "done")


async def test_an_event_comes_again_when_its_flush_lost_its_row_and_stopped(
    start: Start, purchases: Purchases, owner: Connection
) -> None:
    """A person took the first away and their process died, or the answer to its outcome's commit was lost: the second
    is nobody's fault, and nobody else's to flush."""
    process = await start()
    for session_id, handle in (("cs_test_1", "first"), ("cs_test_2", "second")):
        process.sessions.put(session_id, metadata={"rowclaim_slice": "fulfillment", "github_username": handle})

    async def before(handle: str) -> None:
        await store.requeue(process.fulfillment.db, 1, force=True)

    process.vendor.before = before
    batch = [event("cs_test_1"), event("cs_test_2", event_id=2)]
    assert await handled(process, *batch) == [PutBack(), PutBack()]
    assert await purchases.states() == [PENDING, PENDING]
    process.vendor.before = None
    assert await handled(process, *batch) == [Done(), Done()]
    assert await purchases.states() == [DELIVERED, DELIVERED]


async def test_an_event_comes_again_while_somebody_writes_its_purchase(
    start: Start, purchases: Purchases, connect: Connect
) -> None:
    """For longer than a lock is waited for: who writes there need not flush."""
    process, desk = await start(), await connect("rowclaim_fulfillment")
    purchase = await purchases.add()
    async with desk.transaction() as tx:
        assert await store.link(tx, purchase, "user_1")
        assert await handled(process, from_clerk("user.updated")) == [PutBack()]
    assert process.vendor.calls == []
    assert await handled(process, from_clerk("user.updated")) == [Done()]
    assert await purchases.states() == [DELIVERED]


async def test_a_process_that_stops_gives_its_events_back(start: Start, purchases: Purchases) -> None:
    """Purchases are not polled: what its flush left is delivered because the event is handled again elsewhere."""
    process = await start()
    other = await start(like=process)
    for session_id, handle in (("cs_test_1", "first"), ("cs_test_2", "second")):
        process.sessions.put(session_id, metadata={"rowclaim_slice": "fulfillment", "github_username": handle})

    async def before(handle: str) -> None:
        process.stopping.set()

    process.vendor.before = before
    batch = [event("cs_test_1"), event("cs_test_2", event_id=2), event("cs_other", event_id=3)]
    assert await handled(process, *batch) == [PutBack(), PutBack(), Parked("unknown_session")]
    assert await purchases.states() == [DELIVERED, PENDING]
    assert await handled(process, event("cs_test_1")) == [PutBack()], "a stopping process takes nothing up"
    process.vendor.before = None
    assert await handled(other, *batch) == [Done(), Done(), Parked("unknown_session")]
    assert await purchases.states() == [DELIVERED, DELIVERED]
    assert process.vendor.calls == ["first", "second"]
