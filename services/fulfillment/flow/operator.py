"""What a person judges: send again, give a payment its owner; and what needs their look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.fulfillment import store
from services.fulfillment.flow.flush import FlushReport, Fulfillment
from services.fulfillment.machine import PURCHASES, FulfillmentState
from services.fulfillment.store import PurchaseState
from services.kernel.db import Tx
from services.kernel.errors import Refusal

PurchaseInSight = store.PurchaseInSight

ATTENTION_MAX: Final = 50
"""There are no pages: whoever sees so many looks at one cause, not at so many buyers."""
OF_USER_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Moved:
    """A purchase before a person's word, and as the flush after it left it."""

    purchase_id: int
    before: FulfillmentState
    after: FulfillmentState


@dataclass(frozen=True, slots=True)
class Retriggered(Moved):
    """One purchase's re-trigger, and its flush."""

    report: FlushReport


@dataclass(frozen=True, slots=True)
class _Word:
    """A person's word: whose it is, whether by force, and why (empty: nobody said)."""

    actor: str
    force: bool
    reason: str


# ------------------------------------------------------------------------------------------------------ what to look at
async def list_attention(fulfillment: Fulfillment) -> list[PurchaseInSight]:
    """What a person should look at, newest attempt first, fifty at most.

    Failed and in progress, the live attempt as the stranded one: nothing but its start tells them apart. And what goes
    on by itself and yet needs a look: put off, timed out five times, run out unaccepted, taken back.
    """
    return await store.list_attention(fulfillment.db, limit=ATTENTION_MAX)


def can_resend(purchase: PurchaseInSight) -> bool:
    """Whether the list can offer to send it again: the re-trigger is addressed by user, and a payment that was taken
    back is owed nothing."""
    return purchase.user_id is not None and purchase.revoked_at is None


# ----------------------------------------------------------------------------------------------------------- send again
async def retrigger(
    fulfillment: Fulfillment, purchase_id: int, *, actor: str, reason: str | None, force: bool
) -> Retriggered:
    """Set one purchase back to pending on a person's word, keep who and why, then flush to the end.

    Without force only a pending or failed one; with force also one that is in progress (its flush, if it lives, loses
    it), delivered (it is sent again) or taken back (it is reinstated). Raises Refusal, with nothing written:
    ``fulfillment_reason_missing`` (force without one), ``fulfillment_purchase_unknown``,
    ``fulfillment_not_requeueable``, ``fulfillment_revoked``.
    """
    word = _word(actor, reason, force=force)
    async with fulfillment.db.transaction() as tx:
        stands = await store.find_state(tx, purchase_id)
        if stands is None:
            raise Refusal("fulfillment_purchase_unknown", str(purchase_id))
        before = await _requeue_named(tx, stands, word)
    report = await fulfillment.flush()
    (moved,) = await _moved(fulfillment, {purchase_id: before})
    return Retriggered(moved.purchase_id, moved.before, moved.after, report)


async def retrigger_user(
    fulfillment: Fulfillment, user_id: str, *, purchase_id: int | None, actor: str, reason: str | None, force: bool
) -> tuple[list[Moved], FlushReport | None]:
    """The same for a user's purchases: every one that may be sent, or the one that is named.

    The flush is waited for 25 seconds; None: it goes on. One whose payment was taken back is left out unless it is
    named. Raises Refusal as ``retrigger`` does, and ``fulfillment_user_unknown``.
    """
    word = _word(actor, reason, force=force)
    async with fulfillment.db.transaction() as tx:
        stand = await store.list_states_of_user(tx, user_id, named=purchase_id, limit=OF_USER_MAX)
        if not stand:
            raise Refusal("fulfillment_user_unknown")
        if purchase_id is None:
            was = {one.id: before for one in stand if (before := await _requeue(tx, one, word)) is not None}
        else:
            named = next((one for one in stand if one.id == purchase_id), None)
            if named is None:
                raise Refusal("fulfillment_purchase_unknown", str(purchase_id))
            was = {purchase_id: await _requeue_named(tx, named, word)}
        if not was:
            raise _not_requeueable(stand)
    report = await fulfillment.flushed()
    return await _moved(fulfillment, was), report


async def _requeue_named(tx: Tx, stands: PurchaseState, word: _Word) -> FulfillmentState:
    """Requeue a purchase that was named by its id. Who names it, forces it and says why may even overrule that its
    payment was taken back: a dispute can be won."""
    before = await _requeue(tx, stands, word, reinstates=word.force and stands.revoked_at is not None)
    if before is not None:
        return before
    if stands.revoked_at is not None:
        raise Refusal("fulfillment_revoked", str(stands.id))
    raise _not_requeueable([await store.find_state(tx, stands.id) or stands])


async def _requeue(tx: Tx, stands: PurchaseState, word: _Word, *, reinstates: bool = False) -> FulfillmentState | None:
    """Set back to pending and keep the act, in one commit; the state before, or None: it may not be."""
    requeued = await store.requeue(tx, stands.id, force=word.force, reinstate=reinstates)
    if requeued is None:
        return None
    before = FulfillmentState(PURCHASES.edges[requeued.edge].source or "")
    revoked_at = stands.revoked_at.isoformat() if stands.revoked_at else None
    await store.record_action(
        tx,
        actor=word.actor,
        verb="fulfillment." + ("reinstate" if reinstates else "force" if word.force else "retrigger"),
        purchase_id=stands.id,
        reason=word.reason or "re-triggered",
        before={"fulfillment_state": before} | ({"revoked_at": revoked_at} if reinstates else {}),
        after={"fulfillment_state": FulfillmentState.PENDING} | ({"revoked_at": None} if reinstates else {}),
    )
    return before


def _word(actor: str, reason: str | None, *, force: bool) -> _Word:
    word = _Word(actor, force, (reason or "").strip())
    if force and not word.reason:
        raise Refusal("fulfillment_reason_missing")
    return word


async def _moved(fulfillment: Fulfillment, was: Mapping[int, FulfillmentState]) -> list[Moved]:
    """Every purchase that was moved, as the flush left it."""
    stand = await store.list_states(fulfillment.db, list(was))
    return [Moved(one.id, was[one.id], one.fulfillment_state) for one in stand]


def _not_requeueable(stand: Sequence[PurchaseState]) -> Refusal:
    states = (f"purchase {one.id} is {'revoked' if one.revoked_at else one.fulfillment_state}" for one in stand)
    return Refusal("fulfillment_not_requeueable", ", ".join(states))


# -------------------------------------------------------------------------------------------------------- whose it is
async def link(
    fulfillment: Fulfillment, purchase_id: int, user_id: str, *, actor: str, reason: str | None
) -> PurchaseInSight:
    """Give a purchase that was recorded without an owner to a user; the purchase as the list shows it.

    It never replaces an owner, and it grants nothing: entitlements are not touched. Raises Refusal:
    ``fulfillment_purchase_unknown``, ``purchase_owned``.
    """
    async with fulfillment.db.transaction() as tx:
        stands = await _in_sight(tx, purchase_id)
        if not await store.link(tx, purchase_id, user_id):
            raise Refusal("purchase_owned", str(purchase_id))
        await store.record_action(
            tx,
            actor=actor,
            verb="fulfillment.link",
            purchase_id=purchase_id,
            reason=(reason or "").strip() or "linked",
            before={"user_id": stands.user_id},
            after={"user_id": user_id},
        )
    return await _in_sight(fulfillment.db, purchase_id)


async def _in_sight(tx: Tx, purchase_id: int) -> PurchaseInSight:
    found = await store.find_in_sight(tx, purchase_id)
    if found is None:
        raise Refusal("fulfillment_purchase_unknown", str(purchase_id))
    return found
