"""What a buyer sees of their purchases, and the correction of a username."""

from typing import Final

from services.fulfillment import store
from services.fulfillment.flow import checkout
from services.fulfillment.flow.flush import Fulfillment
from services.fulfillment.machine import FulfillmentState
from services.kernel.errors import Refusal

OwnPurchase = store.OwnPurchase

OWN_MAX: Final = 100


async def list_own(fulfillment: Fulfillment, user_id: str) -> list[OwnPurchase]:
    """A buyer's own purchases, newest first; at most a hundred."""
    return await store.list_own(fulfillment.db, user_id, cooldown=fulfillment.cooldown, limit=OWN_MAX)


async def requeue(fulfillment: Fulfillment, user_id: str, purchase_id: int, handle: str) -> list[OwnPurchase]:
    """Take a buyer's correction: check the username, write it, flush; all their purchases as they stand then.

    A failed purchase takes another username; a delivered one whose invitation ran out takes any, its own too. The
    answer waits for the flush, 25 seconds at most. Raises Refusal, with nothing written:
    ``fulfillment_purchase_unknown`` (somebody else's, too), those of ``refusal_of`` and ``checkout.check``, and
    ``fulfillment_changed``.
    """
    read = await _find(fulfillment, user_id, purchase_id)
    if refused := refusal_of(read, handle):
        raise refused
    checked = await checkout.check(fulfillment, handle)
    # A username that stays is no new word on whose it is: the account that was pinned to it stays pinned.
    pinned = read.github_account_id if is_same(handle, read.github_handle) else None
    written = await store.correct(
        fulfillment.db, user_id, read, handle=checked.handle, account_id=pinned or checked.account_id
    )
    if not written:
        # Somebody was faster. What they left decides what to tell; nothing of theirs was overwritten.
        stands = await _find(fulfillment, user_id, purchase_id)
        raise refusal_of(stands, handle) or Refusal("fulfillment_changed", str(purchase_id))
    await fulfillment.flushed()
    return await list_own(fulfillment, user_id)


def refusal_of(purchase: OwnPurchase, handle: str) -> Refusal | None:
    """Why a purchase takes no correction to ``handle`` now, the first reason that stands; None: it takes it.

    ``fulfillment_revoked`` · ``fulfillment_not_failed`` · ``github_handle_unchanged`` · ``fulfillment_cooldown``.
    """
    if purchase.revoked_at is not None:
        return Refusal("fulfillment_revoked")
    if purchase.state is FulfillmentState.DELIVERED and purchase.expired_at is not None:
        return None
    if purchase.state is not FulfillmentState.FAILED:
        return Refusal("fulfillment_not_failed", f"it is {purchase.state}")
    if is_same(handle, purchase.github_handle):
        return Refusal("github_handle_unchanged")
    if purchase.cooldown_until is not None:
        until = purchase.cooldown_until.isoformat().replace("+00:00", "Z")
        return Refusal(
            "fulfillment_cooldown",
            f"until {until}",
            retry_after_s=purchase.cooldown_s,
            members={"cooldownUntil": until},
        )
    return None


def is_same(handle: str, other: str | None) -> bool:
    """Whether two usernames name one account: the vendor knows no letter case."""
    return other is not None and handle.lower() == other.lower()


async def _find(fulfillment: Fulfillment, user_id: str, purchase_id: int) -> OwnPurchase:
    found = await store.find_own(fulfillment.db, user_id, purchase_id, cooldown=fulfillment.cooldown)
    if found is None:
        raise Refusal("fulfillment_purchase_unknown")
    return found
