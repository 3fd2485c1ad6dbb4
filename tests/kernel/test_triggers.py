"""Triggers without a broker: what is rung, dropped, decoded and set aside, and how every subscriber is configured."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from schemas.triggers import EventsTrigger
from services.kernel import triggers
from services.kernel.errors import Retryable
from services.kernel.triggers import (
    Doorbell,
    Header,
    Kafka,
    Publisher,
)
from tests.waiting import wait_until

NOBODY = Kafka(bootstrap="127.0.0.1:1")
TOPIC = "stripe.events.v1"
OTHER = "clerk.events.v1"


class Line(Publisher):
    """A publisher that keeps what it is given, and fails as often as it is told to."""

    def __init__(self, *, failures: int = 0) -> None:
        super().__init__(NOBODY)
        self.sent: list[tuple[str, bytes | None, bytes | None, list[Header]]] = []
        self.failures = failures
        self.tried = 0
        self.held: asyncio.Event | None = None

    async def publish(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: Sequence[Header] = ()
    ) -> None:
        self.tried += 1
        if self.held is not None:
            await self.held.wait()
        if self.failures:
            self.failures -= 1
            raise Retryable("broker_unavailable", "told to")
        self.sent.append((topic, value, key, list(headers)))

    def ids(self, topic: str = TOPIC) -> list[tuple[int, ...]]:
        return [EventsTrigger.model_validate_json(value or b"").ids for at, value, _, _ in self.sent if at == topic]


class Ringing:
    """A doorbell that runs."""

    def __init__(self, line: Line, **settings: Any) -> None:
        self.line = line
        self.bell = Doorbell(line, **settings)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self.bell.run(self.stop))

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 10)

    async def until_sent(self, messages: int) -> None:
        await wait_until(lambda: len(self.line.sent) >= messages, within_s=5, what=f"{messages} messages")


def counted(result: str, topic: str = TOPIC) -> float:
    return triggers.RINGS.labels(topic, result)._value.get()


# ------------------------------------------------------------------------------------------------------------ doorbell


async def test_the_first_ring_of_a_quiet_spell_goes_at_once_and_the_rest_share_the_next() -> None:
    """The gap here is an hour: nothing but the first may go before it."""
    ringing = Ringing(Line(), gap_s=3600.0)
    await asyncio.sleep(0)
    ringing.bell.ring(TOPIC, [1])
    await ringing.until_sent(1)
    for event_id in (2, 3, 2):
        ringing.bell.ring(TOPIC, [event_id])
    for _ in range(20):
        await asyncio.sleep(0)
    assert ringing.line.ids() == [(1,)]
    await ringing.end()  # what is pending goes before the end
    assert ringing.line.ids() == [(1,), (2, 3)]


async def test_rings_after_the_gap_are_one_message_a_topic() -> None:
    ringing = Ringing(Line(), gap_s=0.05)
    await asyncio.sleep(0)
    ringing.bell.ring(TOPIC, [1])
    await ringing.until_sent(1)
    for event_id in range(2, 52):
        ringing.bell.ring(TOPIC, [event_id])
        ringing.bell.ring(OTHER, [event_id])
    await ringing.until_sent(3)
    assert ringing.line.ids() == [(1,), tuple(range(2, 52))]
    assert ringing.line.ids(OTHER) == [tuple(range(2, 52))]
    await ringing.end()


async def test_a_message_never_has_more_ids_than_its_schema_allows() -> None:
    ringing = Ringing(Line(), gap_s=0.001)
    ringing.bell.ring(TOPIC, range(1, 1_202))
    await ringing.until_sent(3)
    assert [len(ids) for ids in ringing.line.ids()] == [500, 500, 201]
    assert [one for ids in ringing.line.ids() for one in ids] == list(range(1, 1_202))
    await ringing.end()


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    before, ringing = counted("overflowed"), Ringing(Line(), pending_max=3)
    ringing.bell.ring(TOPIC, [1, 2, 3, 4, 5, 1])  # the last is pending already
    ringing.bell.ring(OTHER, [9])  # has a room of its own
    await ringing.until_sent(2)
    assert ringing.line.ids() == [(1, 2, 3)]
    assert ringing.line.ids(OTHER) == [(9,)]
    assert counted("overflowed") - before == 2
    ringing.bell.ring(TOPIC, [4])
    await ringing.until_sent(3)
    await ringing.end()


async def test_ringing_never_waits_for_a_publish_that_hangs() -> None:
    line = Line()
    line.held = asyncio.Event()
    ringing = Ringing(line, pending_max=100)
    ringing.bell.ring(TOPIC, [1])
    await wait_until(lambda: line.tried == 1, within_s=5, what="a publish that hangs")
    for event_id in range(2, 10_000):
        ringing.bell.ring(TOPIC, [event_id])  # returns, being no coroutine
    line.held.set()
    await ringing.until_sent(2)
    assert ringing.line.ids() == [(1,), tuple(range(2, 102))]
    await ringing.end()


async def test_a_failed_publish_is_tried_once_more_with_a_new_producer() -> None:
    before = counted("published")
    ringing = Ringing(Line(failures=1))
    ringing.bell.ring(TOPIC, [1, 2])
    await ringing.until_sent(1)
    assert ringing.line.ids() == [(1, 2)]
    assert counted("published") - before == 2
    await ringing.end()


async def test_without_a_broker_rings_are_dropped_and_counted_and_the_next_ones_go() -> None:
    before = counted("unpublished")
    ringing = Ringing(Line(failures=2))
    with capture_logs() as logs:
        ringing.bell.ring(TOPIC, [1, 2])
        await wait_until(lambda: counted("unpublished") - before == 2, within_s=5, what="two rings dropped")
    assert [line["event"] for line in logs] == ["ring_dropped"]
    assert "ids" in logs[0]
    ringing.bell.ring(TOPIC, [3])
    await ringing.until_sent(1)
    assert ringing.line.ids() == [(3,)]
    await ringing.end()


async def test_a_ring_for_a_topic_nobody_listed_is_told_and_harms_nothing() -> None:
    ringing = Ringing(Line())
    with capture_logs() as logs:
        ringing.bell.ring("strpe.events.v1", [1])
    assert logs == [{"event": "ring_for_unknown_topic", "log_level": "error", "topic": "strpe.events.v1"}]
    await ringing.end()
    assert ringing.line.sent == []


async def test_a_ring_of_nothing_sends_nothing() -> None:
    ringing = Ringing(Line())
    ringing.bell.ring(TOPIC, [])
    await ringing.end()
    assert ringing.line.tried == 0


async def test_no_broker_at_all_neither_blocks_nor_raises() -> None:
    stop = asyncio.Event()
    bell = Doorbell(Publisher(NOBODY))
    task = asyncio.create_task(bell.run(stop))
    before = counted("unpublished")
    for event_id in range(1, 2_000):
        bell.ring(TOPIC, [event_id])
    await wait_until(lambda: counted("unpublished") > before, within_s=10, what="rings dropped")
    stop.set()
    await asyncio.wait_for(task, 10)


# ----------------------------------------------------------------------------------------------------------- publisher


class Producer:
    """What a publisher makes; each instance remembers how it was made and does as the class was told."""

    made: list["Producer"]
    start_fails: int
    send_hangs: bool
    stop_hangs: bool

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.stopped = False
        type(self).made.append(self)

    async def start(self) -> None:
        await asyncio.sleep(0)
        if type(self).start_fails:
            type(self).start_fails -= 1
            raise OSError("refused")

    async def send_and_wait(self, topic: str, value: bytes | None, **_: Any) -> None:
        if type(self).send_hangs:
            await asyncio.Event().wait()

    async def stop(self) -> None:
        self.stopped = True
        if type(self).stop_hangs:
            await asyncio.Event().wait()


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> type[Producer]:
    made: dict[str, Any] = {"made": [], "start_fails": 0, "send_hangs": False, "stop_hangs": False}
    kind = type("FakeProducer", (Producer,), made)
    monkeypatch.setattr(triggers, "AIOKafkaProducer", kind)
    return kind


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_producer_waits_for_every_replica_and_is_idempotent_only_by_setting(
    producer: type[Producer], idempotent: bool
) -> None:
    publisher = Publisher(Kafka(bootstrap="one:9092, two:9092", idempotent=idempotent))
    await publisher.publish(TOPIC, b"{}")
    settings = producer.made[0].settings
    assert settings["bootstrap_servers"] == "one:9092, two:9092"
    assert settings["acks"] == "all"  # the driver's default is the leader alone
    assert settings["enable_idempotence"] is idempotent
    assert settings["request_timeout_ms"] <= 2_000  # else a dead broker holds its stop for forty seconds
    await publisher.close()


async def test_one_producer_serves_all_until_it_fails(producer: type[Producer]) -> None:
    publisher = Publisher(NOBODY)
    await asyncio.gather(*(publisher.publish(TOPIC, b"{}") for _ in range(8)))
    assert len(producer.made) == 1
    await publisher.close()
    assert producer.made[0].stopped


async def test_a_publish_that_hangs_is_given_up_and_its_producer_dropped(producer: type[Producer]) -> None:
    publisher = Publisher(NOBODY, bound_s=0.05)
    producer.send_hangs = producer.stop_hangs = True
    with pytest.raises(Retryable, match="broker_unavailable"):
        await asyncio.wait_for(publisher.publish(TOPIC, b"{}"), 5)
    producer.send_hangs = False
    await publisher.publish(TOPIC, b"{}")  # by a new one, while the old one's stop hangs
    assert len(producer.made) == 2
    assert producer.made[0].stopped
    await asyncio.wait_for(publisher.close(), 3 * triggers.DISCARD_S)


async def test_a_producer_that_cannot_start_is_stopped_and_the_next_one_tried(producer: type[Producer]) -> None:
    publisher = Publisher(NOBODY)
    producer.start_fails = 1
    with pytest.raises(Retryable, match="broker_unavailable"):
        await publisher.publish(TOPIC, b"{}")
    await publisher.publish(TOPIC, b"{}")
    await wait_until(lambda: producer.made[0].stopped, within_s=5, what="the first one's stop")
    assert not producer.made[1].stopped
    await publisher.close()
    assert producer.made[1].stopped


async def test_closing_a_publisher_that_was_never_used_does_nothing(producer: type[Producer]) -> None:
    await Publisher(NOBODY).close()
    assert producer.made == []


# -------------------------------------------------------------------------------------------------------- dead letters
