"""Being subscribed: joining, leaving, getting past what cannot be read, and telling the living from the dead."""

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c
from structlog.testing import capture_logs

from schemas.triggers import TOPICS
from services.__main__ import discover
from services.kernel.errors import Retryable
from services.kernel.triggers import Kafka, Publisher
from services.operations import subscribing
from services.operations.subscribers import (
    Liveness,
    is_consuming,
    run_subscribers,
    start_subscribers,
    stop_subscribers,
)
from tests.fixtures.brokers import BrokerServer, kafka_of
from tests.fixtures.listening import Ears, listening, told
from tests.fixtures.servers import create_topics
from tests.waiting import wait_until

NOBODY = Kafka(bootstrap="127.0.0.1:1")


async def test_a_start_without_a_broker_fails_at_once_and_leaves_nothing_open() -> None:
    broker = Ears(NOBODY, "t").broker
    with pytest.raises(Retryable, match="broker_unavailable"):
        await asyncio.wait_for(start_subscribers(broker), 10)
    assert not is_consuming(broker)
    await asyncio.wait_for(stop_subscribers(broker), 5)


async def test_without_a_broker_a_process_is_alive_however_long() -> None:
    """Its workers tick; a restart would make nothing better."""
    now = 0.0
    broker = Ears(NOBODY, "t").broker
    liveness = Liveness(broker, grace_s=90.0, clock=lambda: now)
    for _ in range(3):
        now += 1_000.0
        assert await liveness.alive()


async def test_with_a_broker_and_no_consumer_it_is_alive_for_the_grace_alone() -> None:
    now = 0.0

    async def closes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(closes, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker = Ears(Kafka(bootstrap=f"127.0.0.1:{port}"), "t").broker
    liveness = Liveness(broker, grace_s=90.0, clock=lambda: now)
    now = 89.0
    assert await liveness.alive()
    now = 91.0
    assert not await liveness.alive()
    server.close()
    await server.wait_closed()
    assert await liveness.alive()


def with_odd_header_name(producer: AIOKafkaProducer, value: bytes) -> Any:
    """A batch whose header has a name that is not UTF-8, its checksum right: no client makes one, a socket does."""
    batch = producer.create_batch()
    batch.append(key=None, value=value, timestamp=None, headers=[("NAME", b"x")])
    build = batch._builder.build
    made = bytearray(build())
    at = made.index(b"NAME")
    made[at : at + 4] = b"\xff\xfe\xff\xfe"
    made[17:21] = calc_crc32c(bytes(made[21:])).to_bytes(4, "big")
    batch._builder = _Built(batch._builder, made)
    return batch


class _Built:
    def __init__(self, builder: Any, made: bytearray) -> None:
        self._builder = builder
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def build(self) -> bytearray:
        return self._made


async def test_bytes_the_driver_cannot_read_are_passed_and_fetched_once(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    """The driver fails on them for ever, and the framework restarts its loop at once: a busy core and no rings."""
    unreadable = subscribing.RECORDS.labels(topic, "unreadable")._value
    ears = Ears(kafka, topic)
    async with listening(ears):
        await (await stranger.send_batch(with_odd_header_name(stranger, told("1")), topic, partition=0))
        await wait_until(lambda: unreadable.get() == 1, within_s=15, what="the unreadable record noticed")
        for number in range(2, 5):
            await stranger.send_and_wait(topic, told(str(number)))
        await ears.until_heard(4)
        await ears.until_committed(4)
        assert is_consuming(ears.broker)
    assert unreadable.get() == 1


async def test_a_stop_while_the_broker_is_away_is_prompt(own_broker: BrokerServer) -> None:
    kafka = kafka_of(own_broker)
    await create_topics(own_broker.bootstrap, {"t": 1})
    ears, stop = Ears(kafka, "t"), asyncio.Event()
    run = asyncio.create_task(run_subscribers(ears.broker, stop))
    await wait_until(lambda: is_consuming(ears.broker), within_s=30, what="a settled consumer")
    own_broker.kill()
    begun = time.monotonic()
    stop.set()
    await asyncio.wait_for(run, 30)
    assert time.monotonic() - begun < 15.0  # 0.0 as a rule; the group cannot be left
    await ears.publisher.close()


async def test_a_stop_does_not_wait_for_a_join(own_broker: BrokerServer) -> None:
    """A broker that takes connections and answers nothing: a join would last until its own bound."""
    ears, stop = Ears(kafka_of(own_broker), "t"), asyncio.Event()
    await own_broker.freeze()
    try:
        run = asyncio.create_task(run_subscribers(ears.broker, stop))
        await wait_until(lambda: ears.subscriber.consumer is not None, within_s=10, what="a join under way")
        begun = time.monotonic()
        stop.set()
        await asyncio.wait_for(run, 30)
        assert time.monotonic() - begun < 15.0
    finally:
        own_broker.thaw()


async def test_a_process_that_starts_before_its_broker_listens_as_soon_as_there_is_one(
    own_broker: BrokerServer,
) -> None:
    kafka = kafka_of(own_broker)
    own_broker.kill()
    ears, stop = Ears(kafka, "t"), asyncio.Event()
    with capture_logs() as logs:
        run = asyncio.create_task(run_subscribers(ears.broker, stop))
        await wait_until(lambda: len(logs) >= 2, within_s=30, what="two vain tries")
    assert {line["event"] for line in logs} == {"subscribers_back_off"}
    await own_broker.start()
    await create_topics(own_broker.bootstrap, {"t": 1})
    await wait_until(lambda: is_consuming(ears.broker), within_s=60, what="a settled consumer")
    publisher = Publisher(kafka)
    await publisher.publish("t", told("1"))
    await ears.until_heard(1)
    await publisher.close()
    stop.set()
    await asyncio.wait_for(run, 30)
    await ears.publisher.close()


async def test_a_dead_consume_task_is_noticed_though_the_broker_answers(kafka: Kafka, topic: str) -> None:
    now = 0.0
    ears = Ears(kafka, topic)
    async with listening(ears):
        liveness = Liveness(ears.broker, grace_s=90.0, clock=lambda: now)
        now = 80.0
        assert is_consuming(ears.broker)
        assert await liveness.alive()
        for task in ears.subscriber.tasks:
            task.cancel()
        await wait_until(lambda: not is_consuming(ears.broker), within_s=5, what="the dead task noticed")
        now = 160.0  # 80 s after it was last seen consuming
        assert await liveness.alive()
        now = 171.0
        assert not await liveness.alive()


async def test_a_dead_coordinator_is_noticed(kafka: Kafka, topic: str) -> None:
    ears = Ears(kafka, topic)
    async with listening(ears):
        assert is_consuming(ears.broker)
        consumer: Any = ears.subscriber.consumer
        coordination = consumer._coordinator._coordination_task
        consumer._coordinator._coordination_task = asyncio.get_running_loop().create_future()
        consumer._coordinator._coordination_task.set_result(None)
        assert not is_consuming(ears.broker)
        consumer._coordinator._coordination_task = coordination


async def test_a_consume_loop_that_crashed_is_started_again(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    ears = Ears(kafka, topic)
    async with listening(ears):
        consumer: Any = ears.subscriber.consumer
        getmany, crashed = consumer.getmany, asyncio.Event()

        async def crashes(*_: Any, **__: Any) -> None:
            crashed.set()
            consumer.getmany = getmany
            raise RuntimeError("told to")

        consumer.getmany = crashes
        await asyncio.wait_for(crashed.wait(), 10)
        await stranger.send_and_wait(topic, told("1"))
        await ears.until_heard(1)
        assert is_consuming(ears.broker)


async def test_a_standby_without_a_partition_lives(kafka: Kafka, topic: str, stranger: AIOKafkaProducer) -> None:
    both = [Ears(kafka, topic), Ears(kafka, topic)]

    def assigned() -> list[int]:
        return sorted(len(one.subscriber.consumer.assignment()) if one.subscriber.consumer else -1 for one in both)

    async with listening(*both):
        await wait_until(lambda: assigned() == [0, 1], within_s=60, what="one partition between two members")
        await wait_until(lambda: all(is_consuming(one.broker) for one in both), within_s=60, what="two settled members")
        await stranger.send_and_wait(topic, told("1"))
        await wait_until(lambda: any(one.heard for one in both), within_s=30, what="the ring")
        assert sum(len(one.rings) for one in both) == 1


def test_every_topic_a_card_names_is_published() -> None:
    """A misspelt one would be subscribed to for ever, and nobody would ever ring it."""
    published = {topic.name for topic in TOPICS}
    assert {topic for service in discover() for topic in service.topics} <= published
