"""What a purchase can be, how it moves, and what crosses the seam to whoever delivers.

One column is the whole queue: ``purchases.fulfillment_state``. The seam is closed: a gateway is given an
``InviteRequest`` and answers one of four outcomes; the flow matches them exhaustively and knows no vendor.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from services.kernel.transition import Edge, Fence, Machine


class FulfillmentState(StrEnum):
    """Who moves a purchase next."""

    PENDING = "pending"
    """Any trigger's flush, oldest first."""
    IN_PROGRESS = "in_progress"
    """The flush that claimed it. After a crash nobody: nothing tells the two apart but a person, by force."""
    DELIVERED = "delivered"
    """Nobody; a person may force it to be sent again."""
    FAILED = "failed"
    """The buyer, by a correction, or a person, by a re-trigger. No flush ever takes it up."""


S = FulfillmentState
PURCHASES: Final = Machine(
    "purchases",
    FulfillmentState,
    [
        Edge("record", None, S.PENDING, Fence.BIRTH),
        Edge("claim", S.PENDING, S.IN_PROGRESS, Fence.CLAIM),
        Edge("deliver", S.IN_PROGRESS, S.DELIVERED, Fence.TOKEN),
        Edge("refuse", S.IN_PROGRESS, S.FAILED, Fence.TOKEN),
        Edge("put_back", S.IN_PROGRESS, S.PENDING, Fence.TOKEN),
        Edge("retrigger_pending", S.PENDING, S.PENDING, Fence.PERSON),
        Edge("retrigger_failed", S.FAILED, S.PENDING, Fence.PERSON),
        Edge("force_in_progress", S.IN_PROGRESS, S.PENDING, Fence.PERSON),
        Edge("force_delivered", S.DELIVERED, S.PENDING, Fence.PERSON),
    ],
    column="fulfillment_state",
)


# ------------------------------------------------------------------------------------------------------------ the seam
@dataclass(frozen=True, slots=True)
class InviteRequest:
    """What is to be delivered to whom."""

    purchase_id: int
    """Stable over all attempts: a vendor with idempotency keys is given this one."""
    handle: str
    """As the buyer wrote it; anything but empty."""
    account_id: int | None
    """The account this handle belonged to when it was checked before the payment; None: it was not checked."""
    ask_first: bool
    """The latest call's fate is unknown: look whether it arrived before sending again."""
    replaces: int | None = None
    """The id of an invitation that ran out unaccepted: it is removed before a new one is sent."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What the vendor says it handed out; every field may be missing from its answer."""

    id: int | None = None
    url: str | None = None
    account_id: int | None = None
    """Whom the vendor invited."""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The vendor did it, or had done it before."""

    instructions: str
    """What the buyer is told: what they have now and what is left for them to do. The mail's only knowledge of the
    product."""
    already_had_access: bool = False
    invitation: Invitation = field(default_factory=Invitation)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The vendor decided against this very request: only the buyer's correction (or a person) can change that."""

    code: str
    reason: str
    """For operators only; may quote the vendor."""
    unexplained: bool = False
    """The vendor gave no reason we know: several different buyers in a row mean that we are at fault."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The vendor wants no calls for a while. ``wait`` None: it did not say for how long."""

    wait: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Transient:
    """The vendor decided nothing about this row. ``pause``: it refused, and said so about everybody."""

    code: str
    reason: str
    ask_first: bool = False
    """The vendor may have acted."""
    timed_out: bool = False
    pause: Pause | None = None
    attention: str | None = None
    """Why an operator should look at the row meanwhile."""


@dataclass(frozen=True, slots=True)
class Config:
    """Our token, our repository, our policy: never the buyer's fault. ``wait`` None: nobody said until when."""

    code: str
    reason: str
    wait: timedelta | None = None


Outcome = Delivered | Terminal | Transient | Config


# ------------------------------------------------------------------------------------------ the handle before the money
@dataclass(frozen=True, slots=True)
class HandleKnown:
    """Somebody who can be delivered to. ``handle`` in the vendor's own letter case."""

    handle: str
    account_id: int | None = None


@dataclass(frozen=True, slots=True)
class HandleUnknown:
    """The vendor denies it: nobody has it, or an account that can never accept."""

    code: str


@dataclass(frozen=True, slots=True)
class HandleUnverified:
    """The vendor could not say, or was not asked. A check that is away must not stop a sale."""

    code: str
    our_fault: bool = False
    """Our token is refused: an operator must know."""
    pause: Pause | None = None
    """It refused, and said so about everybody: nobody else should call it either."""


HandleAnswer = HandleKnown | HandleUnknown | HandleUnverified


# ------------------------------------------------------------------------------------- what became of the invitation
@dataclass(frozen=True, slots=True)
class InvitationQuery:
    """An invitation that nobody has decided for a week."""

    handle: str
    account_id: int | None
    """Whom the vendor invited."""
    invitation_id: int | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The person has access."""


@dataclass(frozen=True, slots=True)
class Open:
    """The person may still accept."""


@dataclass(frozen=True, slots=True)
class Expired:
    """It ran out, or is gone, and the person has no access."""


InvitationStanding = Accepted | Open | Expired | Transient | Config


# ----------------------------------------------------------------------------------------------- the payment looked up
@dataclass(frozen=True, slots=True)
class Fetched:
    """A Checkout Session as its vendor has it now, undecoded: what of it we can read is for the flow to say."""

    session: object


@dataclass(frozen=True, slots=True)
class SessionMissing:
    """The vendor does not know this id."""


@dataclass(frozen=True, slots=True)
class SessionTrouble:
    """The vendor did not answer."""

    code: str


@dataclass(frozen=True, slots=True)
class SessionMisconfigured:
    """Our key is refused."""

    code: str


SessionAnswer = Fetched | SessionMissing | SessionTrouble | SessionMisconfigured


@dataclass(frozen=True, slots=True)
class NewSession:
    """What is to be sold to whom."""

    user_id: str
    handle: str | None
    """None: the buyer has no account yet, and chose to pay all the same."""
    account_id: int | None
    email: str | None
    customer_id: str | None
    """The buyer at the payments' vendor, if known; the e-mail is then the vendor's to know."""
    idempotency_key: str | None
    """Ours, made of the client's: a repetition opens the same Session."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A Session in which the buyer can pay, at ``url``."""

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The idempotency key was used for another request."""


SessionOpened = Opened | KeyReused | SessionTrouble | SessionMisconfigured


class TakenBack(StrEnum):
    """How a payment ceased to be ours; the word kept with its purchase."""

    REFUNDED = "refunded"
    """Wholly, and for good."""
    DISPUTED = "disputed"
    """Once. A dispute that was won does not undo it: that is a person's to judge."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge as it is now."""

    payment_id: str | None
    taken_back: frozenset[TakenBack]


@dataclass(frozen=True, slots=True)
class ChargeMissing:
    """The vendor does not know this id, or answers something else than a charge."""


ChargeAnswer = Charge | ChargeMissing | SessionTrouble | SessionMisconfigured


# ------------------------------------------------------------------------------------------------------------ the mail
@dataclass(frozen=True, slots=True)
class AccessMail:
    """Tells a buyer what they have."""

    purchase_id: int
    attempt: int
    """The delivered attempt: a forced re-send is a new mail, a repeated transmission of one attempt is not."""
    attempted_at: datetime
    to: str
    instructions: str


@dataclass(frozen=True, slots=True)
class MailSent:
    """A server took it."""


@dataclass(frozen=True, slots=True)
class MailNotSent:
    """Nobody took it, or nobody said so."""

    code: str


MailAnswer = MailSent | MailNotSent
