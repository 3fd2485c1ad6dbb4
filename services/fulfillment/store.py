"""Every statement of fulfillment, in the order of the flow: record, look, claim, outcome, person.

Outcomes present the claim's token and change nothing once somebody else has the row: False is a normal return.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from services.fulfillment.machine import Delivered, FulfillmentState
from services.kernel.claim import WORKER
from services.kernel.db import Tx


@dataclass(frozen=True, slots=True)
class NewPurchase:
    """A payment, as its Checkout Session proves it."""

    stripe_session_id: str
    user_id: str | None
    email: str | None
    github_handle: str | None
    github_account_id: int | None
    amount_minor: int | None
    currency: str | None


# However many deliveries of however many events speak of one Session, and at whatever moment: one row.
RECORD_PURCHASE: Final[LiteralString] = """
insert into purchases (stripe_session_id, user_id, email, github_handle, github_account_id, amount_minor, currency,
                       created_at, fulfillment_state, edge)
values ($1, $2, $3, $4, $5, $6, $7, rowclaim_now(), 'pending', 'record')
on conflict (stripe_session_id) do nothing"""


async def record_purchase(tx: Tx, new: NewPurchase) -> bool:
    """Record a purchase that owes its effect; False: it was recorded before, and stays as it is."""
    changed = await tx.execute(
        RECORD_PURCHASE,
        new.stripe_session_id,
        new.user_id,
        new.email,
        new.github_handle,
        new.github_account_id,
        new.amount_minor,
        new.currency,
    )
    return changed == 1


# Only spares the vendor's pace: a slot is not reserved for nothing. The claim decides.
ANYTHING_PENDING: Final[LiteralString] = """
select exists (select from purchases where fulfillment_state = 'pending' and revoked_at is null)"""


async def anything_pending(tx: Tx) -> bool:
    """Whether a claim could find a purchase."""
    found: bool = await tx.value(ANYTHING_PENDING)
    return found


@dataclass(frozen=True, slots=True)
class ClaimedPurchase:
    """A purchase as its claim returned it: this process owns it until its outcome is written."""

    id: int
    claim_token: int
    attempt: int
    attempted_at: datetime
    email: str | None
    github_handle: str | None
    github_account_id: int | None
    ask_first: bool
    timeouts_in_row: int
    timeout_starts: list[datetime]
    deferrals: int


CLAIM_OLDEST: Final[LiteralString] = """
with next as materialized (
  select id, claim_token from purchases
  where fulfillment_state = 'pending' and revoked_at is null
    and (next_attempt_at is null or next_attempt_at <= rowclaim_now())
  order by created_at, id limit 1 for no key update skip locked)
update purchases p
set fulfillment_state = 'in_progress', edge = 'claim', claim_token = p.claim_token + 1, outcome_token = null,
    claimed_by = $1, fulfillment_attempts = p.fulfillment_attempts + 1, fulfillment_attempted_at = rowclaim_now()
from next where p.id = next.id and p.claim_token = next.claim_token
returning p.id, p.claim_token, p.fulfillment_attempts as attempt, p.fulfillment_attempted_at as attempted_at, p.email,
          p.github_handle, p.github_account_id, p.ask_first, p.timeouts_in_row, p.timeout_starts, p.deferrals"""


async def claim_oldest(tx: Tx) -> ClaimedPurchase | None:
    """Claim the purchase that was created first among those due."""
    return await tx.row(ClaimedPurchase, CLAIM_OLDEST, WORKER)


CLAIM_DEFERRED: Final[LiteralString] = """
with next as materialized (
  select id, claim_token from purchases
  where fulfillment_state = 'pending' and revoked_at is null and next_attempt_at > rowclaim_now()
  order by created_at, id limit 1 for no key update skip locked)
update purchases p
set fulfillment_state = 'in_progress', edge = 'claim', claim_token = p.claim_token + 1, outcome_token = null,
    claimed_by = $1, fulfillment_attempts = p.fulfillment_attempts + 1, fulfillment_attempted_at = rowclaim_now()
from next where p.id = next.id and p.claim_token = next.claim_token
returning p.id, p.claim_token, p.fulfillment_attempts as attempt, p.fulfillment_attempted_at as attempted_at, p.email,
          p.github_handle, p.github_account_id, p.ask_first, p.timeouts_in_row, p.timeout_starts, p.deferrals"""


async def claim_deferred(tx: Tx) -> ClaimedPurchase | None:
    """Claim the oldest purchase that was put off: deferred is not hidden."""
    return await tx.row(ClaimedPurchase, CLAIM_DEFERRED, WORKER)


DELIVER: Final[LiteralString] = """
update purchases
set fulfillment_state = 'delivered', edge = 'deliver', outcome_token = $2, claimed_by = null,
    fulfilled_at = rowclaim_now(), fulfillment_last_error = null, fulfillment_last_code = null, ask_first = false,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null, attention = $3,
    already_had_access = $4, invitation_id = $5, invitation_url = $6, invited_account_id = $7, invited_at = $8
where id = $1 and fulfillment_state = 'in_progress' and claim_token = $2"""


async def deliver(tx: Tx, purchase: ClaimedPurchase, delivered: Delivered, attention: str | None) -> bool:
    """Write success; an earlier ``fulfilled_at`` moves forward."""
    invitation = delivered.invitation
    changed = await tx.execute(
        DELIVER,
        purchase.id,
        purchase.claim_token,
        attention,
        delivered.already_had_access,
        invitation.id,
        invitation.url,
        invitation.account_id,
        invitation.created_at,
    )
    return changed == 1


# An earlier ``fulfilled_at`` stays: that a first delivery succeeded remains true.
REFUSE: Final[LiteralString] = """
update purchases
set fulfillment_state = 'failed', edge = 'refuse', outcome_token = $2, claimed_by = null,
    fulfillment_last_error = $3, fulfillment_last_code = $4, attention = $5, ask_first = false,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null
where id = $1 and fulfillment_state = 'in_progress' and claim_token = $2"""


async def refuse(tx: Tx, purchase: ClaimedPurchase, *, code: str, reason: str, attention: str | None) -> bool:
    """Write a decision against this purchase: no flush takes it up again."""
    return await tx.execute(REFUSE, purchase.id, purchase.claim_token, reason, code, attention) == 1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """A row's latest attempts, as long as they timed out without exception."""

    in_row: int = 0
    starts: Sequence[datetime] = ()
    """When the latest of them began, oldest first, as many as the rule of the slow row asks about."""
    deferrals: int = 0
    defer: timedelta | None = None
    """Put the row off for so long; None: it stays due and keeps its place."""


# ``ask_first`` is only ever set here: a put-back is no proof of what the vendor did before it.
PUT_BACK: Final[LiteralString] = """
update purchases
set fulfillment_state = 'pending', edge = 'put_back', outcome_token = $2, claimed_by = null,
    fulfillment_last_error = $3, fulfillment_last_code = $4, attention = $5, ask_first = ask_first or $6,
    timeouts_in_row = $7, timeout_starts = $8, deferrals = $9, next_attempt_at = rowclaim_now() + $10::interval
where id = $1 and fulfillment_state = 'in_progress' and claim_token = $2"""


async def put_back(
    tx: Tx,
    purchase: ClaimedPurchase,
    *,
    code: str,
    reason: str,
    ask_first: bool = False,
    attention: str | None = None,
    timeouts: Timeouts = Timeouts(),
) -> bool:
    """Give a row back undecided: it keeps its age, and its attempt stays counted."""
    changed = await tx.execute(
        PUT_BACK,
        purchase.id,
        purchase.claim_token,
        reason,
        code,
        attention,
        ask_first,
        timeouts.in_row,
        timeouts.starts,
        timeouts.deferrals,
        timeouts.defer,
    )
    return changed == 1


DELIVERED_SINCE: Final[LiteralString] = """
select exists (select from purchases where fulfilled_at > $1)"""


async def delivered_since(tx: Tx, instant: datetime) -> bool:
    """Whether any purchase was delivered after ``instant``."""
    delivered: bool = await tx.value(DELIVERED_SINCE, instant)
    return delivered


@dataclass(frozen=True, slots=True)
class FailedLogin:
    """Whom the vendor refused, and why."""

    login: str
    code: str


# A purchase without a handle was never the vendor's to decide, and breaks no row of its refusals.
FAILED_IN_A_ROW: Final[LiteralString] = """
select lower(github_handle) as login, fulfillment_last_code as code from purchases
where fulfillment_state = 'failed' and id <> $1 and github_handle is not null and fulfillment_last_code is not null
  and fulfillment_attempted_at > coalesce((
    select fulfilled_at from purchases where fulfilled_at is not null order by fulfilled_at desc limit 1), '-infinity')
order by fulfillment_attempted_at desc limit $2"""


async def list_failed_in_a_row(tx: Tx, purchase: ClaimedPurchase, *, limit: int) -> list[FailedLogin]:
    """Other purchases that failed since the latest delivery of any, latest first."""
    return await tx.rows(FailedLogin, FAILED_IN_A_ROW, purchase.id, limit)


@dataclass(frozen=True, slots=True)
class Requeued:
    """A purchase set back to pending, and the edge by which: it tells what the purchase was before."""

    id: int
    edge: str
    fulfillment_attempts: int


# One conditional write: racing a claim, it either wins or changes nothing. A stranded attempt may have reached the
# vendor, so the one that follows asks first; a payment that was taken back is nobody's to send.
REQUEUE: Final[LiteralString] = """
update purchases
set edge = case fulfillment_state when 'pending' then 'retrigger_pending' when 'failed' then 'retrigger_failed'
             when 'in_progress' then 'force_in_progress' else 'force_delivered' end,
    ask_first = ask_first or fulfillment_state = 'in_progress', fulfillment_state = 'pending',
    claim_token = claim_token + 1, outcome_token = null, claimed_by = null,
    fulfillment_last_error = null, fulfillment_last_code = null, attention = null,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null
where id = $1 and revoked_at is null and (fulfillment_state in ('pending', 'failed') or $2)
returning id, edge, fulfillment_attempts"""


async def requeue(tx: Tx, purchase_id: int, *, force: bool) -> Requeued | None:
    """Set a purchase back to pending; None: there is none that may be."""
    return await tx.row(Requeued, REQUEUE, purchase_id, force)


RECORD_ACTION: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, $2, $3, $4, jsonb_build_object('fulfillment_state', $5::text),
        jsonb_build_object('fulfillment_state', $6::text))"""


async def record_action(
    tx: Tx, *, actor: str, verb: str, target: str, reason: str, before: FulfillmentState, after: FulfillmentState
) -> None:
    """Keep who moved a purchase by hand, and why."""
    await tx.execute(RECORD_ACTION, actor, verb, target, reason, before, after)


@dataclass(frozen=True, slots=True)
class PurchaseState:
    """How a purchase stands."""

    id: int
    fulfillment_state: FulfillmentState
    fulfillment_attempts: int
    revoked_at: datetime | None


FIND_STATE: Final[LiteralString] = """
select id, fulfillment_state, fulfillment_attempts, revoked_at from purchases where id = $1"""


async def find_state(tx: Tx, purchase_id: int) -> PurchaseState | None:
    """How a purchase stands now."""
    return await tx.row(PurchaseState, FIND_STATE, purchase_id)
