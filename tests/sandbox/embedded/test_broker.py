import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from services.sandbox.embedded.broker import Broker, find_cluster_id
from services.sandbox.embedded.process import ExitedEarly, free_port
from tests.fixtures.servers import create_topics


async def topics(broker: Broker) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        return sorted(await admin.list_topics())
    finally:
        await admin.close()


async def test_carries_a_record_from_producer_to_consumer(
    broker_server: Broker, unique_topic: Callable[[str], str]
) -> None:
    topic = unique_topic("journey.v1")
    await create_topics(broker_server.bootstrap, {topic: 2})
    await create_topics(broker_server.bootstrap, {topic: 2})  # one that exists is left as it is
    async with AIOKafkaProducer(bootstrap_servers=broker_server.bootstrap) as producer:
        await producer.send_and_wait(topic, b"ring")
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker_server.bootstrap, auto_offset_reset="earliest")
    async with consumer:
        record = await consumer.getone()
    assert (record.topic, record.value) == (topic, b"ring")
    assert len({unique_topic("same") for _ in range(3)}) == 3


async def test_comes_back_on_the_same_port_as_a_new_and_empty_cluster(tmp_path: Path) -> None:
    broker = Broker(log_path=tmp_path / "log")
    await broker.start()
    try:
        before = (broker.bootstrap, broker.cluster_id)
        await create_topics(broker.bootstrap, {"lost.v1": 1})
        assert await topics(broker) == ["lost.v1"]
        broker.kill()
        assert await find_cluster_id(broker.bootstrap) is None
        await broker.start()
        assert broker.bootstrap == before[0]
        assert (await find_cluster_id(broker.bootstrap), await topics(broker)) == (broker.cluster_id, [])
        assert broker.cluster_id != before[1]
    finally:
        await broker.stop()
    assert not broker.process.alive


async def test_a_taken_port_is_noticed_though_the_broker_then_exits_with_0(
    broker_server: Broker, tmp_path: Path
) -> None:
    """And though a client gets answers on that port: the other broker's."""
    second = Broker(log_path=tmp_path / "log", port=broker_server.port)
    with pytest.raises(ExitedEarly, match=r"exited with code 0\n(.|\n)*Address in use"):
        await second.start()
    assert await find_cluster_id(broker_server.bootstrap) == broker_server.cluster_id


async def test_a_port_lost_between_test_and_bind_is_drawn_anew(
    broker_server: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = free_port()
    draws = iter([[broker_server.port], [fresh]])
    monkeypatch.setattr("services.sandbox.embedded.server.free_ports", lambda count: next(draws))
    broker = Broker(log_path=tmp_path / "log")
    await broker.start()
    try:
        assert (broker.port, await find_cluster_id(broker.bootstrap)) == (fresh, broker.cluster_id)
    finally:
        await broker.stop()


async def test_gives_up_after_three_lost_draws(
    broker_server: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[int] = []

    def taken(count: int) -> list[int]:
        draws.append(count)
        return [broker_server.port]

    monkeypatch.setattr("services.sandbox.embedded.server.free_ports", taken)
    with pytest.raises(ExitedEarly):
        await Broker(log_path=tmp_path / "log").start()
    assert draws == [1, 1, 1]


async def test_an_address_that_was_handed_out_is_never_drawn_anew(tmp_path: Path) -> None:
    """Services hold it: better a start that fails."""
    broker = Broker(log_path=tmp_path / "log")
    await broker.start()
    await broker.stop()
    address = broker.bootstrap
    with socket.create_server(("127.0.0.1", broker.port)), pytest.raises(ExitedEarly):
        await broker.start()
    assert broker.bootstrap == address


async def test_is_quiet_whatever_log_level_we_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At info it writes megabytes in its first moments."""
    monkeypatch.setenv("RUST_LOG", "trace")
    broker = Broker(log_path=tmp_path / "log")
    await broker.start()
    try:
        await create_topics(broker.bootstrap, {"some.v1": 1})
    finally:
        await broker.stop()
    assert len(broker.log_path.read_bytes()) < 10_000


async def test_does_not_start_twice(broker_server: Broker) -> None:
    with pytest.raises(RuntimeError, match="Kafka broker runs already"):
        await broker_server.start()


async def test_has_no_address_before_its_first_start_and_stops_all_the_same(tmp_path: Path) -> None:
    broker = Broker(log_path=tmp_path / "log")
    await broker.stop()
    with pytest.raises(RuntimeError, match="no port before its first start"):
        _ = broker.bootstrap
    with pytest.raises(RuntimeError, match="was not started"):
        broker.kill()


async def test_a_listener_that_is_no_broker_has_no_cluster_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.sandbox.embedded.broker._ANSWER_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", free_port())) as deaf:
        assert await find_cluster_id(f"127.0.0.1:{deaf.getsockname()[1]}") is None
