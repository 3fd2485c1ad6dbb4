"""Being subscribed: joining all groups at once, leaving in order, and telling a living consumer from a dead one.

What a subscriber does with records is ``operations.subscribing``. A broker that is away stops nothing: workers tick
without it, and the subscribers come back by themselves or are started again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from faststream.kafka import KafkaBroker

from services.kernel.doors import Crossing, Door
from services.kernel.errors import Retryable
from services.kernel.triggers import LOST
from services.kernel.worker import Backoff, first_of
from services.operations.subscribing import COMMIT_S, GRACEFUL_S, RECORDS

log = structlog.get_logger()

JOIN_S: Final = 40.0
CONNECT_S: Final = 1.0
ALIVE_GRACE_S: Final = 90.0
# A header's name that is not UTF-8, a compression we have no library for, a checksum that is wrong.
UNREADABLE: Final = (UnicodeDecodeError, UnsupportedCodecError, CorruptRecordException)


class _Consumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka ships no types
    """A consumer that gets past bytes its driver cannot read; it would fetch them for ever, as fast as it can.

    It goes on at the end of the log. What it skips are rings: their rows are found by the tick and by sweeps.
    """

    async def getmany(self, *partitions: Any, timeout_ms: int = 0, max_records: int | None = None) -> Any:
        try:
            return await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        except UNREADABLE as error:
            topics = sorted({partition.topic for partition in self.assignment()})
            log.error("records_unreadable", topics=topics, reason=type(error).__name__)
            for topic in topics:
                RECORDS.labels(topic, "unreadable").inc()
            await self.seek_to_end()
            return {}


async def start_subscribers(broker: KafkaBroker) -> None:
    """Join all groups at once (the framework would join one after another). Raises Retryable("broker_unavailable")."""
    lost: list[BaseException] = []
    try:
        async with asyncio.timeout(JOIN_S):
            await broker.connect()
            config = broker.config.broker_config
            config.builder = partial(_Consumer, **cast("partial[Any]", config.builder).keywords)
            async with asyncio.TaskGroup() as joins:
                for subscriber in broker.subscribers:
                    joins.create_task(subscriber.start())
    except* LOST as errors:
        lost.extend(errors.exceptions)
    if lost:
        await stop_subscribers(broker)
        raise Retryable("broker_unavailable", f"join: {type(lost[0]).__name__}") from lost[0]


async def stop_subscribers(broker: KafkaBroker) -> None:
    """Finish the batches in hand, commit, leave the groups; bounded, whatever the broker does."""
    with suppress(*LOST):
        async with asyncio.timeout(GRACEFUL_S + COMMIT_S):
            await asyncio.gather(*(subscriber.stop() for subscriber in broker.subscribers), return_exceptions=True)
            await broker.stop()


async def run_subscribers(broker: KafkaBroker, stop: asyncio.Event) -> None:
    """Be subscribed until ``stop`` is set. While no broker answers it tries again: workers go on without rings."""
    backoff = Backoff()
    stopped = asyncio.ensure_future(stop.wait())
    try:
        while not stopped.done():
            starting = asyncio.ensure_future(start_subscribers(broker))
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()  # a join can take as long as a session; a stop does not wait for it
            await asyncio.wait({starting})
            failure = None if starting.cancelled() else starting.exception()
            if isinstance(failure, Retryable):
                log.warning("subscribers_back_off", reason=failure.detail)
                await first_of(stop, within_s=backoff.next())
            elif failure is not None:
                raise failure
            else:
                await stopped
    finally:
        stopped.cancel()
        await stop_subscribers(broker)


def is_consuming(broker: KafkaBroker) -> bool:
    """Whether every subscriber's consume task lives and its consumer is a settled member of its group.

    A member without partitions (a standby) consumes too. False during a rebalance: see ``Liveness``.
    """
    return all(_consumes(subscriber) for subscriber in broker.subscribers)


def _consumes(subscriber: Any) -> bool:
    consumer = subscriber.consumer
    if not subscriber.running or consumer is None or all(task.done() for task in subscriber.tasks):
        return False
    # Private, for want of a public way to ask a consumer whether it is one.
    coordinator = consumer._coordinator
    subscription = consumer._subscription.subscription
    return not (
        coordinator._coordination_task.done()
        or subscription is None
        or subscription.assignment is None
        or coordinator.need_rejoin(subscription)
    )


class Liveness:
    """Whether a consuming process should go on living: it consumes, did so a short while ago, or has no broker to.

    A rebalance takes seconds, so ``grace_s`` must be longer than one. A broker that is away is no reason for a
    restart: workers tick without it, and a restarted process could not consume either.
    """

    def __init__(
        self, broker: KafkaBroker, *, grace_s: float = ALIVE_GRACE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._grace_s = grace_s
        self._clock = clock
        self._seen = clock()

    async def alive(self) -> bool:
        """Ask often: what was never seen consuming within the grace counts as dead once the broker answers."""
        if is_consuming(self._broker) or not await _reachable(self._broker.specification.url):
            self._seen = self._clock()
        return self._clock() - self._seen <= self._grace_s


async def _reachable(addresses: Iterable[str]) -> bool:
    """Whether anything listens at one of the broker's addresses."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                with Crossing(Door.KAFKA, "connect"):
                    _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return True
    return False
