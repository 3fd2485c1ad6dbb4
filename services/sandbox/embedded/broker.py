"""A Kafka broker (Tansu) in memory, as a child process: what it held is gone when it ends."""

import asyncio
import secrets
import signal
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from services.sandbox.embedded import packages
from services.sandbox.embedded.process import Command
from services.sandbox.embedded.server import Server

_ANSWER_WITHIN_S: Final = 5.0


class Broker(Server):
    """One broker. Every start is a new, empty cluster with an id of its own.

    A stop is a SIGKILL: there is nothing to save, and on SIGTERM it would wait 5 s for its clients.
    """

    name = "Kafka broker"
    ready_within_s = 15.0

    def __init__(self, *, log_path: Path, port: int | None = None) -> None:
        super().__init__(log_path=log_path, ports=() if port is None else (port,))
        self.cluster_id = ""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _command(self) -> Command:
        self.cluster_id = f"rc-{secrets.token_hex(8)}"
        url = f"tcp://{self.bootstrap}"
        return Command(
            name=self.name,
            argv=(
                *(packages.broker_binary(), "broker", "--cluster-id", self.cluster_id),
                # both URLs: the listener's default is 0.0.0.0:9092
                *("--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"),
            ),
            log_path=self.log_path,
            death_signal=signal.SIGKILL,
        )

    async def _is_ready(self) -> bool:
        """On a port that was taken the child dies with exit code 0, and the other broker answers in its place."""
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
