"""Every statement of fulfillment, in the order of the flow: who pays, record, look, claim, outcome, buyer, operator.

Outcomes present the claim's token and change nothing once somebody else has the row: False is a normal return.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from services.fulfillment.machine import Delivered, FulfillmentState, TakenBack
from services.kernel.claim import WORKER
from services.kernel.db import Tx


@dataclass(frozen=True, slots=True)
class Person:
    """What is known of a buyer before they pay."""

    email: str | None
    stripe_customer_id: str | None


FIND_PERSON: Final[LiteralString] = """
select email, stripe_customer_id from identity.people where user_id = $1"""


async def find_person(tx: Tx, user_id: str) -> Person | None:
    """A living user; None: nobody has told us of this one yet."""
    return await tx.row(Person, FIND_PERSON, user_id)


@dataclass(frozen=True, slots=True)
class NewPurchase:
    """A payment, as its Checkout Session proves it."""

    stripe_session_id: str
    stripe_payment_id: str | None
    """What refunds and disputes name; None: there was nothing to pay."""
    user_id: str | None
    email: str | None
    github_handle: str | None
    github_account_id: int | None
    amount_minor: int | None
    currency: str | None


# However many deliveries of however many events speak of one Session, and at whatever moment: one row.
RECORD_PURCHASE: Final[LiteralString] = """
insert into purchases (stripe_session_id, stripe_payment_id, user_id, email, github_handle, github_account_id,
                       amount_minor, currency, created_at, fulfillment_state, edge)
values ($1, $2, $3, $4, $5, $6, $7, $8, rowclaim_now(), 'pending', 'record')
on conflict (stripe_session_id) do nothing"""


async def record_purchase(tx: Tx, new: NewPurchase) -> bool:
    """Record a purchase that owes its effect; False: it was recorded before, and stays as it is."""
    changed = await tx.execute(
        RECORD_PURCHASE,
        new.stripe_session_id,
        new.stripe_payment_id,
        new.user_id,
        new.email,
        new.github_handle,
        new.github_account_id,
        new.amount_minor,
        new.currency,
    )
    return changed == 1


# The first instant is kept, however many events follow, and of the words the one that is final: a dispute can be won,
# and whoever judges that must not overlook that the money went back all the same. The state is left alone: a pending
# purchase can no longer be claimed, one in progress is finished by its attempt, what was handed out is a person's to
# take back.
REVOKE_PAID_BY: Final[LiteralString] = """
update purchases
set revoked_at = coalesce(revoked_at, rowclaim_now()),
    revoked_why = case when revoked_why = 'refunded' then revoked_why else $2 end
where stripe_payment_id = $1"""


async def revoke_paid_by(tx: Tx, payment_id: str, why: TakenBack) -> bool:
    """Mark the purchase of a payment that was taken back; False: none of this payment is recorded."""
    return await tx.execute(REVOKE_PAID_BY, payment_id, why) > 0


# Also finds a purchase that was recorded before payments were kept.
REVOKE_BOUGHT_IN: Final[LiteralString] = """
update purchases
set revoked_at = coalesce(revoked_at, rowclaim_now()),
    revoked_why = case when revoked_why = 'refunded' then revoked_why else $3 end,
    stripe_payment_id = coalesce(stripe_payment_id, $2)
where stripe_session_id = $1"""


async def revoke_bought_in(tx: Tx, session_id: str, payment_id: str, why: TakenBack) -> bool:
    """Mark the purchase of a Session whose payment was taken back; False: none of this Session is recorded."""
    return await tx.execute(REVOKE_BOUGHT_IN, session_id, payment_id, why) == 1


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
    replaces: int | None
    """The invitation that ran out: only one whose instant is written is ever removed."""


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
          p.github_handle, p.github_account_id, p.ask_first, p.timeouts_in_row, p.timeout_starts, p.deferrals,
          case when p.invitation_expired_at is not null then p.invitation_id end as replaces"""


async def claim_oldest(tx: Tx) -> ClaimedPurchase | None:
    """Claim the purchase that was created first among those due."""
    return await tx.row(ClaimedPurchase, CLAIM_OLDEST, WORKER)


# A claim passes over a row that somebody's transaction is writing at this very instant (a person links it, retention
# blanks it). Nothing would come back for it: who writes here need not flush. So whoever found nothing waits for it.
WAIT_FOR_PASSED_OVER: Final[LiteralString] = """
select id from purchases
where fulfillment_state = 'pending' and revoked_at is null
  and (next_attempt_at is null or next_attempt_at <= rowclaim_now())
order by created_at, id limit 1 for share"""


async def wait_for_passed_over(tx: Tx) -> bool:
    """Wait until nobody writes the oldest purchase due; False: none is. Raises Retryable as any wait for a lock."""
    return await tx.value(WAIT_FOR_PASSED_OVER) is not None


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
          p.github_handle, p.github_account_id, p.ask_first, p.timeouts_in_row, p.timeout_starts, p.deferrals,
          case when p.invitation_expired_at is not null then p.invitation_id end as replaces"""


async def claim_deferred(tx: Tx) -> ClaimedPurchase | None:
    """Claim the oldest purchase that was put off: deferred is not hidden."""
    return await tx.row(ClaimedPurchase, CLAIM_DEFERRED, WORKER)


# An invitation is a new one, with its own week; access that is there already needs no accepting. The vendor does not
# always say when it invited: then it was now.
DELIVER: Final[LiteralString] = """
update purchases
set fulfillment_state = 'delivered', edge = 'deliver', outcome_token = $2, claimed_by = null,
    fulfilled_at = rowclaim_now(), fulfillment_last_error = null, fulfillment_last_code = null, ask_first = false,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null, attention = $3,
    already_had_access = $4, invitation_id = $5, invitation_url = $6, invited_account_id = $7,
    invited_at = case when not $4 then coalesce($8, rowclaim_now()) end,
    accepted_at = case when $4 then coalesce(accepted_at, rowclaim_now()) end, invitation_expired_at = null
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


# ----------------------------------------------------------------------------------------------------------- the buyer
@dataclass(frozen=True, slots=True)
class OwnPurchase:
    """A purchase as its buyer may see it, and what a correction of it must find unchanged."""

    id: int
    claim_token: int
    state: FulfillmentState
    email: str | None
    github_handle: str | None
    github_account_id: int | None
    created_at: datetime
    attempted_at: datetime | None
    fulfilled_at: datetime | None
    cooldown_until: datetime | None
    """When its username may be corrected again; None: there is nothing to wait for."""
    cooldown_s: float | None
    """Seconds until then, by the database's clock."""
    invitation_url: str | None
    invited_at: datetime | None
    accepted_at: datetime | None
    expired_at: datetime | None
    revoked_at: datetime | None


# The one derivation of the cooldown: what is shown and what is refused turn at the same instant, by the same clock. A
# purchase without a username never reached the vendor, and has nothing to cool down from.
LIST_OWN: Final[LiteralString] = """
select p.id, p.claim_token, p.fulfillment_state as state, p.email, p.github_handle, p.github_account_id,
       p.created_at, p.fulfillment_attempted_at as attempted_at, p.fulfilled_at,
       c.until as cooldown_until, extract(epoch from c.until - rowclaim_now())::float8 as cooldown_s,
       p.invitation_url, p.invited_at, p.accepted_at, p.invitation_expired_at as expired_at, p.revoked_at
from purchases p left join lateral (select p.fulfillment_attempted_at + $2::interval as until) c
  on p.fulfillment_state = 'failed' and p.github_handle is not null and p.revoked_at is null
  and c.until > rowclaim_now()
where p.user_id = $1 and ($3::bigint is null or p.id = $3)
order by p.created_at desc, p.id desc limit $4"""


async def list_own(tx: Tx, user_id: str, *, cooldown: timedelta, limit: int) -> list[OwnPurchase]:
    """A buyer's purchases, newest first."""
    return await tx.rows(OwnPurchase, LIST_OWN, user_id, cooldown, None, limit)


async def find_own(tx: Tx, user_id: str, purchase_id: int, *, cooldown: timedelta) -> OwnPurchase | None:
    """One purchase of a buyer; None: there is none of this id, or it is somebody else's."""
    found = await tx.rows(OwnPurchase, LIST_OWN, user_id, cooldown, purchase_id, 1)
    return found[0] if found else None


# It repeats what the read found, the token included: between the two the vendor was asked, and meanwhile a flush, a
# person or the buyer's other window may have been here. What they wrote stands. Who was forgotten meanwhile is told by
# what was blanked: that takes no token, and the username would write the person back.
CORRECT: Final[LiteralString] = """
update purchases
set edge = case fulfillment_state when 'failed' then 'retrigger_failed' else 'force_delivered' end,
    fulfillment_state = 'pending', claim_token = claim_token + 1, outcome_token = null, claimed_by = null,
    github_handle = $4, github_account_id = $5,
    fulfillment_last_error = null, fulfillment_last_code = null, attention = null,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null
where id = $1 and user_id = $2 and claim_token = $3 and revoked_at is null
  and github_handle is not distinct from $6 and email is not distinct from $7
  and (fulfillment_state = 'failed' or (fulfillment_state = 'delivered' and invitation_expired_at is not null))"""


async def correct(tx: Tx, user_id: str, read: OwnPurchase, *, handle: str, account_id: int | None) -> bool:
    """Write a buyer's username and set the purchase back to pending; False: it is no longer as it was read."""
    found = (read.claim_token, handle, account_id, read.github_handle, read.email)
    return await tx.execute(CORRECT, read.id, user_id, *found) == 1


# -------------------------------------------------------------------------------------------------------- the operator
@dataclass(frozen=True, slots=True)
class Requeued:
    """A purchase set back to pending, and the edge by which: it tells what the purchase was before."""

    id: int
    edge: str


# One conditional write: racing a claim, it either wins or changes nothing. A stranded attempt may have reached the
# vendor, so the one that follows asks first.
REQUEUE: Final[LiteralString] = """
update purchases
set edge = case fulfillment_state when 'pending' then 'retrigger_pending' when 'failed' then 'retrigger_failed'
             when 'in_progress' then 'force_in_progress' else 'force_delivered' end,
    ask_first = ask_first or fulfillment_state = 'in_progress', fulfillment_state = 'pending',
    claim_token = claim_token + 1, outcome_token = null, claimed_by = null,
    fulfillment_last_error = null, fulfillment_last_code = null, attention = null,
    timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null,
    revoked_at = null, revoked_why = null
where id = $1 and (revoked_at is null or $3) and (fulfillment_state in ('pending', 'failed') or $2)
returning id, edge"""


async def requeue(tx: Tx, purchase_id: int, *, force: bool, reinstate: bool = False) -> Requeued | None:
    """Set a purchase back to pending; None: there is none that may be. ``reinstate``: also one whose payment was taken
    back, which it then no longer is."""
    return await tx.row(Requeued, REQUEUE, purchase_id, force, reinstate)


RECORD_ACTION: Final[LiteralString] = """
insert into admin_actions (actor, verb, target, reason, before, after)
values ($1, $2, $3, $4, $5::jsonb, $6::jsonb)"""


async def record_action(
    tx: Tx,
    *,
    actor: str,
    verb: str,
    purchase_id: int,
    reason: str,
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> None:
    """Keep who changed a purchase by hand, why, and what they changed."""
    target = f"purchase:{purchase_id}"
    await tx.execute(RECORD_ACTION, actor, verb, target, reason, json.dumps(before), json.dumps(after))


@dataclass(frozen=True, slots=True)
class PurchaseState:
    """How a purchase stands."""

    id: int
    user_id: str | None
    fulfillment_state: FulfillmentState
    revoked_at: datetime | None


FIND_STATE: Final[LiteralString] = """
select id, user_id, fulfillment_state, revoked_at from purchases where id = $1"""


async def find_state(tx: Tx, purchase_id: int) -> PurchaseState | None:
    """How a purchase stands now."""
    return await tx.row(PurchaseState, FIND_STATE, purchase_id)


STATES: Final[LiteralString] = """
select id, user_id, fulfillment_state, revoked_at from purchases where id = any($1::bigint[]) order by id"""


async def list_states(tx: Tx, purchase_ids: Sequence[int]) -> list[PurchaseState]:
    """How these purchases stand now."""
    return await tx.rows(PurchaseState, STATES, purchase_ids)


# What the bound must not hide comes first: the one that is named, and what can be sent without force.
STATES_OF_USER: Final[LiteralString] = """
select id, user_id, fulfillment_state, revoked_at from purchases where user_id = $1
order by coalesce(id = $2, false) desc, (revoked_at is null and fulfillment_state in ('pending', 'failed')) desc, id
limit $3"""


async def list_states_of_user(tx: Tx, user_id: str, *, named: int | None, limit: int) -> list[PurchaseState]:
    """How a user's purchases stand, oldest first; of more than ``limit`` those that may be sent, and ``named``."""
    found = await tx.rows(PurchaseState, STATES_OF_USER, user_id, named, limit)
    # The order in which the writes that follow lock: two persons at once do not block each other for good.
    return sorted(found, key=lambda one: one.id)


@dataclass(frozen=True, slots=True)
class PurchaseInSight:
    """A purchase as an operator sees it. ``why`` None: it needs no look."""

    id: int
    user_id: str | None
    github_handle: str | None
    state: FulfillmentState
    why: str | None
    since: datetime | None
    last_error: str | None
    attempts: int
    attempted_at: datetime | None
    fulfilled_at: datetime | None
    expired_at: datetime | None
    revoked_at: datetime | None
    next_attempt_at: datetime | None


ATTENTION: Final[LiteralString] = """
select id, user_id, github_handle, fulfillment_state as state, why, since, fulfillment_last_error as last_error,
       fulfillment_attempts as attempts, fulfillment_attempted_at as attempted_at, fulfilled_at,
       invitation_expired_at as expired_at, revoked_at, next_attempt_at
from purchases_attention order by fulfillment_attempted_at desc nulls last, id desc limit $1"""


async def list_attention(tx: Tx, *, limit: int) -> list[PurchaseInSight]:
    """What a person should look at, newest attempt first."""
    return await tx.rows(PurchaseInSight, ATTENTION, limit)


IN_SIGHT: Final[LiteralString] = """
select p.id, p.user_id, p.github_handle, p.fulfillment_state as state, a.why, a.since,
       p.fulfillment_last_error as last_error, p.fulfillment_attempts as attempts,
       p.fulfillment_attempted_at as attempted_at, p.fulfilled_at, p.invitation_expired_at as expired_at, p.revoked_at,
       p.next_attempt_at
from purchases p left join purchases_attention a on a.id = p.id where p.id = $1"""


async def find_in_sight(tx: Tx, purchase_id: int) -> PurchaseInSight | None:
    """One purchase, as an operator sees it."""
    return await tx.row(PurchaseInSight, IN_SIGHT, purchase_id)


# Never over another owner's: whose payment it is was proven when it was recorded. A put-off attempt is due again, for
# the buyer who now can be told of it.
LINK: Final[LiteralString] = """
update purchases
set user_id = $2, timeouts_in_row = 0, timeout_starts = '{}', deferrals = 0, next_attempt_at = null
where id = $1 and (user_id is null or user_id = $2)"""


async def link(tx: Tx, purchase_id: int, user_id: str) -> bool:
    """Give a purchase its owner; False: there is no such purchase, or it has another owner."""
    return await tx.execute(LINK, purchase_id, user_id) == 1


# ----------------------------------------------------------------------------------------------------- the invitations
@dataclass(frozen=True, slots=True)
class UndecidedInvitation:
    """A delivered purchase whose invitation nobody has taken up, as far as is known."""

    id: int
    claim_token: int
    github_handle: str
    invited_account_id: int | None
    invitation_id: int | None
    invited_at: datetime


LIST_UNDECIDED: Final[LiteralString] = """
select id, claim_token, github_handle, invited_account_id, invitation_id, invited_at from purchases
where fulfillment_state = 'delivered' and accepted_at is null and invitation_expired_at is null
  and invited_at <= rowclaim_now() - $1::interval and github_handle is not null
  and (invited_at, id) > (coalesce($2::timestamptz, '-infinity'), $3::bigint)
order by invited_at, id limit $4"""


async def list_undecided(
    tx: Tx, age: timedelta, *, after: UndecidedInvitation | None, limit: int
) -> list[UndecidedInvitation]:
    """A page of the invitations that are so old and undecided, oldest first; the next one begins ``after`` its last."""
    return await tx.rows(
        UndecidedInvitation, LIST_UNDECIDED, age, after and after.invited_at, after.id if after else 0, limit
    )


# Over the delivery that was asked about, and no other: every way out of that state takes a new token.
ACCEPT_INVITATION: Final[LiteralString] = """
update purchases set accepted_at = rowclaim_now()
where id = $1 and claim_token = $2 and accepted_at is null and invitation_expired_at is null"""


async def accept_invitation(tx: Tx, invitation: UndecidedInvitation) -> bool:
    """Write that the person has access; False: the purchase is no longer as it was read."""
    return await tx.execute(ACCEPT_INVITATION, invitation.id, invitation.claim_token) == 1


EXPIRE_INVITATION: Final[LiteralString] = """
update purchases set invitation_expired_at = invited_at + $3::interval
where id = $1 and claim_token = $2 and accepted_at is null and invitation_expired_at is null"""


async def expire_invitation(tx: Tx, invitation: UndecidedInvitation, lasts: timedelta) -> bool:
    """Write when the invitation ran out; False: the purchase is no longer as it was read."""
    return await tx.execute(EXPIRE_INVITATION, invitation.id, invitation.claim_token, lasts) == 1


# --------------------------------------------------------------------------------------------------- a forgotten person
@dataclass(frozen=True, slots=True)
class Trace:
    """What a stored event may name a buyer by."""

    text: str


LIST_TRACES: Final[LiteralString] = """
select stripe_session_id as text from purchases where user_id = $1
union select stripe_payment_id from purchases where user_id = $1 and stripe_payment_id is not null
union select email from purchases where user_id = $1 and email is not null
order by text"""


async def list_traces(tx: Tx, user_id: str) -> list[str]:
    """Session ids, payment ids and addresses of a user's purchases; none: no purchase is theirs."""
    return [row.text for row in await tx.rows(Trace, LIST_TRACES, user_id)]


@dataclass(frozen=True, slots=True)
class BlankedPurchases:
    """``personal``: those that held something of a person; ``in_progress``: one that is being attempted, by its id."""

    blanked: int
    personal: int
    in_progress: int | None


# One that is claimed between the look and the write is not blanked: then fewer were than held something. A failed
# purchase keeps a reason, because every failed one has.
BLANK_PURCHASES: Final[LiteralString] = """
with own as materialized (
  select id, fulfillment_state = 'in_progress' as in_progress,
         num_nonnulls(email, github_handle, github_account_id, invitation_url, invited_account_id,
                      nullif(fulfillment_last_error, 'forgotten')) > 0 as personal
  from purchases where user_id = $1),
blanked as (
  update purchases p
  set email = null, github_handle = null, github_account_id = null, invitation_url = null, invited_account_id = null,
      fulfillment_last_error = case when p.fulfillment_state = 'failed' then 'forgotten' end
  from own o where $2 and p.id = o.id and o.personal and p.fulfillment_state <> 'in_progress'
  returning p.id)
select (select count(*) from blanked) as blanked, count(*) filter (where personal) as personal,
       min(id) filter (where in_progress) as in_progress
from own"""


async def blank_purchases(tx: Tx, user_id: str, *, dry_run: bool) -> BlankedPurchases:
    """Blank what a user's purchases hold of a person: address, username, account, invitation, the vendor's words."""
    done = await tx.row(BlankedPurchases, BLANK_PURCHASES, user_id, not dry_run)
    return done or BlankedPurchases(0, 0, None)
