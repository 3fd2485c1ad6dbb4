"""Being rung: what a subscriber does with the records of a trigger topic.

A handler coalesces ids, rings, acknowledges, and calls nobody; a lost log, a lost record or a broker that stays away
costs latency alone, because rows tell what is owed.

FastStream's defaults lose records in a dozen ways. What is set here, and why:

- NACK_ON_ERROR on the subscriber itself. Unset means acknowledged before it is handled; ACK and REJECT acknowledge a
  failure; on the broker it would not be validated.
- ``earliest``, one group per service and topic. After a broker lost its log, ``latest`` never reads the new one.
- The framework sees no headers. One that is null or not UTF-8 makes its parser lose the whole batch, and ``reply_to``
  makes it publish wherever a stranger says. Decoding is per record: a bad one costs its neighbours nothing.
- A failure waits before it is raised: a nack is a seek without a delay.
- Topics are looked for every ten seconds. A group that came back before its topics, after a broker lost its log, has no
  partitions; by default it would look again after five minutes.
- The default request timeout. It also bounds joining a group; a shorter one makes a consumer that never joins.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import structlog
from aiokafka import ConsumerRecord
from aiokafka.errors import MessageSizeTooLargeError
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.kafka.subscriber.usecase import BatchSubscriber
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from prometheus_client import Counter
from pydantic import ValidationError

from schemas.triggers import DEAD_LETTERS, EventsTrigger
from services.kernel.doors import Crossing, Door
from services.kernel.errors import Retryable
from services.kernel.triggers import LOST, Header, Kafka, Publisher
from services.kernel.worker import Backoff

log = structlog.get_logger()

RECORDS = Counter("rowclaim_trigger_records", "Trigger records received, by what became of them.", ["topic", "result"])
COMMITS_FAILED = Counter("rowclaim_offset_commits_failed", "Offset commits that failed; they come again.", ["topic"])

RECORDS_MAX: Final = 500
POLL_MS: Final = 20
BATCH_S: Final = 60.0
COMMIT_S: Final = 5.0
POLL_INTERVAL_MAX_MS: Final = 180_000
GRACEFUL_S: Final = 15.0
METADATA_AGE_MAX_MS: Final = 10_000
BURIED_MAX: Final = 10_000
CUT_BYTES: Final = 64 * 1024

Ring: TypeAlias = Callable[[frozenset[int]], None]
Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]


class DeadLetters:
    """Puts records nobody can decode aside, bytes unchanged, on ``<topic>.dlq``.

    One that finds no room there is put aside cut, with its size: a few compressed kilobytes can become many megabytes,
    and a record that could not be put aside at all would hold its partition for ever.

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
        place = _as_headers(where | {"timestamp-ms": record.timestamp, "reason": reason})
        own_key = [] if record.key is None else [("rowclaim-key", record.key)]
        topic, value = record.topic + DEAD_LETTERS, record.value or b""
        try:
            await self._publisher.publish(topic, record.value, key=key, headers=[*record.headers, *place, *own_key])
        except Retryable as refused:
            if not isinstance(refused.__cause__, MessageSizeTooLargeError):
                raise
            log.error("dead_letter_cut", bytes=len(value), **where)
            cut = _as_headers({"cut-bytes": len(value)})
            await self._publisher.publish(topic, value[:CUT_BYTES], key=key, headers=[*place, *cut])
        self._buried[key] = None
        if len(self._buried) > BURIED_MAX:
            self._buried.popitem(last=False)


def _as_headers(told: Mapping[str, object]) -> list[Header]:
    return [(f"rowclaim-{name}", str(value).encode()) for name, value in told.items()]


def make_broker(kafka: Kafka) -> KafkaBroker:
    """The one broker object of a consuming process. It publishes nothing and creates no topic."""
    return KafkaBroker(
        kafka.addresses,
        client_id="rowclaim",
        consumer_only=True,
        allow_auto_create_topics=False,
        graceful_timeout=GRACEFUL_S,
        metadata_max_age_ms=METADATA_AGE_MAX_MS,
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
