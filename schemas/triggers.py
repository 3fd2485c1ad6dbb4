"""Trigger topics: doorbells that say "look again" and carry ids of stored events, nothing else.

A reader ignores fields it does not know, so that a newer writer may add some. Losing a record costs latency alone, and
anybody may write one: an id that does not exist, or is not due, is a no-op.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

IDS_MAX: Final = 500
DEAD_LETTERS: Final = ".dlq"

# Strict: "7", 7.0 and true are no ids. Bounded by the database's bigint.
EventId = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]


class EventsTrigger(BaseModel):
    """Events were stored: look at what is owed for them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ids: tuple[EventId, ...] = Field(
        min_length=1, max_length=IDS_MAX, description="Ids of stored events, in no order; one may come again."
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """One trigger topic. ``partitions``: how many consuming processes of one service can be rung."""

    name: str
    message: type[BaseModel]
    summary: str
    partitions: int = 4

    @property
    def dead_letters(self) -> str:
        """Where records go that cannot be decoded, bytes unchanged."""
        return self.name + DEAD_LETTERS


STRIPE_EVENTS: Final = Topic("stripe.events.v1", EventsTrigger, "Verified Stripe events were stored.")
CLERK_EVENTS: Final = Topic("clerk.events.v1", EventsTrigger, "Verified Clerk events were stored.")
TOPICS: Final = (STRIPE_EVENTS, CLERK_EVENTS)
