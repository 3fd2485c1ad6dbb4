"""What a person judges: send a purchase again."""

from dataclasses import dataclass

from services.fulfillment import store
from services.fulfillment.flow.flush import FlushReport, Fulfillment
from services.fulfillment.machine import PURCHASES, FulfillmentState
from services.kernel.errors import Refusal


@dataclass(frozen=True, slots=True)
class Retriggered:
    """A person's re-trigger: how the purchase stood before, how it stands after the flush, and that flush."""

    purchase_id: int
    before: FulfillmentState
    after: FulfillmentState
    report: FlushReport


async def retrigger(
    fulfillment: Fulfillment, purchase_id: int, *, actor: str, reason: str | None, force: bool
) -> Retriggered:
    """Set a purchase back to pending on a person's word, keep who and why, then flush.

    Without force only a pending or failed one; with force also one that is in progress (its flush, if it lives,
    loses it) or delivered (it is sent again). Raises Refusal: ``fulfillment_reason_missing`` (force without one),
    ``fulfillment_purchase_unknown``, ``fulfillment_not_requeueable``.
    """
    if force and not (reason or "").strip():
        raise Refusal("fulfillment_reason_missing")
    async with fulfillment.db.transaction() as tx:
        requeued = await store.requeue(tx, purchase_id, force=force)
        if requeued is None:
            stands = await store.find_state(tx, purchase_id)
            if stands is None:
                raise Refusal("fulfillment_purchase_unknown", str(purchase_id))
            why = "revoked" if stands.revoked_at else stands.fulfillment_state.value
            raise Refusal("fulfillment_not_requeueable", f"purchase {purchase_id} is {why}")
        before = FulfillmentState(PURCHASES.edges[requeued.edge].source or "")
        await store.record_action(
            tx,
            actor=actor,
            verb="fulfillment.force" if force else "fulfillment.retrigger",
            target=f"purchase:{purchase_id}",
            reason=(reason or "").strip() or "re-triggered",
            before=before,
            after=FulfillmentState.PENDING,
        )
    report = await fulfillment.flush()
    after = await store.find_state(fulfillment.db, purchase_id)
    return Retriggered(purchase_id, before, after.fulfillment_state if after else FulfillmentState.PENDING, report)
