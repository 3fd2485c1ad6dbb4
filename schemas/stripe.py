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
SessionId = Annotated[str, Field(pattern=r"^cs_[A-Za-z0-9_]{1,250}$")]


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

    @property
    def rowclaim_slice(self) -> str | None:
        """The slice whose Session it is; None: nobody's mark."""
        return (self.metadata or {}).get("rowclaim_slice") or None

    @property
    def email(self) -> str | None:
        """Where the buyer is reached."""
        return (self.customer_details.email if self.customer_details else None) or self.customer_email


class FulfillmentMetadata(StripeModel):
    """What our checkout put on the Session for fulfillment."""

    github_username: OptionalText = None
    github_account_id: Annotated[Annotated[int, Field(ge=1, le=BIGINT_MAX)] | None, BeforeValidator(_none_if_empty)] = (
        None
    )
