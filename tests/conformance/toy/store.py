"""Every statement about letters, in the order of a letter's life."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

from services.kernel.db import Tx
from tests.conformance.toy.machine import LetterState


@dataclass(frozen=True, slots=True)
class ClaimedLetter:
    id: int
    claim_token: int
    reference: str
    address: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ReapedLetter:
    id: int
    state: LetterState


WRITE: Final[LiteralString] = """
insert into letters (reference, address, state, edge, next_attempt_at)
values ($1, $2, 'pending', 'write', rowclaim_clock()) on conflict (reference) do nothing"""


async def write(tx: Tx, reference: str, address: str) -> bool:
    """Owe a letter; False when this reference was written before."""
    return await tx.execute(WRITE, reference, address) == 1


CLAIM: Final[LiteralString] = """
with next as materialized (
  select id, claim_token from letters
  where state = 'pending' and next_attempt_at <= rowclaim_now()
  order by next_attempt_at, id limit $1 for no key update skip locked)
update letters l set state = 'in_progress', edge = 'claim', claim_token = l.claim_token + 1, outcome_token = null,
  attempt = l.attempt + 1, claimed_by = $2, claimed_at = rowclaim_now(), lease_until = rowclaim_now() + $3::interval
from next where l.id = next.id and l.claim_token = next.claim_token
returning l.id, l.claim_token, l.reference, l.address, l.attempt"""


async def claim(tx: Tx, limit: int, worker: str, lease: timedelta) -> list[ClaimedLetter]:
    """Take at most ``limit`` of the letters that are due, the longest due first."""
    return await tx.rows(ClaimedLetter, CLAIM, limit, worker, lease)


RENEW: Final[LiteralString] = """
update letters set lease_until = rowclaim_now() + $3::interval
where id = $1 and state = 'in_progress' and claim_token = $2"""


async def renew(tx: Tx, letter_id: int, token: int, lease: timedelta) -> bool:
    return await tx.execute(RENEW, letter_id, token, lease) == 1


POST: Final[LiteralString] = """
update letters set state = 'posted', edge = 'post', outcome_token = $2, stamp = $3, lease_until = null
where id = $1 and state = 'in_progress' and claim_token = $2"""


async def post(tx: Tx, letter_id: int, token: int, stamp: str) -> bool:
    """The letter is on its way; False when the claim was lost, and then nothing was written."""
    return await tx.execute(POST, letter_id, token, stamp) == 1


REFUSE: Final[LiteralString] = """
update letters set state = 'refused', edge = 'refuse', outcome_token = $2, refusal = $3, lease_until = null
where id = $1 and state = 'in_progress' and claim_token = $2"""


async def refuse(tx: Tx, letter_id: int, token: int, reason: str) -> bool:
    return await tx.execute(REFUSE, letter_id, token, reason) == 1


PUT_BACK: Final[LiteralString] = """
update letters set state = 'pending', edge = 'put_back', outcome_token = $2, lease_until = null,
  next_attempt_at = rowclaim_clock() + $3::interval
where id = $1 and state = 'in_progress' and claim_token = $2"""


async def put_back(tx: Tx, letter_id: int, token: int, after: timedelta = timedelta(0)) -> bool:
    return await tx.execute(PUT_BACK, letter_id, token, after) == 1


REAP: Final[LiteralString] = """
with expired as materialized (
  select id, claim_token from letters
  where state = 'in_progress' and lease_until < rowclaim_now()
  order by claimed_at, id limit $1 for no key update skip locked)
update letters l set state = 'pending', edge = 'reap', claim_token = l.claim_token + 1, outcome_token = null,
  lease_until = null, next_attempt_at = rowclaim_clock()
from expired where l.id = expired.id and l.claim_token = expired.claim_token
returning l.id, l.state"""


async def reap(tx: Tx, limit: int) -> list[ReapedLetter]:
    """Free the letters whose lease is over; whoever held them holds them no more."""
    return await tx.rows(ReapedLetter, REAP, limit)
