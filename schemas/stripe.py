"""What we read of Stripe's objects, whatever else they hold and whichever API version rendered them.

Subsets on purpose: a new field of theirs changes nothing here, and a field of ours that is missing or of another kind
is a ``ValidationError``, which parks the event instead of guessing.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas.text import Text

BIGINT_MAX = 2**63 - 1


def _none_if_empty(value: object) -> object:
    """Stripe's metadata has no null: an absent and an empty value both say "none"."""
    return None if value == "" else value


OptionalText = Annotated[Text | None, BeforeValidator(_none_if_empty)]


def _id_of(value: object) -> object:
    """A reference is an id, or the whole object where somebody asked for it to be expanded."""
    return value.get("id") if isinstance(value, dict) else value


SessionId = Annotated[str, Field(pattern=r"^cs_[A-Za-z0-9_]{1,250}$")]
PaymentId = Annotated[str, Field(pattern=r"^pi_[A-Za-z0-9_]{1,250}$"), BeforeValidator(_id_of)]
ChargeId = Annotated[str, Field(pattern=r"^(ch|py)_[A-Za-z0-9_]{1,250}$"), BeforeValidator(_id_of)]
"""A payment by bank debit is called ``py_``."""


class StripeModel(BaseModel):
    """Frozen, and blind to what it does not name."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SessionReference(StripeModel):
    """The one thing believed of an embedded object: which one to fetch."""

    object: Literal["checkout.session"]
    id: SessionId


class SessionEventData(StripeModel):
    """An event's envelope around its object."""

    object: SessionReference


class SessionEvent(StripeModel):
    """A ``checkout.session.*`` event, as far as it is believed."""

    data: SessionEventData


class ChargeReference(StripeModel):
    """A charge that something happened to."""

    object: Literal["charge"]
    id: ChargeId


class DisputeReference(StripeModel):
    """A dispute, as far as it says about which charge."""

    object: Literal["dispute"]
    charge: ChargeId


class ChargeEventData(StripeModel):
    """An event's envelope around a charge or a dispute."""

    object: Annotated[ChargeReference | DisputeReference, Field(discriminator="object")]


class ChargeEvent(StripeModel):
    """A ``charge.refunded`` or ``charge.dispute.*`` event, as far as it is believed: which charge to look at."""

    data: ChargeEventData

    @property
    def charge_id(self) -> str:
        """The charge to fetch."""
        about = self.data.object
        return about.id if isinstance(about, ChargeReference) else about.charge


class Charge(StripeModel):
    """A charge as the API returns it now."""

    object: Literal["charge"]
    id: ChargeId
    payment_intent: PaymentId | None = None
    """None: it was made without one, so by no Checkout Session."""
    refunded: bool
    """Wholly; a partial refund leaves it false."""
    disputed: bool
    """Its bank asked for the money back; a dispute that was won leaves it true."""


class CustomerDetails(StripeModel):
    """What the buyer typed on Stripe's page."""

    email: OptionalText = None


class CheckoutSession(StripeModel):
    """A Checkout Session as the API returns it now."""

    object: Literal["checkout.session"]
    id: SessionId
    payment_status: str
    """An open enum of theirs: ``paid``, ``unpaid``, ``no_payment_required`` are known."""
    metadata: dict[str, str] | None = None
    client_reference_id: OptionalText = None
    customer_details: CustomerDetails | None = None
    customer_email: OptionalText = None
    amount_total: Annotated[int, Field(ge=0, le=BIGINT_MAX)] | None = None
    currency: OptionalText = None
    payment_intent: PaymentId | None = None
    """None: not paid yet, or nothing to pay."""

    @property
    def rowclaim_slice(self) -> str | None:
        """The slice whose Session it is; None: nobody's mark."""
        return (self.metadata or {}).get("rowclaim_slice") or None

    @property
    def email(self) -> str | None:
        """Where the buyer is reached."""
        return (self.customer_details.email if self.customer_details else None) or self.customer_email


class NewCheckoutSession(StripeModel):
    """A Checkout Session that was just opened."""

    object: Literal["checkout.session"]
    id: SessionId
    url: Annotated[str, Field(pattern=r"^https?://[!-~]{1,5000}$")]
    """Where the buyer pays."""


class FulfillmentMetadata(StripeModel):
    """What our checkout put on the Session for fulfillment."""

    github_username: OptionalText = None
    github_account_id: Annotated[Annotated[int, Field(ge=1, le=BIGINT_MAX)] | None, BeforeValidator(_none_if_empty)] = (
        None
    )
