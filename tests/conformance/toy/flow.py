"""How a letter is posted: claim it, hand it over, write what became of it, tell the sender."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from services.kernel.claim import WORKER
from services.kernel.db import Database
from services.kernel.effects import attempt
from tests.conformance.toy import store
from tests.conformance.toy.store import ClaimedLetter

LEASE = timedelta(seconds=60)
BOUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Posted:
    stamp: str


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer: the office may have taken the letter."""


Outcome = Posted | Refused | Unknown


class Office(Protocol):
    async def post(self, reference: str, address: str) -> Outcome: ...


Tell = Callable[[str], Awaitable[None]]
"""Mails the sender that the letter of this reference is on its way."""


async def flush(db: Database, office: Office, tell: Tell) -> int:
    """Post all that is due; returns how many letters were attempted."""
    attempted = 0
    while claimed := await store.claim(db, 1, WORKER, LEASE):
        (letter,) = claimed
        attempted += 1
        await post_one(db, letter, office, tell)
    return attempted


async def post_one(db: Database, letter: ClaimedLetter, office: Office, tell: Tell) -> None:
    async def write(outcome: Outcome) -> bool:
        match outcome:
            case Posted(stamp):
                return await store.post(db, letter.id, letter.claim_token, stamp)
            case Refused(reason):
                return await store.refuse(db, letter.id, letter.claim_token, reason)
            case Unknown():
                return await store.put_back(db, letter.id, letter.claim_token, timedelta(minutes=1))

    ended = await attempt(
        lambda: office.post(letter.reference, letter.address), write, bound_s=BOUND_S, timed_out=Unknown
    )
    if ended.held and isinstance(ended.outcome, Posted):
        await tell(letter.reference)
