"""Triggers without a broker: what is rung, dropped, decoded and set aside, and how every subscriber is configured."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from faststream.kafka import KafkaBroker
from faststream.kafka.subscriber.usecase import BatchSubscriber
from faststream.middlewares import AckPolicy
from structlog.testing import capture_logs

from schemas.triggers import EventsTrigger
from services.kernel import triggers
from services.kernel.errors import Retryable
from services.kernel.triggers import (
    DeadLetters,
    Doorbell,
    Header,
    Kafka,
    Publisher,
    make_broker,
    subscribe,
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


def record(value: bytes | None, *, offset: int = 7, key: bytes | None = None, headers: Sequence[Header] = ()) -> Any:
    return ConsumerRecord(
        topic=TOPIC,
        partition=2,
        offset=offset,
        timestamp=1_700_000_000_000,
        timestamp_type=0,
        key=key,
        value=value,
        checksum=None,
        serialized_key_size=-1,
        serialized_value_size=-1,
        headers=tuple(headers),
    )


async def test_a_dead_letter_keeps_its_bytes_and_says_where_it_came_from() -> None:
    line = Line()
    odd: list[Header] = [("trace", b"\xff\xfe"), ("empty", None), ("trace", b"twice")]
    await DeadLetters(line).bury(record(b"\x00\xffno json", key=b"\xfe", headers=odd), "json_invalid")
    ((topic, value, key, headers),) = line.sent
    assert (topic, value) == (f"{TOPIC}.dlq", b"\x00\xffno json")
    assert headers[:3] == odd
    assert dict(headers[3:]) == {
        "rowclaim-reason": b"json_invalid",
        "rowclaim-topic": TOPIC.encode(),
        "rowclaim-partition": b"2",
        "rowclaim-offset": b"7",
        "rowclaim-timestamp-ms": b"1700000000000",
        "rowclaim-key": b"\xfe",
    }
    assert key is not None
    assert key.startswith(f"{TOPIC}/2/7/".encode())


async def test_a_record_is_set_aside_once_however_often_it_comes() -> None:
    line = Line()
    letters = DeadLetters(line)
    for _ in range(5):
        await letters.bury(record(b"x"), "json_invalid")
    assert len(line.sent) == 1


async def test_another_record_at_the_same_place_is_not_mistaken_for_it() -> None:
    """A broker that lost its log gives the same coordinates out again."""
    line = Line()
    letters = DeadLetters(line)
    for value in (b"x", b"y", None, b""):
        await letters.bury(record(value), "json_invalid")
    assert [value for _, value, _, _ in line.sent] == [b"x", b"y", None, b""]
    assert len({key for _, _, key, _ in line.sent}) == 4


async def test_one_that_could_not_be_set_aside_is_not_taken_for_done() -> None:
    line = Line(failures=1)
    letters = DeadLetters(line)
    with pytest.raises(Retryable):
        await letters.bury(record(b"x"), "json_invalid")
    await letters.bury(record(b"x"), "json_invalid")
    assert len(line.sent) == 1


async def test_the_memory_of_dead_letters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "BURIED_MAX", 10)
    line = Line()
    letters = DeadLetters(line)
    for offset in range(15):
        await letters.bury(record(b"x", offset=offset), "json_invalid")
    await letters.bury(record(b"x", offset=14), "json_invalid")
    assert len(line.sent) == 15
    await letters.bury(record(b"x", offset=0), "json_invalid")
    assert len(line.sent) == 16


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "json_invalid"),
        (b'{"ids":[1]', "json_invalid"),
        (b"\xff\xfe", "json_invalid"),
        (b"", "json_invalid"),
        (None, "json_invalid"),
        (b"1", "model_type"),  # the framework's own decoder would make it the number one
        (b'"text"', "model_type"),
        (b"[]", "model_type"),
        (b"{}", "ids.missing"),
        (b'{"ids":[]}', "ids.too_short"),
        (b'{"ids":["7"]}', "ids.0.int_type"),
        (b'{"ids":[7.0]}', "ids.0.int_type"),
        (b'{"ids":[true]}', "ids.0.int_type"),
        (b'{"ids":[0]}', "ids.0.greater_than_equal"),
        (b'{"ids":[9223372036854775808]}', "ids.0.less_than_equal"),
        (EventsTrigger.model_construct(ids=tuple(range(1, 502))).model_dump_json().encode(), "ids.too_long"),
        (b"[" * 50_000, "json_invalid"),
    ],
)
def test_what_is_no_trigger_is_dead_and_says_why_without_its_content(value: bytes | None, reason: str) -> None:
    good = record(b'{"ids":[5,6],"added_later":{"a":1}}')
    ids, dead = triggers._decoded([good, record(value), good])
    assert ids == {5, 6}
    assert [why for _, why in dead] == [reason]


# ------------------------------------------------------------------------------------------------------- configuration


def subscribed(kafka: Kafka = NOBODY) -> tuple[KafkaBroker, BatchSubscriber]:
    broker = make_broker(kafka)
    letters = DeadLetters(Line())
    return broker, subscribe(broker, kafka, topic=TOPIC, group="toy", ring=lambda _: None, dead_letters=letters)


def test_no_dangerous_default_is_left() -> None:
    """One line for each way in which a default loses records, floods the broker or obeys strangers."""
    _, subscriber = subscribed()
    arguments = subscriber._connection_args
    assert isinstance(subscriber, BatchSubscriber)
    assert subscriber.ack_policy is AckPolicy.NACK_ON_ERROR  # ACK_FIRST, ACK, REJECT_ON_ERROR, MANUAL all lose
    assert arguments["enable_auto_commit"] is False  # a timer would commit what nobody handled
    assert arguments["auto_offset_reset"] == "earliest"  # "latest" never reads the log after the one that was lost
    assert subscriber.group_id == f"toy.{TOPIC}"  # None commits nothing; a shared one halves the rings
    assert subscriber._no_reply is True  # else a reply_to header makes us publish anywhere
    assert subscriber.max_records == 500  # None is without a bound
    assert 0 < subscriber.batch_timeout_ms <= 50  # it sleeps as long again when idle
    assert arguments["max_poll_interval_ms"] > 2 * 1000 * (triggers.BATCH_S + 5)
    assert subscriber.topic_names == [TOPIC]


def test_the_policy_is_on_the_subscriber_because_the_brokers_is_not_validated() -> None:
    broker, _ = subscribed()
    assert broker.config.broker_config.ack_policy is not AckPolicy.NACK_ON_ERROR


def test_the_broker_object_publishes_and_creates_nothing_and_waits_for_handlers() -> None:
    broker, _ = subscribed()
    config = broker.config.broker_config
    assert config.consumer_only is True
    assert config.allow_auto_create_topics is False  # a typo would be a topic with one partition
    assert config.graceful_timeout == triggers.GRACEFUL_S > 5.0  # None and 0 cancel handlers at once
    assert config.broker_middlewares == ()  # an exception middleware acknowledges what it swallows
    assert config.fd_config.use_fastdepends is False


def test_joining_is_never_bounded_by_a_request_timeout_of_ours() -> None:
    """A request timeout at or below the session's makes a consumer that never joins, without an error."""
    slow = Kafka(bootstrap="127.0.0.1:1", session_timeout_ms=30_000, heartbeat_ms=3_000)
    broker, subscriber = subscribed(slow)
    assert broker.config.broker_config.builder.keywords["request_timeout_ms"] > 30_000  # type: ignore[attr-defined]  # a partial
    assert subscriber._connection_args["session_timeout_ms"] == 30_000
    assert subscriber._connection_args["heartbeat_interval_ms"] == 3_000
    assert subscriber._connection_args["fetch_max_wait_ms"] == slow.fetch_wait_ms


def test_every_address_of_the_setting_is_known_to_the_consumers() -> None:
    broker, _ = subscribed(Kafka(bootstrap="one:9092, two:9092"))
    assert broker.config.broker_config.builder.keywords["bootstrap_servers"] == ["one:9092", "two:9092"]  # type: ignore[attr-defined]  # a partial


def test_the_drivers_producer_still_takes_what_we_set() -> None:
    """The fake above must not hide a setting that the driver does not know."""
    taken = AIOKafkaProducer.__init__.__kwdefaults__
    assert {"acks", "enable_idempotence", "max_request_size", "request_timeout_ms"} <= set(taken)
