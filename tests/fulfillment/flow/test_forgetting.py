"""A buyer is forgotten: the person goes, the payment and what became of it stay, and every verb goes on as before."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from services.fulfillment import store
from services.fulfillment.flow.flush import Stopped
from services.fulfillment.flow.forgetting import blank, traces
from services.fulfillment.machine import FulfillmentState
from services.kernel.db import Database
from services.kernel.errors import Retryable
from tests.fixtures.database import Connect, Connection
from tests.fulfillment.conftest import ROLE, Purchases, Start
from tests.waiting import wait_until

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
THEN = datetime(2026, 11, 1, tzinfo=UTC)
BLANK = {
    "email": None,
    "github_handle": None,
    "github_account_id": None,
    "invitation_url": None,
    "invited_account_id": None,
}
WHOLE: dict[str, Any] = {
    "email": "ann@example.com",
    "github_account_id": 7,
    "stripe_payment_id": "pi_ann",
    "amount_minor": 4900,
    "currency": "usd",
    "fulfillment_state": DELIVERED,
    "edge": "deliver",
    "claim_token": 3,
    "outcome_token": 3,
    "fulfillment_attempts": 3,
    "fulfillment_attempted_at": THEN,
    "fulfilled_at": THEN,
    "invitation_id": 11,
    "invitation_url": "https://github.com/acme/invitations",
    "invited_account_id": 7,
    "invited_at": THEN,
    "already_had_access": False,
}


@pytest.fixture
async def db(connect: Connect) -> Database:
    return await connect(ROLE)


async def test_the_person_is_blanked_and_everything_else_stays(db: Database, purchases: Purchases) -> None:
    purchase = await purchases.add("ann", user_id="user_ann", **WHOLE)
    other = await purchases.add("joann", user_id="user_joann", **WHOLE | {"stripe_payment_id": "pi_joann"})
    before, others = dict(await purchases.row(purchase)), dict(await purchases.row(other))
    assert await blank(db, "user_ann", dry_run=True) == {"purchases": 1}
    assert dict(await purchases.row(purchase)) == before
    assert await blank(db, "user_ann", dry_run=False) == {"purchases": 1}
    assert dict(await purchases.row(purchase)) == before | BLANK
    assert dict(await purchases.row(other)) == others
    assert await blank(db, "user_ann", dry_run=False) == {"purchases": 0}


@pytest.mark.parametrize("column", [*BLANK, "fulfillment_last_error"])
async def test_one_personal_column_is_enough_to_be_blanked(db: Database, purchases: Purchases, column: str) -> None:
    value = 7 if column.endswith("_id") else "ann"
    nothing = {"email": None, "handle": None}
    held = {"handle": value} if column == "github_handle" else {column: value}
    purchase = await purchases.add(user_id="user_ann", **nothing | held)
    assert await blank(db, "user_ann", dry_run=False) == {"purchases": 1}
    assert (await purchases.row(purchase))[column] is None


@pytest.mark.parametrize(("state", "error"), [(PENDING, None), (FAILED, "forgotten")])
async def test_what_the_vendor_said_goes_and_a_failure_keeps_a_reason(
    db: Database, purchases: Purchases, state: str, error: str | None
) -> None:
    told = {"fulfillment_last_error": "GitHub says that ann is unknown.", "fulfillment_last_code": "account_unknown"}
    purchase = await purchases.add("ann", user_id="user_ann", fulfillment_state=state, **told)
    await blank(db, "user_ann", dry_run=False)
    row = await purchases.row(purchase)
    assert (row["fulfillment_last_error"], row["fulfillment_last_code"]) == (error, "account_unknown")
    assert row["fulfillment_state"] == state
    assert await blank(db, "user_ann", dry_run=True) == {"purchases": 0}


async def test_a_forgotten_purchase_that_owes_its_invitation_is_refused_by_the_next_flush(
    db: Database, purchases: Purchases, start: Start
) -> None:
    """And holds up nobody behind it; nobody is mailed."""
    forgotten = await purchases.add("ann", user_id="user_ann", age_s=60)
    behind = await purchases.add("octocat")
    await blank(db, "user_ann", dry_run=False)
    process = await start()
    report = await process.fulfillment.flush()
    assert (report.stopped, report.attempted, report.failed, report.delivered) == (Stopped.DRAINED, 2, 1, 1)
    row = await purchases.row(forgotten)
    assert (row["fulfillment_state"], row["fulfillment_last_code"]) == (FAILED, "no_handle")
    assert (await purchases.row(behind))["fulfillment_state"] == DELIVERED
    assert [mail.purchase_id for mail in process.post.mails] == [behind]
    assert await blank(db, "user_ann", dry_run=False) == {"purchases": 1}


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_is_being_attempted_refuses(db: Database, purchases: Purchases, dry_run: bool) -> None:
    await purchases.add("ann", user_id="user_ann")
    held = await purchases.add(
        "ann", user_id="user_ann", fulfillment_state=IN_PROGRESS, edge="claim", fulfillment_attempted_at=THEN
    )
    before = dict(await purchases.row(held))
    await purchases.add("bob", user_id="user_bob")
    with pytest.raises(Retryable, match=f"forget_in_progress: purchase {held};"):
        await blank(db, "user_ann", dry_run=dry_run)
    assert dict(await purchases.row(held)) == before
    assert await blank(db, "user_bob", dry_run=dry_run) == {"purchases": 1}


async def test_what_is_claimed_meanwhile_is_not_blanked_and_said(
    db: Database, connect: Connect, purchases: Purchases, owner: Connection
) -> None:
    """The blanking waits for the claim's commit and then finds the row in progress."""
    purchase = await purchases.add("ann", user_id="user_ann")
    async with (await connect(ROLE)).transaction() as tx:
        assert await store.claim_oldest(tx) is not None
        blanking = asyncio.create_task(blank(db, "user_ann", dry_run=False))
        waiting = "select exists (select from pg_locks where not granted)"
        await wait_until(lambda: owner.fetchval(waiting), within_s=5, what="the blanking to wait")
    with pytest.raises(Retryable, match="forget_in_progress: a purchase was claimed"):
        await blanking
    assert (await purchases.row(purchase))["github_handle"] == "ann"


async def test_a_buyer_is_traced_by_session_payment_and_address_as_long_as_they_stand(
    db: Database, purchases: Purchases
) -> None:
    await purchases.add(
        "ann", user_id="user_ann", stripe_session_id="cs_1", email="ann@example.com", stripe_payment_id="pi_1"
    )
    await purchases.add("ann", user_id="user_ann", stripe_session_id="cs_2", email=None)
    await purchases.add(
        "bob", user_id="user_bob", stripe_session_id="cs_3", email="bob@x.com", stripe_payment_id="pi_3"
    )
    assert await traces(db, "user_ann") == {"user_ann", "cs_1", "cs_2", "ann@example.com", "pi_1"}
    assert await traces(db, "user_nobody") == frozenset()
    await blank(db, "user_ann", dry_run=False)
    assert await traces(db, "user_ann") == {"user_ann", "cs_1", "cs_2", "pi_1"}
