"""A Kafka broker (Tansu) in memory, as a child process: what it held is gone when it ends."""

import asyncio
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from services.sandbox.embedded import packages
from services.sandbox.embedded.process import Command, ExitedEarly, ServerProcess, free_port, spawn, until_ready

_NAME: Final = "Kafka broker"
_READY_WITHIN_S: Final = 15.0
_ANSWER_WITHIN_S: Final = 5.0
_START_ATTEMPTS: Final = 3
_TOPIC_ALREADY_EXISTS: Final = 36


class TopicRefused(Exception):
    """The broker answered a topic creation with an error; the message holds topic, code and the broker's words."""


class Broker:
    """One broker on 127.0.0.1:`port` (drawn at the first start when not given). Every start is a new, empty cluster."""

    def __init__(self, *, log_path: Path, port: int | None = None) -> None:
        self.log_path = log_path
        self.cluster_id = ""
        self._fixed_port = port
        self._port: int | None = port
        self._process: ServerProcess | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError(f"{_NAME} has no port before its first start")
        return self._port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{_NAME} was not started")
        return self._process

    async def start(self) -> None:
        """Start, and return when it answers as itself. After a stop or kill: the same port, no topics."""
        packages.check_platform()
        binary = packages.broker_binary()
        for attempt in range(1, _START_ATTEMPTS + 1):
            if self._port is None:
                self._port = free_port()
            try:
                await self._spawn(binary)
            except ExitedEarly:
                # someone may have taken the port between its test and the broker's bind
                if self._fixed_port is not None or attempt == _START_ATTEMPTS:
                    raise
                self._port = None
                continue
            self._fixed_port = self._port  # addresses were handed out: later starts keep it
            return

    async def stop(self) -> None:
        """SIGKILL: there is nothing to save, and on SIGTERM it waits 5 s for clients. Nothing when not running."""
        if self._process is not None:
            await self._process.stop()

    def kill(self) -> None:
        """Wipe it, as a crash would: every topic, offset and group is gone."""
        self.process.kill()

    async def _spawn(self, binary: Path) -> None:
        self.cluster_id = f"rc-{secrets.token_hex(8)}"
        url = f"tcp://{self.bootstrap}"
        process = spawn(
            Command(
                name=_NAME,
                # both URLs: the listener's default is 0.0.0.0:9092
                argv=(
                    *(binary, "broker", "--cluster-id", self.cluster_id, "--storage-engine", "memory://tansu/"),
                    *("--listener-url", url, "--advertised-listener-url", url),
                ),
                log_path=self.log_path,
                death_signal=signal.SIGKILL,
                environment={"RUST_LOG": "warn"},  # at info it writes megabytes in its first moments
            )
        )
        try:
            await until_ready(process, self._answers_as_itself, within_s=_READY_WITHIN_S)
        except BaseException:
            process.kill()
            raise
        self._process = process

    async def _answers_as_itself(self) -> bool:
        """On a port that was taken the broker dies with exit code 0 while the other one answers in its place."""
        return await find_cluster_id(self.bootstrap) == self.cluster_id


async def find_cluster_id(bootstrap: str) -> str | None:
    """The id by which the cluster at host:port calls itself; None when nobody answers there as Kafka."""
    host, _, port = bootstrap.rpartition(":")
    try:
        # a plain connection first: the client logs an error for each refused one
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            try:
                await admin.start()
                described = await admin.describe_cluster()
            finally:
                await admin.close()
    except (OSError, TimeoutError, KafkaError):
        return None
    return str(described["cluster_id"])


async def create_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Create each topic with its number of partitions; one that exists is left as it is. Raises `TopicRefused`."""
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            answer = await admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
        finally:
            await admin.close()
    # refusals come in the answer, not as exceptions
    for topic, code, *words in answer.topic_errors:
        if code not in (0, _TOPIC_ALREADY_EXISTS):
            raise TopicRefused(f"topic {topic}: error {code} {' '.join(map(str, words))}".rstrip())
