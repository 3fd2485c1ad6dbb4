"""Stripe, as far as fulfillment needs it: Checkout Sessions opened, and payments as they are now."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, assert_never

import stripe
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator

import schemas.stripe as shapes
from services.fulfillment.machine import (
    Charge,
    ChargeAnswer,
    ChargeMissing,
    Fetched,
    KeyReused,
    NewSession,
    Opened,
    SessionAnswer,
    SessionMisconfigured,
    SessionMissing,
    SessionOpened,
    SessionTrouble,
    TakenBack,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates, vendor
from services.kernel.service import OnClose
from services.kernel.settings import SliceSettings
from services.vendors.http import http_client
from services.vendors.stripe import Failure, FailureKind, failure_of, stripe_client

STRIPE_BOUND_S: Final = 10.0
MARK: Final = {"rowclaim_slice": "fulfillment"}
"""On the Session and on its payment: whose they are. What carries no mark is nobody's and is parked."""
ABOUT_THE_BUYER: Final = frozenset({"customer", "customer_email"})

PriceId = Annotated[str, Field(pattern=r"^price_[A-Za-z0-9_]{1,250}$")]
MissingT = TypeVar("MissingT", SessionMissing, ChargeMissing)
Url = Annotated[str, Field(pattern=r"^https?://[!-~]{1,2000}$")]


@dataclass(frozen=True, slots=True)
class Sale:
    """What is sold, and where the buyer returns to."""

    price: str
    success_url: str
    cancel_url: str


class CheckoutSettings(SliceSettings):
    """What opening a Checkout Session needs: all three, or none is opened."""

    checkout_price: PriceId | None = None
    """Stripe's id of the price of what is sold."""
    checkout_success_url: Url | None = None
    """Where Stripe sends the buyer after paying; ``{CHECKOUT_SESSION_ID}`` in it is replaced by Stripe."""
    checkout_cancel_url: Url | None = None
    """Where Stripe sends a buyer who turns back."""

    @field_validator("checkout_cancel_url")
    @classmethod
    def _all_or_none(cls, value: str | None, info: ValidationInfo) -> str | None:
        given = {value is None, *(info.data.get(f"checkout_{name}") is None for name in ("price", "success_url"))}
        if len(given) > 1:
            raise ValueError("goes with CHECKOUT_PRICE and CHECKOUT_SUCCESS_URL; set all three or none")
        return value

    @property
    def sale(self) -> Sale | None:
        """None: no Session is opened here."""
        price, success, cancel = self.checkout_price, self.checkout_success_url, self.checkout_cancel_url
        return Sale(price, success, cancel) if price and success and cancel else None


def open_checkout(
    api_key: SecretStr, api_url: str | None, gates: Gates, on_close: OnClose, *, sale: Sale | None
) -> "StripeCheckout":
    """Stripe, over an HTTP client of its own that ends with the process. ``api_url`` None: Stripe's own."""
    http = http_client()
    on_close(http.aclose)
    return StripeCheckout(stripe_client(api_key.get_secret_value(), http, api_url=api_url), gates, sale)


class StripeCheckout:
    """The flow's ``Checkout``."""

    def __init__(self, client: stripe.StripeClient, gates: Gates, sale: Sale | None = None) -> None:
        self._client = client
        self._sale = sale
        self.gates = gates

    async def open(self, new: NewSession) -> SessionOpened:
        """Open a Session. A customer or an address that Stripe refuses costs no sale: its page asks the buyer."""
        if self._sale is None:
            return SessionMisconfigured("checkout_unconfigured")
        params, key = _params(self._sale, new), new.idempotency_key
        made = await _asked(self._create(params, key))
        if isinstance(made, Failure) and made.kind is FailureKind.REFUSED and made.param in ABOUT_THE_BUYER:
            # Under a key of its own: Stripe remembers the first for what was just refused.
            params = {name: value for name, value in params.items() if name not in ABOUT_THE_BUYER}
            made = await _asked(self._create(params, key and f"{key}:unnamed"))
        match made:
            case Failure(FailureKind.KEY_CONFLICT):
                return KeyReused()
            case Failure(FailureKind.REFUSED | FailureKind.CONFIG, code):
                return SessionMisconfigured(code)
            case Failure(FailureKind.UNKNOWN | FailureKind.BUSY, code):
                return SessionTrouble(code)
            case _:
                pass
        try:
            session = shapes.NewCheckoutSession.model_validate(made)
        except ValidationError:
            return SessionTrouble("unreadable_answer")
        return Opened(session.id, session.url)

    async def fetch(self, session_id: str) -> SessionAnswer:
        """The Session; every failure is an answer."""
        found = await _asked(self._retrieve(session_id))
        return _not_found(found, SessionMissing()) if isinstance(found, Failure) else Fetched(found)

    async def session_of_payment(self, payment_id: str) -> SessionAnswer:
        """The Session a payment was made in; a payment made elsewhere has none."""
        found = await _asked(self._list(payment_id))
        if isinstance(found, Failure):
            return _not_found(found, SessionMissing())
        listed = found.get("data") if isinstance(found, dict) else None
        if listed == []:
            return SessionMissing()
        return Fetched(listed[0] if isinstance(listed, list) else found)

    async def charge(self, charge_id: str) -> ChargeAnswer:
        """Whether a charge's money is still ours, and how not."""
        found = await _asked(self._retrieve_charge(charge_id))
        if isinstance(found, Failure):
            return _not_found(found, ChargeMissing())
        try:
            charge = shapes.Charge.model_validate(found)
        except ValidationError:
            return ChargeMissing()
        said = {TakenBack.REFUNDED: charge.refunded, TakenBack.DISPUTED: charge.disputed}
        return Charge(charge.payment_intent, frozenset(how for how, so in said.items() if so))

    @vendor("stripe", bound_s=STRIPE_BOUND_S)
    async def _create(self, params: Any, key: str | None) -> object:
        options: stripe.RequestOptions = {"idempotency_key": key} if key else {}
        return await self._client.v1.checkout.sessions.create_async(params, options)

    @vendor("stripe", bound_s=STRIPE_BOUND_S)
    async def _retrieve(self, session_id: str) -> object:
        return await self._client.v1.checkout.sessions.retrieve_async(session_id)

    @vendor("stripe", bound_s=STRIPE_BOUND_S)
    async def _list(self, payment_id: str) -> object:
        return await self._client.v1.checkout.sessions.list_async({"payment_intent": payment_id, "limit": 1})

    @vendor("stripe", bound_s=STRIPE_BOUND_S)
    async def _retrieve_charge(self, charge_id: str) -> object:
        return await self._client.v1.charges.retrieve_async(charge_id)


def _params(sale: Sale, new: NewSession) -> dict[str, Any]:
    marks = dict(MARK)
    if new.handle is not None:
        marks["github_username"] = new.handle
    if new.account_id is not None:
        marks["github_account_id"] = str(new.account_id)
    params: dict[str, Any] = {
        "mode": "payment",
        "line_items": [{"price": sale.price, "quantity": 1}],
        "success_url": sale.success_url,
        "cancel_url": sale.cancel_url,
        "client_reference_id": new.user_id,
        "metadata": marks,
        "payment_intent_data": {"metadata": marks},
    }
    if new.customer_id is not None:  # Stripe takes one or the other, and knows the customer's address
        params["customer"] = new.customer_id
    elif new.email is not None:
        params["customer_email"] = new.email
    return params


async def _asked(call: Awaitable[object]) -> object | Failure:
    """What Stripe answered, as plain data, or why it did not."""
    try:
        answer = await call
    except TimeoutError:
        return Failure(FailureKind.UNKNOWN, "timed_out")
    except Retryable as error:  # the gate is closed, or the database that keeps it is lost
        return Failure(FailureKind.BUSY, error.code.name)
    except stripe.StripeError as error:
        return failure_of(error)
    # An answer that is JSON but no object is not turned into theirs; whoever reads it finds it unreadable.
    return answer.to_dict() if isinstance(answer, stripe.StripeObject) else answer


def _not_found(failure: Failure, missing: MissingT) -> MissingT | SessionTrouble | SessionMisconfigured:
    match failure.kind:
        case FailureKind.UNKNOWN | FailureKind.BUSY | FailureKind.KEY_CONFLICT:
            return SessionTrouble(failure.code)
        case FailureKind.CONFIG:
            return SessionMisconfigured(failure.code)
        case FailureKind.REFUSED:
            return missing
        case never:
            assert_never(never)
