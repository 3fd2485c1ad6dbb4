"""What stored events say: a checkout was paid. Record it first, then flush once for the whole batch."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, assert_never

import structlog
from pydantic import ValidationError

from schemas.stripe import CheckoutSession, FulfillmentMetadata, SessionEvent
from services.fulfillment import store
from services.fulfillment.flow.flush import CONFIG_PAUSE, SLICE, Fulfillment, Stopped
from services.fulfillment.machine import Fetched, SessionMisconfigured, SessionMissing, SessionTrouble
from services.kernel.claim import WORKER
from services.kernel.deliveries import Delivery, Done, NotOurs, Parked, PutBack, Verdict
from services.kernel.pager import Severity
from services.kernel.telemetry import unit_of_work

log = structlog.get_logger()

STRIPE: Final = "stripe"
STRIPE_BACKOFF: Final = timedelta(seconds=30)
STRIPE_BACKOFF_MAX: Final = timedelta(minutes=15)


async def handle(fulfillment: Fulfillment, batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
    """Record what a batch of checkout events paid for, flush once, then say what became of each event.

    A delivery is done only after its flush returned: a process that dies in between is handed the event again.
    """
    verdicts: dict[int, Verdict] = {}
    owed = False
    for delivery in batch:
        if fulfillment.stopping.is_set():
            verdicts[delivery.event_id] = PutBack()
            continue
        with unit_of_work(event_id=delivery.event_id, claim_token=delivery.claim_token):
            verdicts[delivery.event_id], paid = await _record(fulfillment, delivery)
        owed = owed or paid
    if owed and (await fulfillment.flush()).stopped is Stopped.STOPPING:
        # Nothing else would flush what is left: purchases are not polled. Another process takes the events up.
        return {event: PutBack() if verdict == Done() else verdict for event, verdict in verdicts.items()}
    return verdicts


async def _record(fulfillment: Fulfillment, delivery: Delivery) -> tuple[Verdict, bool]:
    """One event: fetch its Session, record its purchase; whether the Session is paid."""
    try:
        reference = SessionEvent.model_validate_json(delivery.body or b"").data.object
    except ValidationError:
        return Parked("unreadable_body"), False
    # Of the event only the id is believed: two events of one second have no order, and a body is old.
    match await fulfillment.outside.checkout.fetch(reference.id):
        case Fetched(found):
            await fulfillment.outside.pager.resolve(f"{SLICE}:{STRIPE}")
            return await _record_session(fulfillment, found)
        case SessionMissing():
            return Parked("unknown_session"), False
        case SessionTrouble(code):
            log.warning("fulfillment.session_not_fetched", code=code)
        case SessionMisconfigured(code):
            log.error("fulfillment.session_not_fetched", code=code)
            await fulfillment.outside.gates.close(STRIPE, CONFIG_PAUSE, code, WORKER)
            await fulfillment.outside.pager.page(
                f"{SLICE}:{STRIPE}",
                Severity.ERROR,
                f"Stripe refuses fulfillment's key ({code}): no purchase is recorded.",
            )
        case never:
            assert_never(never)
    return PutBack(min(STRIPE_BACKOFF * 2 ** min(delivery.attempt - 1, 16), STRIPE_BACKOFF_MAX)), False


async def _record_session(fulfillment: Fulfillment, found: object) -> tuple[Verdict, bool]:
    try:
        session = CheckoutSession.model_validate(found)
        if session.rowclaim_slice is None:
            return Parked("unmarked_object"), False
        if session.rowclaim_slice != SLICE:
            return NotOurs(), False
        wanted = FulfillmentMetadata.model_validate(session.metadata)
    except ValidationError:
        return Parked("unreadable_session"), False
    match session.payment_status:
        case "unpaid":  # complete, and yet nothing is owed: a bank transfer may still fail; its success is an event
            return Done(), False
        case "paid" | "no_payment_required":
            pass
        case _:
            return Parked("unreadable_session"), False
    # Its own commit, before any call: whatever happens from here on, the row tells what is owed.
    await store.record_purchase(
        fulfillment.db,
        store.NewPurchase(
            stripe_session_id=session.id,
            user_id=session.client_reference_id,
            email=session.email,
            github_handle=wanted.github_username,
            github_account_id=wanted.github_account_id,
            amount_minor=session.amount_total,
            currency=session.currency,
        ),
    )
    return Done(), True
