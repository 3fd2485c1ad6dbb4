"""What we read of Clerk's user events, whatever else they hold.

Subsets on purpose, as of Stripe's objects. What must be there to tell "none" from "not said" (the addresses, which of
them is primary) is required: an event that lacks it is parked, and erases nothing.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from schemas.text import Text

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
CUSTOMER_ID: Final = re.compile(r"cus_[A-Za-z0-9]{1,64}", re.ASCII)

UserId = Annotated[str, Field(pattern=r"^[!-~]{1,255}$")]
"""Clerk's subject: one word of printable ASCII."""
Milliseconds = Annotated[int, Field(strict=True, ge=0, le=253_402_300_799_999)]
"""Since 1970, up to the end of year 9999."""


def instant(milliseconds: int) -> datetime:
    """An instant as Clerk writes it, to the millisecond."""
    return EPOCH + timedelta(milliseconds=milliseconds)


class ClerkModel(BaseModel):
    """Frozen, and blind to what it does not name."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class EmailAddress(ClerkModel):
    """One of a user's addresses."""

    id: str
    email_address: Text


class User(ClerkModel):
    """A user as they were when the event was written."""

    object: Literal["user"]
    id: UserId
    updated_at: Milliseconds
    email_addresses: tuple[EmailAddress, ...]
    primary_email_address_id: str | None
    private_metadata: dict[str, Any] | None = None
    public_metadata: dict[str, Any] | None = None
    # ``unsafe_metadata`` is written by the user's own browser, and is not read.

    @property
    def email(self) -> str | None:
        """The primary address: the one whose id is named, wherever it stands in the list."""
        named = (one.email_address for one in self.email_addresses if one.id == self.primary_email_address_id)
        return next(named, None) or None

    @property
    def stripe_customer_id(self) -> str | None:
        """The shop's word about who this is at Stripe, private before public; anything else than a customer's id is
        none."""
        for metadata in (self.private_metadata, self.public_metadata):
            said = (metadata or {}).get("stripe_customer_id")
            if isinstance(said, str) and CUSTOMER_ID.fullmatch(said):
                return said
        return None


class UserChanged(ClerkModel):
    """``user.created`` and ``user.updated``: they differ in nothing that is read, and arrive in any order."""

    type: Literal["user.created", "user.updated"]
    timestamp: Milliseconds
    data: User


class DeletedUser(ClerkModel):
    """All that a deletion says of its user."""

    id: UserId


class UserDeleted(ClerkModel):
    """``user.deleted``."""

    type: Literal["user.deleted"]
    data: DeletedUser


USER_EVENT: Final[TypeAdapter[UserChanged | UserDeleted]] = TypeAdapter(
    Annotated[UserChanged | UserDeleted, Field(discriminator="type")]
)
"""Reads one event's body; ValidationError for anything else."""
