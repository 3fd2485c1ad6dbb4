"""Doorbells over Kafka: ringing after a commit, and waking workers when somebody rang.

Rows tell what is owed; a topic only says "look again". So publishing is bounded, drops on overflow and never fails its
caller; a handler coalesces ids, rings, acknowledges, and calls nobody; and a lost log, a lost record or a broker that
stays away costs latency alone.

FastStream's defaults lose records in a dozen ways. What is set here, and why:

- NACK_ON_ERROR on the subscriber itself. Unset means acknowledged before it is handled; ACK and REJECT acknowledge a
  failure; on the broker it would not be validated.
- ``earliest``, one group per service and topic. After a broker lost its log, ``latest`` never reads the new one.
- The framework sees no headers. One that is null or not UTF-8 makes its parser lose the whole batch, and ``reply_to``
  makes it publish wherever a stranger says. Decoding is per record: a bad one costs its neighbours nothing.
- A failure waits before it is raised: a nack is a seek without a delay.
- The default request timeout. It also bounds joining a group; a shorter one makes a consumer that never joins.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import structlog
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.kafka.subscriber.usecase import BatchSubscriber
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from prometheus_client import Counter
from pydantic import ValidationError

from schemas.triggers import DEAD_LETTERS, IDS_MAX, TOPICS, EventsTrigger
from services.kernel.doors import Crossing, Door
from services.kernel.errors import Retryable
from services.kernel.worker import Backoff, first_of

log = structlog.get_logger()

RINGS = Counter("rowclaim_rings", "Event ids rung, by what became of them.", ["topic", "result"])
RECORDS = Counter("rowclaim_trigger_records", "Trigger records received, by what became of them.", ["topic", "result"])
COMMITS_FAILED = Counter("rowclaim_offset_commits_failed", "Offset commits that failed; they come again.", ["topic"])

TOPIC_NAMES: Final = tuple(topic.name for topic in TOPICS)
GAP_S: Final = 0.010
PENDING_MAX: Final = 10_000
PUBLISH_S: Final = 1.0
DISCARD_S: Final = 2.0
RECORDS_MAX: Final = 500
POLL_MS: Final = 20
BATCH_S: Final = 60.0
COMMIT_S: Final = 5.0
POLL_INTERVAL_MAX_MS: Final = 180_000
GRACEFUL_S: Final = 15.0
BURIED_MAX: Final = 10_000
RECORD_BYTES_MAX: Final = 2 * 1024 * 1024
LOST: Final = (KafkaError, OSError, TimeoutError)

Ring: TypeAlias = Callable[[frozenset[int]], None]
Header: TypeAlias = tuple[str, bytes | None]
Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]


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


class DeadLetters:
    """Puts records nobody can decode aside, bytes unchanged, on ``<topic>.dlq``.

    A batch that is delivered again does not bury its dead twice: this process remembers the coordinates (and a digest,
    since a broker that lost its log gives coordinates out again) of the last ten thousand. After a crash or rebalance a
    record may be put aside twice, under the same key: the topic is compacted, and a reader goes by the key.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._buried: OrderedDict[bytes, None] = OrderedDict()

    async def bury(self, record: Record, reason: str) -> None:
        """Publish a record to its dead-letter topic unless this was done. Raises Retryable("broker_unavailable")."""
        digest = hashlib.sha256(repr(record.value).encode()).hexdigest()[:16]
        key = f"{record.topic}/{record.partition}/{record.offset}/{digest}".encode()
        if key in self._buried:
            return
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        told = where | {"timestamp-ms": record.timestamp, "reason": reason}
        headers = [*record.headers, *((f"rowclaim-{name}", str(value).encode()) for name, value in told.items())]
        if record.key is not None:
            headers.append(("rowclaim-key", record.key))
        await self._publisher.publish(record.topic + DEAD_LETTERS, record.value, key=key, headers=headers)
        self._buried[key] = None
        if len(self._buried) > BURIED_MAX:
            self._buried.popitem(last=False)


def make_broker(kafka: Kafka) -> KafkaBroker:
    """The one broker object of a consuming process. It publishes nothing and creates no topic."""
    return KafkaBroker(
        kafka.addresses,
        client_id="rowclaim",
        consumer_only=True,
        allow_auto_create_topics=False,
        graceful_timeout=GRACEFUL_S,
        apply_types=False,
        logger=logging.getLogger(__name__),
        log_level=logging.DEBUG,
    )


def subscribe(
    broker: KafkaBroker,
    kafka: Kafka,
    *,
    topic: str,
    group: str,
    ring: Ring,
    dead_letters: DeadLetters,
    backoff: Backoff | None = None,
) -> BatchSubscriber:
    """Let ``ring`` be called with the ids of each batch of ``topic``, for the service named ``group``.

    ``ring`` must return at once. It may be told an id again, late, out of order, or one that does not exist.
    """
    subscriber = broker.subscriber(
        topic,
        group_id=f"{group}.{topic}",
        batch=True,
        max_records=RECORDS_MAX,
        batch_timeout_ms=POLL_MS,
        ack_policy=AckPolicy.NACK_ON_ERROR,
        auto_offset_reset="earliest",
        no_reply=True,
        parser=_parse_without_headers,
        decoder=_undecoded,
        fetch_max_wait_ms=kafka.fetch_wait_ms,
        session_timeout_ms=kafka.session_timeout_ms,
        heartbeat_interval_ms=kafka.heartbeat_ms,
        max_poll_interval_ms=POLL_INTERVAL_MAX_MS,
    )
    subscriber(_Handler(topic, ring, dead_letters, backoff or Backoff()).handle)
    return subscriber


async def _parse_without_headers(records: tuple[Record, ...], original: Callable[..., Any]) -> KafkaMessage:
    message: KafkaMessage = await original(tuple(replace(record, headers=()) for record in records))
    message.raw_message = records
    return message


async def _undecoded(message: KafkaMessage) -> KafkaMessage:
    return message


class _Handler:
    """What one subscriber does with a batch: decode, ring, put the undecodable aside, acknowledge."""

    def __init__(self, topic: str, ring: Ring, dead_letters: DeadLetters, backoff: Backoff) -> None:
        self._topic = topic
        self._ring = ring
        self._dead_letters = dead_letters
        self._backoff = backoff

    async def handle(self, message: KafkaMessage) -> None:
        records = cast(tuple[Record, ...], message.raw_message)
        try:
            async with asyncio.timeout(BATCH_S):
                ids, dead = _decoded(records)
                if ids:
                    self._ring(ids)
                for record, reason in dead:
                    await self._dead_letters.bury(record, reason)
                await self._acknowledge(message)
        except Exception:
            await asyncio.sleep(self._backoff.next())
            raise
        self._backoff.reset()
        RECORDS.labels(self._topic, "rung").inc(len(records) - len(dead))
        RECORDS.labels(self._topic, "dead").inc(len(dead))

    async def _acknowledge(self, message: KafkaMessage) -> None:
        """Commit the position. One that fails is counted and left: the records come again, or the next passes it."""
        try:
            async with asyncio.timeout(COMMIT_S):
                with Crossing(Door.KAFKA, f"commit {self._topic}"):
                    await message.ack()
        except LOST as error:
            COMMITS_FAILED.labels(self._topic).inc()
            log.warning("offset_commit_failed", topic=self._topic, reason=type(error).__name__)
            message.committed = AckStatus.ACKED  # else the framework commits once more, without a bound


def _decoded(records: Iterable[Record]) -> tuple[frozenset[int], list[tuple[Record, str]]]:
    """The ids of all records that can be read, and the others with the reason."""
    ids: set[int] = set()
    dead: list[tuple[Record, str]] = []
    for record in records:
        try:
            ids.update(EventsTrigger.model_validate_json(record.value or b"").ids)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            dead.append((record, ".".join(map(str, (*first["loc"], first["type"])))[:200]))
    return frozenset(ids), dead
