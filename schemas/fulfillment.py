"""What fulfillment's routes take and answer. Instants are ISO 8601 in UTC; what is not known is null, never absent."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from schemas.http import Answer, Asked
from schemas.text import Text

State = Literal["pending", "in_progress", "delivered", "failed"]
"""Who moves a purchase next: any flush; the flush that has it; nobody; its buyer or an operator."""

Id = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
UserId = Annotated[str, Field(pattern=r"^[!-~]{1,255}$")]
"""Clerk's subject: one word of printable ASCII."""
GitHubUsername = Annotated[Text, Field(min_length=1, max_length=100)]
"""Bounded, and nothing else: whether somebody has it is GitHub's to say."""
Reason = Annotated[Text, Field(max_length=500)]


# ----------------------------------------------------------------------------------------------------------- the buyer
class CheckoutRequest(Asked):
    """What is bought, for whom."""

    github_username: GitHubUsername | None
    """Must be said: null is a choice, for who has no account yet."""


class CheckoutSession(Answer):
    """Where the buyer pays."""

    id: str
    url: str


class Invitation(Answer):
    """What a delivered purchase's buyer was handed."""

    url: str | None
    sent_at: datetime | None
    accepted_at: datetime | None
    expired_at: datetime | None
    """The instant it ran out unaccepted: the username can be corrected, or the same one invited again."""


class Purchase(Answer):
    """A purchase as its buyer sees it. The vendor's reasons are for operators."""

    id: int
    state: State
    github_username: str | None
    created_at: datetime
    fulfilled_at: datetime | None
    """The latest delivery; whether it still stands is told by the state."""
    attempted_at: datetime | None
    cooldown_until: datetime | None
    """When a failed purchase's username can be corrected again; null: there is nothing to wait for."""
    invitation: Invitation | None
    revoked_at: datetime | None


class Purchases(Answer):
    """All of the caller's own, newest first."""

    purchases: tuple[Purchase, ...]


class RequeueRequest(Asked):
    """A correction."""

    purchase_id: Id
    github_username: GitHubUsername


# -------------------------------------------------------------------------------------------------------- the operator
class RetriggerRequest(Asked):
    """Send again: every purchase of the user that may be, or the one that is named."""

    purchase_id: Id | None = None
    force: Annotated[bool, Field(strict=True)] = False
    """Also what is in progress or delivered; of one that is named, also what was taken back. Needs a reason."""
    reason: Reason | None = None


class Retriggered(Answer):
    """One purchase before, and as it stands now."""

    id: int
    before: State
    state: State


class Flush(Answer):
    """Counts of a flush, and why it ended."""

    stopped: Literal["drained", "transient", "config", "gate_closed", "lease_lost", "stopping"]
    closed_until: datetime | None
    """When the vendor is called again."""
    attempted: int
    delivered: int
    failed: int
    put_back: int
    mails_sent: int
    mails_not_sent: int


class RetriggerAnswer(Answer):
    """What was sent again, and what came of it."""

    purchases: tuple[Retriggered, ...]
    flush: Flush | None
    """Null: it takes longer than an answer waits, and goes on."""


class LinkRequest(Asked):
    """Whose purchase it is."""

    user_id: UserId
    reason: Reason | None = None


class PurchaseInSight(Answer):
    """A purchase as an operator sees it."""

    id: int
    user_id: str | None
    github_username: str | None
    state: State
    why: str | None
    """Why it needs a look; null: it needs none."""
    last_error: str | None
    """May quote the vendor."""
    attempts: int
    attempted_at: datetime | None
    """When the latest attempt began: seconds ago, and it may be alive; minutes ago, and it is stranded."""
    fulfilled_at: datetime | None
    expired_at: datetime | None
    revoked_at: datetime | None
    next_attempt_at: datetime | None
    can_resend: bool
    """False: it has no owner by whom it could be addressed, or its payment was taken back."""


class Attention(Answer):
    """The newest attempts first, fifty at most."""

    purchases: tuple[PurchaseInSight, ...]
