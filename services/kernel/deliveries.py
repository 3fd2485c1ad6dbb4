"""Working off deliveries: claim a batch, hold it while it is worked on, finish it in one write.

A held batch is renewed together every third of its lease, so a slow, paced vendor never looks like a dead worker.
Only a worker that renewed nothing counts as crashed, and five crashes park the delivery: it may be what kills them.
A transient failure is never counted towards parking.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, LiteralString

import structlog

from services.kernel.claim import WORKER, renewal_interval_s
from services.kernel.db import Database, Tx
from services.kernel.effects import settled
from services.kernel.errors import Retryable
from services.kernel.transition import Edge, Fence, Machine

log = structlog.get_logger()

CRASHES_MAX: Final = 5
FULL_SCAN_S: Final = 2.0


class DeliveryState(StrEnum):
    """Who moves a delivery next."""

    PENDING = "pending"
    """The consumer's worker, once ``next_attempt_at`` has come."""
    IN_PROGRESS = "in_progress"
    """The worker that holds the lease; after it, the reaper."""
    DONE = "done"
    """Nobody; an operator may replay it."""
    PARKED = "parked"
    """An operator: it cannot be read, is nobody's, or kills its workers."""
    NOT_OURS = "not_ours"
    """Nobody: the object belongs to another slice."""


S = DeliveryState
DELIVERIES = Machine(
    "webhook_deliveries",
    DeliveryState,
    [
        Edge("arrive", None, S.PENDING, Fence.BIRTH),
        Edge("arrive_parked", None, S.PARKED, Fence.BIRTH),
        Edge("claim", S.PENDING, S.IN_PROGRESS, Fence.CLAIM),
        Edge("finish", S.IN_PROGRESS, S.DONE, Fence.TOKEN),
        Edge("disown", S.IN_PROGRESS, S.NOT_OURS, Fence.TOKEN),
        Edge("park", S.IN_PROGRESS, S.PARKED, Fence.TOKEN),
        Edge("put_back", S.IN_PROGRESS, S.PENDING, Fence.TOKEN),
        Edge("reap", S.IN_PROGRESS, S.PENDING, Fence.CLAIM),
        Edge("reap_park", S.IN_PROGRESS, S.PARKED, Fence.CLAIM),
        Edge("unpark", S.PARKED, S.PENDING, Fence.PERSON),
        Edge("replay", S.DONE, S.PENDING, Fence.PERSON),
        Edge("replay_not_ours", S.NOT_OURS, S.PENDING, Fence.PERSON),
    ],
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event owed to this consumer, as claimed. ``body`` None: older than bodies are kept; empty: forgotten."""

    event_id: int
    claim_token: int
    attempt: int
    source: str
    external_id: str
    kind: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Done:
    """The work the event asked for is done, or there was none."""


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The event's object bears another slice's mark."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A person must look: ``reason`` is a machine code."""

    reason: str


@dataclass(frozen=True, slots=True)
class PutBack:
    """Not now; due again after ``wait``. Never counted towards parking."""

    wait: timedelta = timedelta()


Verdict = Done | NotOurs | Parked | PutBack
FAILED: Final = PutBack(timedelta(seconds=1))
FORGOTTEN: Final = Parked("forgotten")
"""Somebody had the person forgotten whom the event is about: no handler sees it, and what it owed stands in sight."""

# Ordered and bounded by ``next_attempt_at``: the floor keeps a scan off the dead index entries of finished rows.
# Whoever makes a row claimable writes the clock's instant or a later one, so nothing appears below a floor that was
# read before; what a shifted order of commits leaves below it is found by the unfloored scan.
CLAIM_DELIVERIES: Final[LiteralString] = """
with next as materialized (
  select event_id, consumer, claim_token from webhook_deliveries
  where state = 'pending' and consumer = $1 and next_attempt_at <= rowclaim_now()
    and next_attempt_at >= coalesce($5::timestamptz, '-infinity')
  order by next_attempt_at limit $2 for no key update skip locked)
update webhook_deliveries d
set state = 'in_progress', edge = 'claim', claim_token = d.claim_token + 1, outcome_token = null,
    attempt = d.attempt + 1, claimed_by = $3, claimed_at = rowclaim_now(),
    lease_until = rowclaim_now() + $4::interval, renewals = 0
from next
where d.event_id = next.event_id and d.consumer = next.consumer and d.claim_token = next.claim_token
returning d.event_id, d.claim_token, d.attempt, d.next_attempt_at"""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    event_id: int
    claim_token: int
    attempt: int
    next_attempt_at: datetime


async def claim_deliveries(
    tx: Tx, consumer: str, *, limit: int, lease: timedelta, floor: datetime | None
) -> list[ClaimedDelivery]:
    """Claim the ``limit`` deliveries of ``consumer`` due longest, none below ``floor`` (None: no floor)."""
    return await tx.rows(ClaimedDelivery, CLAIM_DELIVERIES, consumer, limit, WORKER, lease, floor)


# Not part of the claim: a claim joins no table, or a lock elsewhere would hide the row.
READ_EVENTS: Final[LiteralString] = """
select u.event_id, u.claim_token, u.attempt, e.source, e.external_id, e.kind, b.body
from unnest($1::bigint[], $2::bigint[], $3::integer[]) with ordinality as u (event_id, claim_token, attempt, nth)
join event_ids e on e.id = u.event_id
left join event_bodies b on b.event_id = e.id and b.received_at = e.received_at
order by u.nth"""


async def read_deliveries(tx: Tx, claimed: Sequence[ClaimedDelivery]) -> list[Delivery]:
    """The events of a claimed batch, in the order claimed."""
    return await tx.rows(
        Delivery,
        READ_EVENTS,
        [c.event_id for c in claimed],
        [c.claim_token for c in claimed],
        [c.attempt for c in claimed],
    )


FINISH_DELIVERIES: Final[LiteralString] = """
update webhook_deliveries d
set state = u.state, edge = u.edge, outcome_token = u.token, lease_until = null, parked_reason = u.parked_reason,
    finished_at = case when u.state = 'pending' then null else rowclaim_clock() end,
    next_attempt_at = case when u.state = 'pending' then rowclaim_clock() + u.wait else d.next_attempt_at end
from unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::interval[])
  as u (event_id, token, state, edge, parked_reason, wait)
where d.event_id = u.event_id and d.consumer = $1 and d.state = 'in_progress' and d.claim_token = u.token"""


async def finish_deliveries(
    tx: Tx, consumer: str, verdicts: Sequence[tuple[Delivery | ClaimedDelivery, Verdict]]
) -> int:
    """Write a batch's verdicts, each row fenced by its own token; returns how many were still held."""
    if not verdicts:
        return 0
    # In one order, like every batch: two workers' batches never wait for each other in a circle.
    in_order = sorted(verdicts, key=lambda one: one[0].event_id)
    rows = [(delivery.event_id, delivery.claim_token, *_written(verdict)) for delivery, verdict in in_order]
    return await tx.execute(FINISH_DELIVERIES, consumer, *map(list, zip(*rows, strict=True)))


def _written(verdict: Verdict) -> tuple[str, str, str | None, timedelta]:
    match verdict:
        case Done():
            return S.DONE, "finish", None, timedelta()
        case NotOurs():
            return S.NOT_OURS, "disown", None, timedelta()
        case Parked(reason):
            return S.PARKED, "park", reason, timedelta()
        case PutBack(wait):
            return S.PENDING, "put_back", None, wait


# HOT: none of these columns is indexed.
RENEW_DELIVERIES: Final[LiteralString] = """
update webhook_deliveries d set lease_until = rowclaim_clock() + $4::interval, renewals = d.renewals + 1
from unnest($2::bigint[], $3::bigint[]) as u (event_id, token)
where d.event_id = u.event_id and d.consumer = $1 and d.state = 'in_progress' and d.claim_token = u.token"""


async def renew_deliveries(tx: Tx, consumer: str, held: Sequence[ClaimedDelivery], lease: timedelta) -> int:
    """Hold the batch for another lease; returns how many are still held."""
    return await tx.execute(
        RENEW_DELIVERIES, consumer, [c.event_id for c in held], [c.claim_token for c in held], lease
    )


Handle = Callable[[Sequence[Delivery]], Awaitable[Mapping[int, Verdict]]]


class DeliveryWorker:
    """One consumer's deliveries in this process. ``step`` is what a ``kernel.worker.Worker`` runs.

    ``handle`` answers a verdict for every event id it is given. If it raises Retryable, or is cut off, the batch is put
    back (due again after a second) and the error goes on: an event is never lost to an exception, nor finished by one.
    Any other error is our own fault, and ends the process. The batch is then tried one by one before: an event that
    nobody can handle costs its neighbours nothing, and is parked at its fifth attempt instead of killing us for ever.
    """

    def __init__(self, db: Database, consumer: str, handle: Handle, *, lease: timedelta, batch_max: int) -> None:
        self._db = db
        self._consumer = consumer
        self._handle = handle
        self._lease = lease
        self._batch_max = batch_max
        self._floor: datetime | None = None
        self._scanned_at = 0.0
        self._fault: Exception | None = None

    async def step(self) -> int:
        """Claim a batch, work on it, finish it; returns how many were claimed. 0 only after an unfloored scan."""
        claimed = await self._claim()
        if not claimed:
            return 0
        self._fault = None
        try:
            deliveries = await read_deliveries(self._db, claimed)
            kept = [delivery for delivery in deliveries if delivery.body != b""]
            answered = await self._held(claimed, self._verdicts(kept)) if kept else {}
        except BaseException:
            with suppress(Retryable):  # no database, no row to write: the reaper frees them
                await self._finish([(delivery, FAILED) for delivery in claimed])
            raise
        await self._finish([(delivery, answered.get(delivery.event_id, FORGOTTEN)) for delivery in deliveries])
        if self._fault is not None:
            raise self._fault
        return len(claimed)

    async def _finish(self, verdicts: Sequence[tuple[Delivery | ClaimedDelivery, Verdict]]) -> None:
        written = await settled(lambda: finish_deliveries(self._db, self._consumer, verdicts))
        if written < len(verdicts):
            log.warning("deliveries.lease_lost", consumer=self._consumer, lost=len(verdicts) - written)

    async def _verdicts(self, deliveries: Sequence[Delivery]) -> Mapping[int, Verdict]:
        """The handler's, or, where it is at fault, those of each delivery by itself."""
        try:
            answered = await self._handle(deliveries)
            return {delivery.event_id: answered[delivery.event_id] for delivery in deliveries}
        except Retryable:
            raise
        except Exception as error:
            if len(deliveries) > 1:
                return {event: v for one in deliveries for event, v in (await self._verdicts([one])).items()}
            (failed,) = deliveries
            log.critical("deliveries.handler_failed", consumer=self._consumer, event_id=failed.event_id, exc_info=error)
            self._fault = error
            return {failed.event_id: Parked("handler_fails") if failed.attempt >= CRASHES_MAX else FAILED}

    async def _claim(self) -> list[ClaimedDelivery]:
        now = asyncio.get_running_loop().time()
        full = self._floor is None or now - self._scanned_at >= FULL_SCAN_S
        claimed = await self._scan(None if full else self._floor)
        if not claimed and not full:
            full, claimed = True, await self._scan(None)
        if full:
            self._scanned_at = now
        if claimed:
            self._floor = max(delivery.next_attempt_at for delivery in claimed)
        return sorted(claimed, key=lambda delivery: (delivery.next_attempt_at, delivery.event_id))

    async def _scan(self, floor: datetime | None) -> list[ClaimedDelivery]:
        return await claim_deliveries(self._db, self._consumer, limit=self._batch_max, lease=self._lease, floor=floor)

    async def _held(
        self, claimed: Sequence[ClaimedDelivery], work: Awaitable[Mapping[int, Verdict]]
    ) -> Mapping[int, Verdict]:
        """Await ``work`` while renewing the batch's lease."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=renewal_interval_s(self._lease))
                if done:
                    return task.result()
                try:
                    held = await renew_deliveries(self._db, self._consumer, claimed, self._lease)
                except Retryable as error:
                    log.warning("deliveries.renewal_failed", consumer=self._consumer, error=str(error))
                    continue
                if held < len(claimed):
                    log.warning("deliveries.lease_lost", consumer=self._consumer, lost=len(claimed) - held)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
