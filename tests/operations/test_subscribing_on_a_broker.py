"""Triggers over a real broker: odd records, failures, kills, a lost log, and a broker that is away."""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import CommitFailedError
from structlog.testing import capture_logs

from services.kernel import doors, triggers
from services.kernel.doors import Door
from services.kernel.errors import Retryable
from services.kernel.triggers import Doorbell, Kafka, Publisher
from services.operations import subscribing
from services.operations.subscribers import is_consuming
from tests.fixtures.brokers import BrokerServer, kafka_of, settings_of
from tests.fixtures.database import ROOT
from tests.fixtures.listening import GROUP, PATIENCE_S, Ears, listening, log_of, told
from tests.fixtures.servers import create_topics
from tests.waiting import wait_until

# -------------------------------------------------------------------------------------------------------- the good way


async def test_a_ring_reaches_the_worker_in_milliseconds_and_is_committed(kafka: Kafka, topic: str) -> None:
    ears, stop = Ears(kafka, topic), asyncio.Event()
    bell = Doorbell(Publisher(kafka, bound_s=PATIENCE_S), topics=[topic])
    async with listening(ears):
        run = asyncio.create_task(bell.run(stop))
        bell.ring(topic, [1])
        await ears.until_heard(1)
        begun = time.monotonic()
        bell.ring(topic, [2])
        await ears.until_heard(2)
        assert time.monotonic() - begun < 1.0  # some ten milliseconds, on a machine that does nothing else
        await ears.until_committed(2)
        stop.set()
        await asyncio.wait_for(run, 10)


async def test_many_records_are_one_ring_of_distinct_ids_and_bounded_batches(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    for number in range(1, 1_201):
        await stranger.send(topic, told(f"{number % 7 + 1}"))
    await stranger.flush()
    batches: list[int] = []
    ears = Ears(kafka, topic)
    decoded = subscribing._decoded

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subscribing, "_decoded", lambda records: (batches.append(len(records)), decoded(records))[1])
        async with listening(ears):
            await ears.until_committed(1_200)
    assert sum(batches) == 1_200
    assert max(batches) <= 500
    assert len(ears.rings) == len(batches) < 100
    assert ears.heard == set(range(1, 8))


async def test_what_was_rung_before_anybody_listened_is_heard(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    """With "latest" a group that is new, or whose log was lost, begins behind what it should have read."""
    await stranger.send_and_wait(topic, told("1"))
    ears = Ears(kafka, topic)
    async with listening(ears):
        await ears.until_heard(1)


async def test_each_service_hears_every_ring(kafka: Kafka, topic: str, stranger: AIOKafkaProducer) -> None:
    ears = [Ears(kafka, topic, group=group) for group in ("fulfillment", "rewards")]
    async with listening(*ears):
        for number in range(1, 6):
            await stranger.send_and_wait(topic, told(str(number)))
        for one in ears:
            await one.until_heard(1, 2, 3, 4, 5)


async def test_every_exchange_crosses_the_door(kafka: Kafka, topic: str) -> None:
    crossed: list[tuple[str, str]] = []
    ears = Ears(kafka, topic)
    watched = doors.watch(
        lambda door, what, moment: crossed.append((what.replace(topic, "T"), moment)) if door is Door.KAFKA else None
    )
    try:
        async with listening(ears):
            publisher = Publisher(kafka)
            await publisher.publish(topic, told("1"))
            await ears.until_committed(1)
            await publisher.close()
    finally:
        doors.watch(watched)
    assert crossed == [
        (what, moment) for what in ("connect", "publish T", "commit T") for moment in ("before", "after")
    ]


# ---------------------------------------------------------------------------------------------------------- bad records


async def test_odd_records_cost_their_neighbours_nothing_and_are_set_aside_unchanged(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, broker_server: BrokerServer
) -> None:
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"{not json", None, []),
        (None, b"tombstone", []),
        (b'{"ids":["1"]}', b"\xff", [("trace", b"\xff\xfe"), ("none", None)]),
        (b"1", None, [("content-type", b"application/json")]),
        (b"\xff\xfe\x00", None, []),
    ]
    await stranger.send_and_wait(topic, told("1"), headers=[("trace", b"\xff\xfe")])
    for value, key, headers in odd:
        await stranger.send_and_wait(topic, value, key=key, headers=headers)
    await stranger.send_and_wait(topic, told("2"), headers=[("none", None), ("correlation_id", b"\xff")])
    ears = Ears(kafka, topic)
    async with listening(ears):
        await ears.until_committed(7)
    assert ears.heard == {1, 2}
    assert ears.waits == []  # nothing failed
    dead = await log_of(broker_server.bootstrap, f"{topic}.dlq", len(odd))
    for nth, (record, (value, key, headers)) in enumerate(zip(dead, odd, strict=True), start=1):
        assert record.value == value
        assert list(record.headers[: len(headers)]) == headers
        where = dict(record.headers[len(headers) :])
        assert (where["rowclaim-topic"], where["rowclaim-partition"]) == (topic.encode(), b"0")
        assert (where["rowclaim-offset"], where.get("rowclaim-key")) == (str(nth).encode(), key)
    assert len({record.key for record in dead}) == len(odd)


async def test_the_largest_record_a_producer_sends_still_has_room_for_where_it_came_from(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, broker_server: BrokerServer
) -> None:
    """One that could not be set aside would hold its partition for ever."""
    largest = b"x" * (1024 * 1024 - 90)
    await stranger.send_and_wait(topic, largest)
    ears = Ears(kafka, topic)
    async with listening(ears):
        await ears.until_committed(1)
    (dead,) = await log_of(broker_server.bootstrap, f"{topic}.dlq", 1)
    assert dead.value == largest


async def test_a_record_that_grew_too_large_to_be_set_aside_holds_nobody(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, broker_server: BrokerServer
) -> None:
    """A few kilobytes on the wire, five megabytes once unpacked: the broker takes it from anybody, and not from us."""
    squeezed = AIOKafkaProducer(
        bootstrap_servers=broker_server.bootstrap, compression_type="gzip", max_request_size=8 * 1024 * 1024
    )
    await squeezed.start()
    try:
        await squeezed.send_and_wait(topic, b"x" * (5 * 1024 * 1024))
    finally:
        await squeezed.stop()
    await stranger.send_and_wait(topic, told("1"))
    ears = Ears(kafka, topic)
    async with listening(ears):
        await ears.until_committed(2)
    assert (ears.heard, ears.waits) == ({1}, [])
    (dead,) = await log_of(broker_server.bootstrap, f"{topic}.dlq", 1)
    assert dead.value == b"x" * subscribing.CUT_BYTES
    assert dict(dead.headers)["rowclaim-cut-bytes"] == str(5 * 1024 * 1024).encode()


async def test_nobody_makes_us_publish_by_a_header(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, broker_server: BrokerServer
) -> None:
    await stranger.send_and_wait(topic, told("1"), headers=[("reply_to", f"{topic}.dlq".encode())])
    ears = Ears(kafka, topic)
    async with listening(ears):
        await ears.until_committed(1)
    assert ears.heard == {1}
    assert await log_of(broker_server.bootstrap, f"{topic}.dlq", 0) == []


# ------------------------------------------------------------------------------------------------------------ failures


async def test_a_failed_batch_comes_again_after_a_wait_with_its_offset_uncommitted(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    ears = Ears(kafka, topic)
    ears.failures = 4
    async with listening(ears):
        await stranger.send_and_wait(topic, told("1"))
        await wait_until(lambda: len(ears.rings) >= 2, within_s=15, what="the second try")
        assert await ears.committed() is None
        await stranger.send_and_wait(topic, told("2"))
        await ears.until_committed(2)
    assert ears.heard == {1, 2}
    assert ears.waits == [0.2, 0.4, 0.8, 1.6]  # one wait a failure: no hot loop


async def test_a_success_begins_the_waits_anew(kafka: Kafka, topic: str, stranger: AIOKafkaProducer) -> None:
    ears = Ears(kafka, topic)
    async with listening(ears):
        for number in (1, 2):
            ears.failures = 2
            await stranger.send_and_wait(topic, told(str(number)))
            await ears.until_committed(number)
    assert ears.waits == [0.2, 0.4] * 2


class Refusing(Publisher):
    """Fails to publish as often as told, from the ``nth`` publish on."""

    def __init__(self, kafka: Kafka, *, nth: int, failures: int) -> None:
        super().__init__(kafka)
        self.nth = nth
        self.failures = failures
        self.tried = 0

    async def publish(self, topic: str, value: bytes | None, **more: Any) -> None:
        self.tried += 1
        if self.tried >= self.nth and self.failures:
            self.failures -= 1
            raise Retryable("broker_unavailable", "told to")
        await super().publish(topic, value, **more)


async def test_while_nothing_can_be_set_aside_nothing_is_lost_and_good_ids_ring(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, broker_server: BrokerServer
) -> None:
    for value in (told("1"), b"first poison", told("2"), b"second poison", told("3")):
        await stranger.send_and_wait(topic, value)
    ears = Ears(kafka, topic, publisher=Refusing(kafka, nth=2, failures=3))
    async with listening(ears):
        await ears.until_heard(1, 2, 3)
        await ears.until_committed(5)
    assert len(ears.waits) == 3
    assert ears.rings == [frozenset({1, 2, 3})] * 4  # before the dead letters, each time
    dead = await log_of(broker_server.bootstrap, f"{topic}.dlq", 2)  # the first one once, though it came four times
    assert [record.value for record in dead] == [b"first poison", b"second poison"]


async def test_a_commit_that_fails_is_counted_and_not_tried_without_a_bound(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    failed = subscribing.COMMITS_FAILED.labels(topic)._value
    ears = Ears(kafka, topic)
    async with listening(ears):
        consumer: Any = ears.subscriber.consumer
        commit, commits = consumer.commit, 0

        async def fails() -> None:
            nonlocal commits
            commits += 1
            raise CommitFailedError

        consumer.commit = fails
        with capture_logs() as logs:
            await stranger.send_and_wait(topic, told("1"))
            await wait_until(lambda: failed.get() == 1, within_s=15, what="the failed commit counted")
        assert [line["event"] for line in logs] == ["offset_commit_failed"]
        consumer.commit = commit
        await stranger.send_and_wait(topic, told("2"))
        await ears.until_committed(2)
    assert commits == 1
    assert ears.rings == [frozenset({1}), frozenset({2})]


async def test_a_commit_that_hangs_is_given_up(
    kafka: Kafka, topic: str, stranger: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "COMMIT_S", 0.05)
    ears = Ears(kafka, topic)
    async with listening(ears):
        consumer: Any = ears.subscriber.consumer
        commit = consumer.commit
        consumer.commit = asyncio.Event().wait
        await stranger.send_and_wait(topic, told("1"))
        await ears.until_heard(1)
        consumer.commit = commit
        await stranger.send_and_wait(topic, told("2"))
        await ears.until_heard(2)
        await ears.until_committed(2)


# --------------------------------------------------------------------------------------------------------------- kills


class Child:
    """A consuming process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, broker: BrokerServer, topic: str, *faults: str) -> "Child":
        program = ("-m", "tests.operations.ringing_child", topic, GROUP, *faults)
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, *program),
                cwd=ROOT,
                env=os.environ | settings_of(broker),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def test_a_process_killed_between_ring_and_commit_is_rung_again(
    broker_server: BrokerServer, kafka: Kafka, topic: str, stranger: AIOKafkaProducer
) -> None:
    await stranger.send_and_wait(topic, told("1"))
    dead = await Child.start(broker_server, topic, "die-before-commit")
    try:
        assert await dead.line() == "1"
        assert await asyncio.wait_for(dead.process.wait(), 30) == -signal.SIGKILL
        assert await Ears(kafka, topic).committed() is None
        heir = await Child.start(broker_server, topic)
        try:
            assert await heir.line() == "1"
            await stranger.send_and_wait(topic, told("2"))
            assert await heir.line() == "2"
            heir.process.terminate()
            assert await heir.line() == "stopped"
            assert await asyncio.wait_for(heir.process.wait(), 30) == 0
        finally:
            await heir.kill()
        assert await Ears(kafka, topic).committed() == 2  # an orderly stop leaves nothing to come again
    finally:
        await dead.kill()


async def test_a_broker_that_loses_everything_costs_latency_alone(own_broker: BrokerServer) -> None:
    """Killed twice, memory lost; nobody is restarted, nothing raises, and each time the next rings arrive."""
    topic = "stripe.events.v1"
    kafka = kafka_of(own_broker)
    await create_topics(own_broker.bootstrap, {topic: 1, f"{topic}.dlq": 1})
    ears, stop = Ears(kafka, topic), asyncio.Event()
    bell, ids = Doorbell(Publisher(kafka)), iter(range(1, 100_000))
    run = asyncio.create_task(bell.run(stop))
    rung: set[int] = set()

    def heard_a_new_one() -> bool:
        """Any ring since the broker is back: on a loaded machine the latest has not arrived by the next look."""
        event_id = next(ids)
        rung.add(event_id)
        bell.ring(topic, [event_id])
        return bool(rung & ears.heard)

    async with listening(ears):
        await wait_until(heard_a_new_one, within_s=30, what="the first ring")
        for _ in range(2):
            own_broker.kill()
            begun = time.monotonic()
            for _ in range(200):
                bell.ring(topic, [next(ids)])
            assert time.monotonic() - begun < 1.0
            await own_broker.wipe()
            await create_topics(own_broker.bootstrap, {topic: 1, f"{topic}.dlq": 1})
            rung.clear()
            await wait_until(heard_a_new_one, within_s=60, what="a ring after the loss")
            await wait_until(lambda: is_consuming(ears.broker), within_s=60, what="a settled consumer")
        assert not run.done()
        stop.set()
        await asyncio.wait_for(run, 10)


async def test_a_broker_that_is_frozen_holds_nobody(own_broker: BrokerServer) -> None:
    """It takes connections and answers nothing: every publish is given up at its bound, the close at its own."""
    kafka = kafka_of(own_broker)
    await create_topics(own_broker.bootstrap, {"t": 1})
    publisher = Publisher(kafka)
    await publisher.publish("t", told("1"))
    await own_broker.freeze()
    try:
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(Retryable):
                await publisher.publish("t", told("2"))
            assert time.monotonic() - begun < 3 * triggers.PUBLISH_S  # the driver's own bound is forty seconds
        begun = time.monotonic()
        await publisher.close()
        assert time.monotonic() - begun < 3 * triggers.DISCARD_S
    finally:
        own_broker.thaw()
    await publisher.publish("t", told("3"))
    await publisher.close()
