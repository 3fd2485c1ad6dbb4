"""Subscribing without a broker: what is decoded and set aside, and how every subscriber is configured."""

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import MessageSizeTooLargeError
from faststream.kafka import KafkaBroker
from faststream.kafka.subscriber.usecase import BatchSubscriber
from faststream.middlewares import AckPolicy

from schemas.triggers import EventsTrigger
from services.kernel.errors import Retryable
from services.kernel.triggers import Header, Kafka
from services.operations import subscribing
from services.operations.subscribing import DeadLetters, make_broker, subscribe
from tests.kernel.test_triggers import NOBODY, TOPIC, Line


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


class Narrow(Line):
    """Takes values of so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    async def publish(self, topic: str, value: bytes | None, **more: Any) -> None:
        if len(value or b"") > self.room:
            raise Retryable("broker_unavailable", "told to") from MessageSizeTooLargeError()
        await super().publish(topic, value, **more)


async def test_one_that_finds_no_room_is_cut_and_says_so_without_the_headers_that_may_have_filled_it() -> None:
    line = Narrow(100_000)
    letters = DeadLetters(line)
    for _ in range(2):
        await letters.bury(record(b"x" * 100_001, key=b"k", headers=[("trace", b"y")]), "json_invalid")
    ((_, value, key, headers),) = line.sent
    assert value == b"x" * subscribing.CUT_BYTES
    assert [name for name, _ in headers] == [
        *("rowclaim-topic", "rowclaim-partition", "rowclaim-offset", "rowclaim-timestamp-ms", "rowclaim-reason"),
        "rowclaim-cut-bytes",
    ]
    assert (headers[-1][1], (key or b"").startswith(f"{TOPIC}/2/7/".encode())) == (b"100001", True)


async def test_the_memory_of_dead_letters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "BURIED_MAX", 10)
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
    ids, dead = subscribing._decoded([good, record(value), good])
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
    assert arguments["max_poll_interval_ms"] > 2 * 1000 * (subscribing.BATCH_S + 5)
    assert subscriber.topic_names == [TOPIC]


def test_the_policy_is_on_the_subscriber_because_the_brokers_is_not_validated() -> None:
    broker, _ = subscribed()
    assert broker.config.broker_config.ack_policy is not AckPolicy.NACK_ON_ERROR


def test_the_broker_object_publishes_and_creates_nothing_and_waits_for_handlers() -> None:
    broker, _ = subscribed()
    config = broker.config.broker_config
    assert config.consumer_only is True
    assert config.allow_auto_create_topics is False  # a typo would be a topic with one partition
    assert config.builder.keywords["metadata_max_age_ms"] <= 30_000  # type: ignore[attr-defined]  # a partial
    assert config.graceful_timeout == subscribing.GRACEFUL_S > 5.0  # None and 0 cancel handlers at once
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
