"""Fulfillment over HTTP: parse, call one verb, shape the answer.

Imported by processes that serve, and by whoever describes the API: it brings FastAPI along.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path
from pydantic import BeforeValidator
from starlette.routing import BaseRoute

from schemas import fulfillment as wire
from services.fulfillment.flow import buyer, checkout, operator
from services.fulfillment.flow.flush import FlushReport, Fulfillment
from services.fulfillment.machine import FulfillmentState
from services.kernel.auth import Access, Auth, Caller, caller, refusal

Wired = Callable[[], Fulfillment]
Who = Annotated[Caller, Depends(caller)]


def _digits(written: str) -> str:
    """One way to write a number: neither ``1_0`` nor ``1.0`` is the address of a purchase."""
    if not (written.isascii() and written.isdigit()):
        raise ValueError("is no number")
    return written


PurchaseId = Annotated[int, Path(ge=1, le=2**63 - 1), BeforeValidator(_digits)]
UserId = Annotated[wire.UserId, Path()]
# Described here, judged by the verb, which has a code for it.
KEY: Final[dict[str, Any]] = {"minLength": 1, "maxLength": 200, "pattern": "^[ -~]*$"}
IdempotencyKey = Annotated[
    str | None, Header(description="1 to 200 characters of printable ASCII.", json_schema_extra=KEY)
]

Answers = dict[int | str, dict[str, Any]]
CONFLICT: Final[Answers] = {409: refusal("It is not as the request supposes; `code` says how it is.")}
UNKNOWN: Final[Answers] = {404: refusal("Nothing of that id is there, or nothing of the caller's.")}


def routes(auth: Auth, wired: Wired) -> Sequence[BaseRoute]:
    """The buyer's three routes and the operator's three."""
    return [*_buyers(auth.routes(Access.USER), wired).routes, *_operators(auth.routes(Access.ADMIN), wired).routes]


def _buyers(router: APIRouter, wired: Wired) -> APIRouter:
    @router.post(
        "/checkout/session", summary="Open a Checkout Session", status_code=HTTPStatus.CREATED, responses=CONFLICT
    )
    async def open_checkout(
        who: Who, asked: wire.CheckoutRequest, idempotency_key: IdempotencyKey = None
    ) -> wire.CheckoutSession:
        """Open a Checkout Session. The username is checked first: what GitHub denies is refused, and whatever it
        cannot say stops no sale."""
        opened = await checkout.open_session(wired(), who.user_id, asked.github_username, client_key=idempotency_key)
        return wire.CheckoutSession(id=opened.id, url=opened.url)

    @router.get("/fulfillment", summary="The caller's own purchases")
    async def list_purchases(who: Who) -> wire.Purchases:
        """The caller's own purchases, newest first."""
        return _purchases(await buyer.list_own(wired(), who.user_id))

    @router.post("/fulfillment/requeue", summary="Correct a username and deliver again", responses=UNKNOWN | CONFLICT)
    async def requeue(who: Who, asked: wire.RequeueRequest) -> wire.Purchases:
        """Correct a username, and have it delivered: all of the caller's purchases as they stand after that, or after
        25 seconds."""
        return _purchases(await buyer.requeue(wired(), who.user_id, asked.purchase_id, asked.github_username))

    return router


def _operators(router: APIRouter, wired: Wired) -> APIRouter:
    @router.get("/admin/fulfillments/attention", summary="What needs a person's look")
    async def list_attention(_: Who) -> wire.Attention:
        """What needs a person's look, newest attempt first; fifty at most, and no further page."""
        return wire.Attention(purchases=tuple(map(_in_sight, await operator.list_attention(wired()))))

    @router.post(
        "/admin/users/{user_id}/fulfillment/retrigger",
        summary="Send a user's purchases again",
        responses=UNKNOWN | CONFLICT,
    )
    async def retrigger(who: Who, user_id: UserId, asked: wire.RetriggerRequest) -> wire.RetriggerAnswer:
        """Set a user's purchases back to pending and flush. A closed gate stays closed: the answer says until when."""
        moved, report = await operator.retrigger_user(
            wired(),
            user_id,
            purchase_id=asked.purchase_id,
            actor=who.user_id,
            reason=asked.reason,
            force=asked.force,
        )
        return wire.RetriggerAnswer(
            purchases=tuple(
                wire.Retriggered(id=one.purchase_id, before=_state(one.before), state=_state(one.after))
                for one in moved
            ),
            flush=report and _flush(report),
        )

    @router.post(
        "/admin/purchases/{purchase_id}/link",
        summary="Give an owner to a purchase without one",
        responses=UNKNOWN | CONFLICT,
    )
    async def link(who: Who, purchase_id: PurchaseId, asked: wire.LinkRequest) -> wire.PurchaseInSight:
        """Give a purchase that was recorded without an owner to a user. It grants nothing, and replaces no owner."""
        return _in_sight(
            await operator.link(wired(), purchase_id, asked.user_id, actor=who.user_id, reason=asked.reason)
        )

    return router


# ------------------------------------------------------------------------------------------------------- the answers
def _purchases(own: Sequence[buyer.OwnPurchase]) -> wire.Purchases:
    return wire.Purchases(purchases=tuple(map(_purchase, own)))


def _purchase(own: buyer.OwnPurchase) -> wire.Purchase:
    handed_out = own.state is FulfillmentState.DELIVERED and (own.invited_at or own.accepted_at) is not None
    return wire.Purchase(
        id=own.id,
        state=_state(own.state),
        github_username=own.github_handle,
        created_at=own.created_at,
        fulfilled_at=own.fulfilled_at,
        attempted_at=own.attempted_at,
        cooldown_until=own.cooldown_until,
        invitation=wire.Invitation(
            url=own.invitation_url, sent_at=own.invited_at, accepted_at=own.accepted_at, expired_at=own.expired_at
        )
        if handed_out
        else None,
        revoked_at=own.revoked_at,
    )


def _in_sight(purchase: operator.PurchaseInSight) -> wire.PurchaseInSight:
    return wire.PurchaseInSight(
        id=purchase.id,
        user_id=purchase.user_id,
        github_username=purchase.github_handle,
        state=_state(purchase.state),
        why=purchase.why,
        last_error=purchase.last_error,
        attempts=purchase.attempts,
        attempted_at=purchase.attempted_at,
        fulfilled_at=purchase.fulfilled_at,
        expired_at=purchase.expired_at,
        revoked_at=purchase.revoked_at,
        next_attempt_at=purchase.next_attempt_at,
        can_resend=operator.can_resend(purchase),
    )


def _flush(report: FlushReport) -> wire.Flush:
    return wire.Flush(stopped=report.stopped.value, closed_until=report.closed_until, **report.counts())


def _state(state: FulfillmentState) -> wire.State:
    return state.value
