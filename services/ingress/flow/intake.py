"""A webhook's way in: verify its bytes, store it once with what is owed for it, commit, ring, answer.

The answer says what was committed, and nothing else: a broker that is down costs latency, because the delivery sweep
looks for what nobody rang for. A repeated event is one row, and rings again as long as work on it is owed: its first
ring may be the one that was lost. Of a request that is not believed, its length and hash are logged, and no byte more.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

import structlog
from prometheus_client import Counter

from schemas.triggers import CLERK_EVENTS, STRIPE_EVENTS
from services.ingress import store
from services.ingress.flow.batch import Batcher
from services.ingress.machine import Headers, Receipt, Rejected, Rejection, Source, Verdict, Verified
from services.ingress.store import Arrival, Arrived
from services.kernel.db import Database
from services.kernel.errors import Refusal, Retryable

log = structlog.get_logger()

RECEIVED = Counter("rowclaim_ingress_received", "Events answered after their commit.", ["source", "result"])
REFUSED = Counter("rowclaim_ingress_refused", "Requests that were not taken.", ["source", "reason"])
VERIFIED = Counter(
    "rowclaim_ingress_verified",
    "Events by the secret that verified them: its place in the setting and the start of its hash.",
    ["source", "secret"],
)

TOPICS: Final = {Source.STRIPE: STRIPE_EVENTS.name, Source.CLERK: CLERK_EVENTS.name}

WAITING_MAX: Final = 2048
"""Verified events that may wait for the database: some seconds of a burst at its full rate."""
ANSWER_WITHIN_S: Final = 10.0
"""Senders give up after 15 s or so; a database that froze is told to them before that, while they listen."""
BATCH_MAX: Final = 256
REFUSALS_LOGGED_EVERY_S: Final = 1.0
VERSIONS_MAX: Final = 64


class Verifier(Protocol):
    """One sender's way of signing."""

    def verify(self, headers: Headers, body: bytes) -> Verdict: ...


class Bell(Protocol):
    """The doorbell: never blocks, never raises, may lose a ring."""

    def ring(self, topic: str, ids: Iterable[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """What the door needs of the world."""

    verifiers: Mapping[Source, Verifier]
    bell: Bell


class Intake:
    """The door of one process. ``receive`` is called once a request; many at a time share a commit."""

    def __init__(self, db: Database, outside: Outside, *, waiting_max: int = WAITING_MAX) -> None:
        self._db = db
        self._outside = outside
        self._refusals = _Refusals()
        self._versions: set[tuple[Source, str]] = set()
        self._batcher: Batcher[Arrival, Arrived] = Batcher(
            "ingress",
            write=self._store_together,
            write_alone=self._store_alone,
            # Two batches over the same events, in this process or another, lock them in this order.
            order=lambda arrival: (arrival.source, arrival.external_id),
            overflow="ingress_full",
            batch_max=min(BATCH_MAX, waiting_max),
            waiting_max=waiting_max,
        )

    async def receive(self, source: Source, headers: Headers, body: bytes) -> Receipt:
        """Take one request. Raises Refusal (nothing of it is kept) or Retryable (the sender is to try again)."""
        verdict = self._outside.verifiers[source].verify(headers, body)
        match verdict:
            case Rejected(reason):
                raise self.refusal(source, reason, body)
            case Verified():
                VERIFIED.labels(source, verdict.secret).inc()
                self._see_version(source, verdict.api_version)
                return await self._arrive(source, verdict, body)
            case _:
                assert_never(verdict)

    async def _arrive(self, source: Source, event: Verified, body: bytes) -> Receipt:
        arrival = Arrival(source, event.external_id, event.kind, body, event.parked_reason)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                arrived = await self._batcher.submit(arrival)
        except TimeoutError:
            # It may still be stored: then the sender's next try is a duplicate.
            raise Retryable("database_unavailable", f"no answer in {ANSWER_WITHIN_S:g} s") from None
        if not arrived.is_new:
            receipt = Receipt.DUPLICATE
        else:
            receipt = Receipt.STORED if event.parked_reason is None else Receipt.PARKED
        RECEIVED.labels(source, receipt).inc()
        return receipt

    async def _store_together(self, arrivals: Sequence[Arrival]) -> list[Arrived]:
        arrived = await store.arrive_together(self._db, arrivals)
        self._ring(arrived.values())
        return [arrived[arrival.source, arrival.external_id] for arrival in arrivals]

    async def _store_alone(self, arrival: Arrival) -> Arrived:
        """Begins with the replay read: storing an event that a lost COMMIT stored finds it, and rings for it."""
        arrived = await store.arrive_alone(self._db, arrival)
        self._ring([arrived])
        return arrived

    def _ring(self, arrived: Iterable[Arrived]) -> None:
        """Ring for what is owed. An event without an id is being stored by another transaction: that one rings."""
        owed: dict[str, list[int]] = {}
        for one in arrived:
            if one.event_id is not None and one.unfinished:
                owed.setdefault(TOPICS[Source(one.source)], []).append(one.event_id)
        for topic, ids in owed.items():
            self._outside.bell.ring(topic, ids)

    def refusal(self, source: Source, reason: Rejection, body: bytes) -> Refusal:
        """Count a request that is not taken; the error to raise for it."""
        REFUSED.labels(source, reason).inc()
        self._refusals.say(source, reason, body)
        return Refusal(reason)

    def _see_version(self, source: Source, version: str | None) -> None:
        """Tell once which rendering a sender uses: during an upgrade two endpoints send two of them."""
        if version is None or (source, version) in self._versions or len(self._versions) >= VERSIONS_MAX:
            return
        self._versions.add((source, version))
        log.info("ingress.version_seen", source=source.value, api_version=version)

    async def close(self) -> None:
        """Return when every request taken so far is answered."""
        await self._batcher.close()


class _Refusals:
    """One line a second, sender and reason: anybody may send garbage, and must not fill a disk with it."""

    def __init__(self) -> None:
        self._said_at: dict[tuple[Source, Rejection], float] = {}

    def say(self, source: Source, reason: Rejection, body: bytes) -> None:
        now = time.monotonic()
        if now - self._said_at.get((source, reason), -REFUSALS_LOGGED_EVERY_S) < REFUSALS_LOGGED_EVERY_S:
            return
        self._said_at[source, reason] = now
        digest = hashlib.sha256(body).hexdigest()
        log.warning("ingress.refused", source=source.value, code=reason.value, body_bytes=len(body), body_sha256=digest)
