"""Kafka Connect as a child process on loopback: one worker of a distributed cluster, from the jars the broker is of.

Debezium's connectors stand on the same classpath, as the image of production has them.
"""

import signal
from pathlib import Path
from typing import Any, Final

import httpx

from services.sandbox.embedded.process import Command, StopStep
from services.sandbox.embedded.server import Server
from tests.stack.jars import Jars
from tests.stack.kafka import JAVA_OPTIONS, LOG_OPTIONS, STOP_S, ApacheKafka

ASK_S: Final = 5.0


class KafkaConnect(Server):
    """One worker over a broker that runs; what it does is kept in three topics there."""

    name = "Kafka Connect"
    ready_within_s = 150.0

    def __init__(self, directory: Path, *, broker: ApacheKafka, jars: Jars) -> None:
        super().__init__(log_path=directory / "connect.log")
        self._directory = directory
        self._broker = broker
        self._jars = jars

    async def ask(self, path: str) -> Any:
        """What its REST interface answers, as JSON. Raises httpx.HTTPError."""
        async with httpx.AsyncClient(timeout=ASK_S, trust_env=False) as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}{path}")
            return answer.raise_for_status().json()

    def _command(self) -> Command:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return Command(
            name=self.name,
            argv=(self._jars.java, *JAVA_OPTIONS, *LOG_OPTIONS, "-cp", self._jars.classpath, main, self._config()),
            log_path=self.log_path,
            death_signal=signal.SIGKILL,
            stop=(StopStep(signal.SIGTERM, STOP_S),),
        )

    def _config(self) -> Path:
        """Written anew for each start: a port that was taken is drawn again."""
        given = {
            "bootstrap.servers": self._broker.bootstrap,
            "group.id": "connect",
            "listeners": f"HTTP://127.0.0.1:{self.port}",
            "rest.advertised.host.name": "127.0.0.1",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
        }
        for kept in ("config", "offset", "status"):
            given |= {f"{kept}.storage.topic": f"connect-{kept}", f"{kept}.storage.replication.factor": "1"}
        path = self._directory / "connect.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
        return path

    async def _is_ready(self) -> bool:
        """It answers before it has joined its group; a list of connectors it has only then. Another worker on a port
        that was taken would tell another cluster."""
        try:
            await self.ask("/connectors")
            return bool((await self.ask("/"))["kafka_cluster_id"] == self._broker.cluster_id)
        except httpx.HTTPError:
            return False
