"""Before the money moves: is there somebody to invite? Then a Checkout Session, with the answer written on it."""

import hashlib
import json
import re
from typing import Final, assert_never

import structlog

from services.fulfillment import store
from services.fulfillment.flow.flush import SLICE, Fulfillment, close_gate
from services.fulfillment.machine import (
    HandleKnown,
    HandleUnknown,
    HandleUnverified,
    KeyReused,
    NewSession,
    Opened,
    SessionMisconfigured,
    SessionTrouble,
)
from services.kernel.errors import Refusal, Retryable
from services.kernel.pager import Severity

log = structlog.get_logger()

CLIENT_KEY: Final = re.compile(r"[ -~]{1,200}", re.ASCII)
CHECK_PAGE: Final = f"{SLICE}:handle_check"
CHECKOUT_PAGE: Final = f"{SLICE}:checkout"


async def open_session(fulfillment: Fulfillment, user_id: str, handle: str | None, *, client_key: str | None) -> Opened:
    """Open a Checkout Session for a user who wants ``handle`` invited; None: they have no account yet, and it is not
    looked up.

    ``client_key``: the client's idempotency key; with it, a repetition opens the same Session. Raises Refusal:
    ``github_handle_unknown``, ``idempotency_key_invalid``, ``idempotency_key_reused``, ``checkout_unconfigured``;
    Retryable: ``checkout_unavailable``.
    """
    if client_key is not None and CLIENT_KEY.fullmatch(client_key) is None:
        raise Refusal("idempotency_key_invalid")
    checked = None if handle is None else await check(fulfillment, handle)
    buyer = await store.find_person(fulfillment.db, user_id)
    new = NewSession(
        user_id=user_id,
        handle=None if checked is None else checked.handle,
        account_id=None if checked is None else checked.account_id,
        email=None if buyer is None else buyer.email,
        customer_id=None if buyer is None else buyer.stripe_customer_id,
        idempotency_key=None if client_key is None else _own_key(user_id, client_key, checked, buyer),
    )
    match await fulfillment.outside.checkout.open(new):
        case Opened() as opened:
            await fulfillment.outside.pager.resolve(CHECKOUT_PAGE)
            return opened
        case KeyReused():
            raise Refusal("idempotency_key_reused")
        case SessionTrouble(code):
            log.warning("fulfillment.session_not_opened", code=code)
            raise Retryable("checkout_unavailable", code)
        case SessionMisconfigured("checkout_unconfigured"):
            raise Refusal("checkout_unconfigured")
        case SessionMisconfigured(code):
            # Stripe's gate stays open: what is already paid is still read through it.
            log.error("fulfillment.session_not_opened", code=code)
            await fulfillment.outside.pager.page(
                CHECKOUT_PAGE, Severity.ERROR, f"Stripe refuses to open checkouts ({code}): nothing can be bought."
            )
            raise Retryable("checkout_unavailable", code)
        case never:
            assert_never(never)


async def check(fulfillment: Fulfillment, handle: str) -> HandleKnown:
    """Whom a username names: in the vendor's letter case and with its account's id, or, where the vendor cannot say,
    as it was written and without one. A check that is away stops no sale.

    Raises Refusal("github_handle_unknown") for what the vendor denies: nobody has it, or no person has.
    """
    outside = fulfillment.outside
    match await outside.inviter.check(handle):
        case HandleKnown() as known:
            await outside.pager.resolve(CHECK_PAGE)
            return known
        case HandleUnknown(code):
            await outside.pager.resolve(CHECK_PAGE)
            raise Refusal("github_handle_unknown", code)
        case HandleUnverified(code, our_fault, pause):
            log.warning("fulfillment.handle.unverified", code=code)
            if pause is not None:
                await close_gate(outside.gates, outside.inviter.gate, pause, code)
            if our_fault:
                await outside.pager.page(
                    CHECK_PAGE, Severity.ERROR, f"Usernames go unchecked: {outside.inviter.gate} says {code}."
                )
            return HandleKnown(handle)
        case never:
            assert_never(never)


def _own_key(user_id: str, client_key: str, checked: HandleKnown | None, buyer: store.Person | None) -> str:
    """Ours, for one user's key is not another's. What we add to the client's request is part of it: repeated while the
    check is away, or when we have just been told of the buyer's address, the same request of theirs is another one to
    the payments' vendor, and must open a Session and not be refused."""
    verified = checked is None or checked.account_id is not None
    known = (None, None) if buyer is None else (buyer.email, buyer.stripe_customer_id)
    said = json.dumps((user_id, client_key, verified, *known))
    return f"checkout-{hashlib.sha256(said.encode()).hexdigest()}"
