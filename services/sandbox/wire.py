"""What crosses the control API: commands, what they answer, and the one codec both of its sides use.

A command is a frozen dataclass that names its answer's type; its class name is its verb: ``POST /control/AddAccount``
with the fields as JSON.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from pydantic import TypeAdapter

from services.sandbox.clerk import ClerkEndpoint
from services.sandbox.faults import Fault
from services.sandbox.github.shapes import AccountType
from services.sandbox.issuer import Signature
from services.sandbox.log import LoggedRequest
from services.sandbox.outbox import Delivery, Plan, Posting
from services.sandbox.stripe.buyer import Payment

T = TypeVar("T")
Answer = TypeVar("Answer")
Obj: TypeAlias = dict[str, Any]
"""A vendor's own object, as JSON."""


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def encode(value: object) -> bytes:
    """Any of the sandbox's dataclasses, or JSON values holding them, as JSON."""
    return _adapter(Any).dump_json(value)


def decode(shape: type[T], raw: bytes) -> T:
    """JSON as this shape; raises ValueError."""
    key: Any = shape
    value: T = _adapter(key).validate_json(raw)
    return value


class Command(Generic[Answer]):
    """Base of everything that can be asked of the control API."""

    __slots__ = ()

    @classmethod
    def answer_shape(cls) -> Any:
        """The type of the answer, as the class declared it."""
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]  # typing keeps it, unnamed


# ------------------------------------------------------------------------------------------------- clock and faults


@dataclass(frozen=True, slots=True)
class AdvanceClock(Command[None]):
    """Move the vendors' clock forward."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AddFault(Command[str]):
    """One more line in the script; answers its id."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class ClearFaults(Command[int]):
    """Take one line, or all, out of the script; answers how many. Requests hanging in it are let go."""

    fault_id: str | None = None


# ----------------------------------------------------------------------------------------------------------- GitHub


@dataclass(frozen=True, slots=True)
class AccountState:
    """A GitHub account."""

    id: int
    login: str
    type: AccountType


@dataclass(frozen=True, slots=True)
class InvitationState:
    """An open invitation."""

    id: int
    login: str
    account_id: int
    permission: str
    created_at: datetime
    expired: bool
    notified: int
    """How often the invitee was told; more than one is a duplicate somebody caused."""


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """Who may use a repository, and who was asked."""

    full_name: str
    collaborators: Mapping[str, str]
    """Permission by login."""
    invitations: tuple[InvitationState, ...]


@dataclass(frozen=True, slots=True)
class AddAccount(Command[AccountState]):
    """A GitHub account; without an id, one derived from the login."""

    login: str
    account_type: AccountType = AccountType.USER
    account_id: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class RenameAccount(Command[AccountState]):
    """Frees a login."""

    login: str
    new_login: str


@dataclass(frozen=True, slots=True)
class DeleteAccount(Command[None]):
    """The account and its access are gone."""

    login: str


@dataclass(frozen=True, slots=True)
class AddRepository(Command[RepositoryState]):
    """A private repository of an existing account; GitHub's own quota is 50 invitations a day."""

    full_name: str
    invitations_per_day_max: int | None = None


@dataclass(frozen=True, slots=True)
class RenameRepository(Command[RepositoryState]):
    """The old name redirects from now on."""

    full_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ShowRepository(Command[RepositoryState]):
    """How a repository stands."""

    full_name: str


@dataclass(frozen=True, slots=True)
class AddToken(Command[None]):
    """A GitHub credential; a known secret again changes what it may do."""

    secret: str
    login: str
    administers: tuple[str, ...]
    sees: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RevokeToken(Command[None]):
    """From now on it answers 401."""

    secret: str


@dataclass(frozen=True, slots=True)
class AddCollaborator(Command[None]):
    """Access without an invitation; ``permission`` as a PUT names it."""

    full_name: str
    login: str
    permission: str = "pull"


@dataclass(frozen=True, slots=True)
class AddMember(Command[None]):
    """An organisation member with a base role (read, triage, write, maintain, admin)."""

    full_name: str
    login: str
    role: str = "read"


@dataclass(frozen=True, slots=True)
class AcceptInvitation(Command[None]):
    """The buyer accepts."""

    full_name: str
    login: str


@dataclass(frozen=True, slots=True)
class DeclineInvitation(Command[None]):
    """The buyer declines."""

    full_name: str
    login: str


@dataclass(frozen=True, slots=True)
class LimitGitHub(Command[None]):
    """The primary rate limit of every token."""

    per_hour: int


# ----------------------------------------------------------------------------------------------------------- Stripe


@dataclass(frozen=True, slots=True)
class StripeEndpoint:
    """A webhook endpoint and the secrets that sign now, newest first."""

    id: str
    url: str
    api_version: str | None
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateSession(Command[Obj]):
    """A Checkout Session by Stripe's own parameters, nested as JSON; not written into the request log."""

    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompleteSession(Command[Obj]):
    """The buyer submits the payment page; answers the Session."""

    session_id: str
    payment: Payment = Payment.PAID
    email: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SettleSession(Command[Obj]):
    """The bank decides about an unpaid Session; answers the Session."""

    session_id: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class LeaveSession(Command[Obj]):
    """The buyer walks away and the Session expires; answers the Session."""

    session_id: str


@dataclass(frozen=True, slots=True)
class RefundCharge(Command[Obj]):
    """The shop gives a Session's money back, or ``amount`` of it (in the smallest unit); answers the charge."""

    session_id: str
    amount: int | None = None


@dataclass(frozen=True, slots=True)
class DisputeCharge(Command[Obj]):
    """The buyer's bank asks for a Session's money back; answers the dispute."""

    session_id: str
    reason: str = "fraudulent"


@dataclass(frozen=True, slots=True)
class AddStripeEndpoint(Command[StripeEndpoint]):
    """A webhook endpoint. ``api_version`` is not checked here: tomorrow's may be tried."""

    url: str
    enabled_events: tuple[str, ...] = ("*",)
    api_version: str | None = None
    secret: str | None = None
    posting: Posting = Posting.AUTO


@dataclass(frozen=True, slots=True)
class SetPosting(Command[StripeEndpoint]):
    """When an endpoint is told of what happens from now on."""

    endpoint_id: str
    posting: Posting


@dataclass(frozen=True, slots=True)
class RollSecret(Command[StripeEndpoint]):
    """A new secret; the old one signs beside it for ``keep_old_s``."""

    endpoint_id: str
    keep_old_s: int = 24 * 3600
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class WriteThinEvent(Command[Obj]):
    """A v2 event about an object (by name and id), or about none; answers it. Nobody is told until a plan says so."""

    event_type: str
    object_name: str | None = None
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeliverStripe(Command[list[Delivery]]):
    """Carry out a plan over event ids."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class ListStripeEvents(Command[list[Obj]]):
    """All events, oldest first."""

    event_type: str | None = None


# ------------------------------------------------------------------------------------------------------------ Clerk


@dataclass(frozen=True, slots=True)
class ClerkMessageState:
    """A message Clerk wrote; ``id`` is its svix-id."""

    id: str
    type: str
    body: Any


@dataclass(frozen=True, slots=True)
class AddClerkEndpoint(Command[ClerkEndpoint]):
    """A Clerk webhook endpoint; without secrets, one is minted."""

    url: str
    secrets: tuple[str, ...] = ()
    posting: Posting = Posting.AUTO


@dataclass(frozen=True, slots=True)
class CreateClerkUser(Command[Obj]):
    """A Clerk user, and ``user.created``; answers the user."""

    email: str | None
    username: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    github_login: str | None = None
    user_id: str | None = None
    more_emails: tuple[str, ...] = ()
    """Further addresses, none of them primary."""
    private_metadata: Mapping[str, Any] | None = None
    public_metadata: Mapping[str, Any] | None = None
    unsafe_metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UpdateClerkUser(Command[Obj]):
    """Changed top-level fields (``email`` replaces the addresses, null: all gone), and ``user.updated``; answers the
    user."""

    user_id: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteClerkUser(Command[Obj]):
    """The user is gone, and ``user.deleted``; answers who it was."""

    user_id: str


@dataclass(frozen=True, slots=True)
class MintToken(Command[str]):
    """A session token of any user id, known to Clerk or not; good unless told otherwise.

    ``claims`` and ``header`` are laid over the usual ones, null takes one away: ``{"exp": 1}`` has expired,
    ``{"iss": "https://elsewhere"}`` is another's.
    """

    user_id: str
    role: str | None = None
    expires_in_s: int = 60
    signature: Signature = Signature.GOOD
    claims: Mapping[str, Any] | None = None
    header: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RotateTokenKey(Command[str]):
    """A new key signs; the old ones stay published unless told otherwise. Answers the new one's id."""

    keep_old: bool = True


@dataclass(frozen=True, slots=True)
class DeliverClerk(Command[list[Delivery]]):
    """Carry out a plan over message ids."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class ListClerkMessages(Command[list[ClerkMessageState]]):
    """All messages, oldest first."""


# ---------------------------------------------------------------------------------------------------------- sending


@dataclass(frozen=True, slots=True)
class AwaitIdle(Command[bool]):
    """Wait until no webhook is being sent or waits for its retry; False when that took longer than ``within_s``."""

    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class SetRetries(Command[None]):
    """Seconds between the attempts of automatic deliveries from now on; empty for one attempt only."""

    after_s: tuple[float, ...]


# ------------------------------------------------------------------------------------------------------------- mail


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail the SMTP sink took."""

    sender: str
    recipients: tuple[str, ...]
    message_id: str
    subject: str
    text: str
    """The plain text part."""
    raw_base64: str = field(repr=False)

    @property
    def content(self) -> bytes:
        """The message as received."""
        return b64decode(self.raw_base64)


@dataclass(frozen=True, slots=True)
class FailMail(Command[None]):
    """What the SMTP sink does to the next ``times`` messages, or until healed; ``fault`` by its name."""

    fault: str
    times: int | None = None
    recipient: str | None = None


@dataclass(frozen=True, slots=True)
class HealMail(Command[None]):
    """The SMTP sink is well again."""


# ------------------------------------------------------------------------------------------------------------ reads


@dataclass(frozen=True, slots=True)
class LogPage:
    """A stretch of the request log. ``first_seq`` above 1 means older entries were let go."""

    first_seq: int
    entries: list[LoggedRequest]


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of everything there is."""

    run: str | None
    """ROWCLAIM_RUN of the sandbox's process."""
    requests: int
    deliveries: int
    mails: int
    objects: Mapping[str, int]
    """Stripe's objects by name."""
