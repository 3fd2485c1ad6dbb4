"""Doorbells over Kafka: ringing after a commit, bounded, and without ever failing who rings.

Rows tell what is owed; a topic only says "look again" and carries ids. So publishing drops on overflow, a broker that
is away costs latency alone, and a producer whose broker died is thrown away. What a ring wakes is
``operations.subscribing``.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from prometheus_client import Counter

from schemas.triggers import IDS_MAX, TOPICS, EventsTrigger
from services.kernel.doors import Crossing, Door
from services.kernel.errors import Retryable
from services.kernel.worker import first_of

log = structlog.get_logger()

RINGS = Counter("rowclaim_rings", "Event ids rung, by what became of them.", ["topic", "result"])

TOPIC_NAMES: Final = tuple(topic.name for topic in TOPICS)
GAP_S: Final = 0.010
PENDING_MAX: Final = 10_000
PUBLISH_S: Final = 1.0
DISCARD_S: Final = 2.0
RECORD_BYTES_MAX: Final = 2 * 1024 * 1024
LOST: Final = (KafkaError, OSError, TimeoutError)

Header: TypeAlias = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """How to reach the broker. ``idempotent`` is on for a real cluster; the embedded broker refuses it."""

    bootstrap: str
    fetch_wait_ms: int = 500
    session_timeout_ms: int = 10_000
    heartbeat_ms: int = 3_000
    idempotent: bool = False

    @property
    def addresses(self) -> list[str]:
        """Each ``host:port`` of ``bootstrap``, which may name several, parted by commas."""
        return [address.strip() for address in self.bootstrap.split(",")]


class Publisher:
    """One producer, made when first needed. A producer whose broker died stays broken: it is dropped and made anew."""

    def __init__(self, kafka: Kafka, *, bound_s: float = PUBLISH_S) -> None:
        self._kafka = kafka
        self._bound_s = bound_s
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._discarding: set[asyncio.Task[None]] = set()

    async def publish(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: Sequence[Header] = ()
    ) -> None:
        """Publish and wait for every replica's word, ``bound_s`` seconds at most. Raises Retryable.

        A publish that timed out may still arrive: whoever reads must bear a repetition.
        """
        producer = None
        try:
            async with asyncio.timeout(self._bound_s):
                producer = await self._started()
                with Crossing(Door.KAFKA, f"publish {topic}"):
                    await producer.send_and_wait(topic, value, key=key, headers=headers)
        except LOST as error:
            self._discard(producer)
            raise Retryable("broker_unavailable", f"publish to {topic}: {type(error).__name__}") from error

    async def close(self) -> None:
        """Give the connection back; two seconds at most."""
        self._discard(self._producer)
        if self._discarding:
            await asyncio.wait(self._discarding)

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._kafka.bootstrap,
                    acks="all",
                    enable_idempotence=self._kafka.idempotent,
                    max_request_size=RECORD_BYTES_MAX,
                    # Its own batches give up when we do, so that a producer can be stopped while its broker is away.
                    request_timeout_ms=int(self._bound_s * 1000),
                )
                try:
                    with Crossing(Door.KAFKA, "connect"):
                        await producer.start()
                except BaseException:
                    self._discard(producer)
                    raise
                self._producer = producer
            return self._producer

    def _discard(self, producer: AIOKafkaProducer | None) -> None:
        if producer is None:
            return
        if producer is self._producer:
            self._producer = None
        task = asyncio.create_task(_stop(producer))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)


async def _stop(producer: AIOKafkaProducer) -> None:
    with suppress(*LOST):
        async with asyncio.timeout(DISCARD_S):
            await producer.stop()


class Doorbell:
    """Rings after a commit: the first of a quiet spell at once, then one message a topic every ``gap_s`` seconds.

    Measured at 1,000 rings/s: a message for each costs the broker 3.5 times the processor time. Whatever finds no room,
    or no broker, is dropped and counted; sweeps find what it would have told.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        topics: Iterable[str] = TOPIC_NAMES,
        gap_s: float = GAP_S,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self._publisher = publisher
        self._pending: dict[str, dict[int, None]] = {topic: {} for topic in topics}
        self._gap_s = gap_s
        self._pending_max = pending_max
        self._rung = asyncio.Event()

    def ring(self, topic: str, ids: Iterable[int]) -> None:
        """Ask for a ring about stored events. Never blocks, never raises."""
        pending = self._pending.get(topic)
        if pending is None:
            log.error("ring_for_unknown_topic", topic=topic)
            return
        for event_id in ids:
            if len(pending) < self._pending_max or event_id in pending:
                pending[event_id] = None
            else:
                RINGS.labels(topic, "overflowed").inc()
        self._rung.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set, and then what is still pending, once."""
        try:
            while not stop.is_set():
                await first_of(self._rung, stop)
                self._rung.clear()
                await self._publish_pending()
                await first_of(stop, within_s=self._gap_s)
            await self._publish_pending()
        finally:
            await self._publisher.close()

    async def _publish_pending(self) -> None:
        for topic, pending in self._pending.items():
            ids = tuple(pending)[:IDS_MAX]
            if not ids:
                continue
            for event_id in ids:
                del pending[event_id]
            if pending:
                self._rung.set()
            result = "published" if await self._published(topic, ids) else "unpublished"
            RINGS.labels(topic, result).inc(len(ids))

    async def _published(self, topic: str, ids: tuple[int, ...]) -> bool:
        value = EventsTrigger(ids=ids).model_dump_json().encode()
        for last_try in (False, True):  # the first may meet a producer whose broker died since the last ring
            try:
                await self._publisher.publish(topic, value)
            except Retryable as error:
                if last_try:
                    log.warning("ring_dropped", topic=topic, ids=len(ids), reason=error.detail)
            else:
                return True
        return False
