"""Apache Kafka as the tests start it: ready or nothing, one address for life, its log kept or forgotten as asked."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from services.sandbox.embedded.leftovers import command_line
from services.sandbox.embedded.process import StartFailed
from tests.fixtures.brokers import kafka_of, settings_of
from tests.fixtures.database import ROOT
from tests.fixtures.servers import create_topics
from tests.stack.jars import Jars, find_jars
from tests.stack.kafka import ApacheKafka
from tests.waiting import wait_until


@pytest.fixture
def jars() -> Jars:
    return find_jars()


@pytest.fixture
async def kafka(tmp_path: Path, jars: Jars) -> AsyncIterator[ApacheKafka]:
    broker = ApacheKafka(tmp_path / "data", log_path=tmp_path / "log", jars=jars)
    yield broker
    await broker.discard()


async def topics(broker: ApacheKafka) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        await admin.start()
        return [name for name in await admin.list_topics() if not name.startswith("__")]
    finally:
        await admin.close()


async def test_it_keeps_its_address_and_its_log_and_forgets_it_when_wiped(kafka: ApacheKafka) -> None:
    await kafka.start()
    address, cluster = kafka.bootstrap, kafka.cluster_id
    assert re.fullmatch(r"Apache Kafka \d+\.\d+\.\d+", kafka.version)
    await create_topics(kafka.bootstrap, {"kept.v1": 1})
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", enable_idempotence=True) as producer:
        assert (await producer.send_and_wait("kept.v1", b"one")).offset == 0
    await kafka.stop()
    assert not kafka.process.alive
    await kafka.start()
    assert await topics(kafka) == ["kept.v1"]
    kafka.kill()
    await kafka.start()
    assert (kafka.bootstrap, kafka.cluster_id, await topics(kafka)) == (address, cluster, ["kept.v1"])
    await kafka.wipe()
    assert (kafka.bootstrap, await topics(kafka)) == (address, [])
    assert kafka.cluster_id != cluster


def test_our_processes_are_told_its_address_and_nothing_else(kafka: ApacheKafka) -> None:
    kafka._ports = (9092, 9093)
    assert settings_of(kafka) == {"ROWCLAIM_KAFKA_BOOTSTRAP": "127.0.0.1:9092"}
    assert kafka_of(kafka).idempotent


async def test_one_that_does_not_come_up_says_why_and_leaves_nothing(tmp_path: Path, jars: Jars) -> None:
    broker = ApacheKafka(tmp_path / "data", log_path=tmp_path / "log", jars=Jars(jars.java, tmp_path))
    with pytest.raises(StartFailed, match=r"(?s)storage could not be formatted \(exit 1\).*ClassNotFoundException"):
        await broker.start()
    assert not (tmp_path / "data").exists()


async def test_a_broker_that_ends_early_shows_the_end_of_its_log(kafka: ApacheKafka, tmp_path: Path) -> None:
    await kafka.start()
    await kafka.stop()
    (tmp_path / "data" / "log" / "meta.properties").write_text("version=1\ncluster.id=other\nnode.id=7\n")
    with pytest.raises(StartFailed, match=r"(?s)Apache Kafka: it exited with code 1.*node id 7"):
        await kafka.start()
    assert not kafka.process.alive


# Starts a broker, tells its pid, and waits for its own end.
PARENT = """
import asyncio, sys
from pathlib import Path
from tests.stack.jars import find_jars
from tests.stack.kafka import ApacheKafka

async def main(folder):
    broker = ApacheKafka(folder / "data", log_path=folder / "log", jars=find_jars())
    await broker.start()
    print(broker.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220 - read line by line below, with nothing else to do meanwhile
        [sys.executable, "-c", PARENT, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        broker = int(parent.stdout.readline())
        assert "kafka.Kafka" in (command_line(broker) or "")
        os.kill(parent.pid, signal.SIGKILL)
        await wait_until(lambda: not command_line(broker), within_s=10, what="the broker is gone too")
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
