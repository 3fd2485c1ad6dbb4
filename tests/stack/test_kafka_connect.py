"""Kafka Connect beside the broker, from the same jars: it starts, and finds Debezium in one version."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.stack.connect import KafkaConnect
from tests.stack.jars import POM, find_jars
from tests.stack.kafka import ApacheKafka

MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def pinned(name: str) -> str:
    found = ElementTree.parse(POM).getroot().find(f"{MAVEN}properties/{MAVEN}{name}.version")  # noqa: S314 - our own file
    assert found is not None
    assert found.text is not None
    return found.text


@pytest.mark.timeout(300)
async def test_connect_starts_beside_the_broker_and_finds_debezium(tmp_path: Path) -> None:
    jars = find_jars()
    broker = ApacheKafka(tmp_path / "data", log_path=tmp_path / "log", jars=jars)
    connect = KafkaConnect(tmp_path, broker=broker, jars=jars)
    try:
        await broker.start()
        await connect.start()
        said = await connect.ask("/")
        assert (said["version"], said["kafka_cluster_id"]) == (pinned("kafka"), broker.cluster_id)
        plugins = {one["class"]: one["version"] for one in await connect.ask("/connector-plugins")}
        assert plugins["io.debezium.connector.postgresql.PostgresConnector"] == pinned("debezium")
        assert await connect.ask("/connectors") == []
    finally:
        await connect.stop()
        await broker.discard()
