"""What stored events say: a checkout was paid, a payment was taken back, a user came or changed. Then one flush.

Of a body only ids are believed: two events of one second have no order, and a body is old. What they point at is
fetched again, so whichever event is handled first, the end is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, assert_never

import structlog
from pydantic import ValidationError

from schemas.stripe import ChargeEvent, CheckoutSession, FulfillmentMetadata, SessionEvent
from services.fulfillment import store
from services.fulfillment.flow.flush import CONFIG_PAUSE, SLICE, Fulfillment
from services.fulfillment.machine import (
    Charge,
    ChargeAnswer,
    ChargeMissing,
    Fetched,
    SessionAnswer,
    SessionMisconfigured,
    SessionMissing,
    SessionTrouble,
    TakenBack,
)
from services.kernel.claim import WORKER
from services.kernel.deliveries import Delivery, Done, NotOurs, Parked, PutBack, Verdict
from services.kernel.pager import Severity
from services.kernel.telemetry import unit_of_work

log = structlog.get_logger()

STRIPE: Final = "stripe"
STRIPE_BACKOFF: Final = timedelta(seconds=30)
STRIPE_BACKOFF_MAX: Final = timedelta(minutes=15)

CLERK: Final = "clerk"
TAKEN_BACK: Final = {"charge.refunded": TakenBack.REFUNDED, "charge.dispute.created": TakenBack.DISPUTED}
"""Events that may say that a payment is no longer ours, and how. Each is asked about that alone: a part refunded of a
payment whose dispute a person has judged would otherwise bring the dispute up again."""


async def handle(fulfillment: Fulfillment, batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
    """Record what a batch of events says, flush once, then say what became of each event.

    A delivery is done only after its flush returned: a process that dies in between is handed the event again.
    """
    verdicts: dict[int, Verdict] = {}
    to_flush: set[int] = set()
    said = _Batch(fulfillment)
    for delivery in batch:
        if fulfillment.stopping.is_set():
            verdicts[delivery.event_id] = PutBack()
            continue
        with unit_of_work(event_id=delivery.event_id, claim_token=delivery.claim_token):
            verdicts[delivery.event_id], flushes = await said.take_in(delivery)
        if flushes:
            to_flush.add(delivery.event_id)
    if to_flush and (await fulfillment.flush()).is_cut_short:
        # Nothing else would flush what is left: purchases are not polled. Whoever is there takes the events up again.
        return {event: PutBack() if event in to_flush else verdict for event, verdict in verdicts.items()}
    return verdicts


@dataclass(slots=True)
class _Batch:
    """The events of one batch. What two of them point at is fetched once: both had happened before it was."""

    fulfillment: Fulfillment
    _sessions: dict[str, SessionAnswer] = field(default_factory=dict)
    _charges: dict[str, ChargeAnswer] = field(default_factory=dict)

    async def take_in(self, delivery: Delivery) -> tuple[Verdict, bool]:
        """What becomes of one event, and whether it is a reason to flush."""
        if delivery.source == CLERK:
            # Identity's to read. A purchase knows its owner, and Clerk writes no username: what is left is a trigger.
            return Done(), True
        try:
            if (why := TAKEN_BACK.get(delivery.kind)) is not None:
                charge_id = ChargeEvent.model_validate_json(delivery.body or b"").charge_id
                return await self._charge(delivery, charge_id, why), False
            session_id = SessionEvent.model_validate_json(delivery.body or b"").data.object.id
        except ValidationError:
            return Parked("unreadable_body"), False
        return await self._session(delivery, session_id)

    # --------------------------------------------------------------------------------------------- a checkout was paid
    async def _session(self, delivery: Delivery, session_id: str) -> tuple[Verdict, bool]:
        if session_id not in self._sessions:
            self._sessions[session_id] = await self.fulfillment.outside.checkout.fetch(session_id)
        match self._sessions[session_id]:
            case Fetched(found):
                await self._stripe_answers()
                purchase = _read(found)
                if not isinstance(purchase, store.NewPurchase):
                    return purchase, False
                # Its own commit, before any call: whatever happens from here on, the row tells what is owed.
                await store.record_purchase(self.fulfillment.db, purchase)
                return Done(), True
            case SessionMissing():
                return Parked("unknown_session"), False
            case SessionTrouble() | SessionMisconfigured() as trouble:
                return await self._later(delivery, trouble), False
            case never:
                assert_never(never)

    # ----------------------------------------------------------------------------------------- a payment was taken back
    async def _charge(self, delivery: Delivery, charge_id: str, why: TakenBack) -> Verdict:
        if charge_id not in self._charges:
            self._charges[charge_id] = await self.fulfillment.outside.checkout.charge(charge_id)
        match self._charges[charge_id]:
            case Charge(payment_id, taken_back):
                await self._stripe_answers()
                if payment_id is None:
                    return NotOurs()  # no Checkout Session is paid without one
                if why not in taken_back or await store.revoke_paid_by(self.fulfillment.db, payment_id, why):
                    return Done()
                return await self._unrecorded(delivery, payment_id, why)
            case ChargeMissing():
                return Parked("unknown_charge")
            case SessionTrouble() | SessionMisconfigured() as trouble:
                return await self._later(delivery, trouble)
            case never:
                assert_never(never)

    async def _unrecorded(self, delivery: Delivery, payment_id: str, why: TakenBack) -> Verdict:
        """A payment taken back whose purchase nobody has recorded yet: its checkout event is still on its way, lost, or
        another slice's. Recorded and marked in one commit, there is no instant at which it could be claimed."""
        match await self.fulfillment.outside.checkout.session_of_payment(payment_id):
            case Fetched(found) as answer:
                purchase = _read(found)
                if not isinstance(purchase, store.NewPurchase):
                    return purchase
                self._sessions.setdefault(purchase.stripe_session_id, answer)
                async with self.fulfillment.db.transaction() as tx:
                    await store.record_purchase(tx, purchase)
                    await store.revoke_bought_in(tx, purchase.stripe_session_id, payment_id, why)
                return Done()
            case SessionMissing():
                return NotOurs()
            case SessionTrouble() | SessionMisconfigured() as trouble:
                return await self._later(delivery, trouble)
            case never:
                assert_never(never)

    # ------------------------------------------------------------------------------------------------- Stripe's trouble
    @property
    def _page_key(self) -> str:
        return f"{SLICE}:{STRIPE}"

    async def _stripe_answers(self) -> None:
        await self.fulfillment.outside.pager.resolve(self._page_key)

    async def _later(self, delivery: Delivery, trouble: SessionTrouble | SessionMisconfigured) -> PutBack:
        """Nothing was learned: the event is due again, later and later; a key refused closes the gate and pages."""
        match trouble:
            case SessionTrouble(code):
                log.warning("fulfillment.stripe_not_read", kind=delivery.kind, code=code)
            case SessionMisconfigured(code):
                log.error("fulfillment.stripe_not_read", kind=delivery.kind, code=code)
                await self.fulfillment.outside.gates.close(STRIPE, CONFIG_PAUSE, code, WORKER)
                await self.fulfillment.outside.pager.page(
                    self._page_key,
                    Severity.ERROR,
                    f"Stripe refuses fulfillment's key ({code}): no payment is recorded or taken back.",
                )
            case never:
                assert_never(never)
        return PutBack(min(STRIPE_BACKOFF * 2 ** min(delivery.attempt - 1, 16), STRIPE_BACKOFF_MAX))


def _read(found: object) -> store.NewPurchase | Verdict:
    """The purchase that a Session proves, or what becomes of an event about a Session that proves none of ours."""
    try:
        session = CheckoutSession.model_validate(found)
        if session.rowclaim_slice is None:
            return Parked("unmarked_object")
        if session.rowclaim_slice != SLICE:
            return NotOurs()
        wanted = FulfillmentMetadata.model_validate(session.metadata)
    except ValidationError:
        return Parked("unreadable_session")
    match session.payment_status:
        case "unpaid":  # complete, and yet nothing is owed: a bank transfer may still fail; its success is an event
            return Done()
        case "paid" | "no_payment_required":
            pass
        case _:
            return Parked("unreadable_session")
    return store.NewPurchase(
        stripe_session_id=session.id,
        stripe_payment_id=session.payment_intent,
        user_id=session.client_reference_id,
        email=session.email,
        github_handle=wanted.github_username,
        github_account_id=wanted.github_account_id,
        amount_minor=session.amount_total,
        currency=session.currency,
    )
