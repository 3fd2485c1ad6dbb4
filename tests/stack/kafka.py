"""Apache Kafka as a child process on loopback: one node in KRaft mode, broker and controller at once, without frills.

What is set differs from a cluster's defaults only where one node forces it to (one replica of each internal topic) or
where a small machine asks for it (the heap). How long a group waits for its first members, how soon a member must speak
and how idempotent producers are numbered are Kafka's own affair.
"""

import base64
import re
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.sandbox.embedded.broker import find_cluster_id
from services.sandbox.embedded.process import Command, StartFailed, StopStep, run_to_end
from tests.fixtures.brokers import Freezable
from tests.stack.jars import Jars

FORMAT_S: Final = 60.0
STOP_S: Final = 30.0
# One compiler, one collector, a small heap: the machine runs other things, and a broker of a test lives for seconds.
JAVA_OPTIONS: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# Warnings, and the one line in which it tells its version.
LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.utils.AppInfoParser=info",
)
VERSION: Final = re.compile(r"Kafka version: (\S+)")


def properties(*, listeners: str, advertised: str, controller_port: int, log_dir: str) -> dict[str, str]:
    """The properties of the one node, from jars or in a container."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": advertised,
        "inter.broker.listener.name": "CLIENT",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": log_dir,
        # Topics are made by `rowclaim topics`; a misspelt one must not come into being.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # After a kill its own former self counts as alive for this long, and it may not come back before.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


def new_cluster_id() -> str:
    """As Kafka writes one: 16 bytes, URL-safe, without padding. One that begins with a dash reads as an option."""
    return base64.urlsafe_b64encode(b"r" + secrets.token_bytes(15)).decode().rstrip("=")


class ApacheKafka(Freezable):
    """One broker over one directory. `start` after `stop` or `kill` finds what was written; `wipe` forgets it."""

    name = "Apache Kafka"
    ready_within_s = 90.0
    # Nothing but its address: every process of ours speaks to it as it would in production.
    manners: Mapping[str, str] = {}

    def __init__(self, data_dir: Path, *, log_path: Path, jars: Jars) -> None:
        super().__init__(log_path=log_path, ports_needed=2)
        self.cluster_id = ""
        self._data_dir = data_dir
        self._jars = jars

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """What the broker says of itself; it is asked once it runs."""
        told = VERSION.search(self.log_path.read_text(encoding="utf-8", errors="replace"))
        if told is None:
            raise StartFailed(self.name, "it tells no version", self.process.log_tail())
        return f"Apache Kafka {told[1]}"

    async def wipe(self) -> None:
        """SIGKILL it and bring it back under the same address: no topics, no offsets, no groups."""
        self.kill()
        shutil.rmtree(self._data_dir)
        await self.start()

    async def _prepare(self) -> None:
        if self._data_dir.exists():
            return
        self.cluster_id = new_cluster_id()
        self._data_dir.mkdir(parents=True)
        form = ("format", "--cluster-id", self.cluster_id, "--config", self._config(0))
        done = await run_to_end(self._java("kafka.tools.StorageTool", *form), within_s=FORMAT_S)
        if done.exit_code != 0:
            shutil.rmtree(self._data_dir)
            raise StartFailed(self.name, f"its storage could not be formatted (exit {done.exit_code})", done.said)

    def _command(self) -> Command:
        return self._java("kafka.Kafka", self._config(self._ports[1]))

    def _java(self, *arguments: str | Path) -> Command:
        return Command(
            name=self.name,
            argv=(self._jars.java, *JAVA_OPTIONS, *LOG_OPTIONS, "-cp", self._jars.classpath, *arguments),
            log_path=self.log_path,
            death_signal=signal.SIGKILL,
            stop=(StopStep(signal.SIGTERM, STOP_S),),
        )

    def _config(self, controller_port: int) -> Path:
        """Written anew for each start: a port that was taken is drawn again."""
        client = f"CLIENT://127.0.0.1:{self._ports[0] if self._ports else 0}"
        given = properties(
            listeners=client, advertised=client, controller_port=controller_port, log_dir=str(self._data_dir / "log")
        )
        path = self._data_dir / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()), encoding="utf-8")
        return path

    async def _is_ready(self) -> bool:
        """Another broker on a port that was taken would answer in its place."""
        return await find_cluster_id(self.bootstrap) == self.cluster_id
