"""Valkey as a child process, in memory."""

import signal
from pathlib import Path
from typing import Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.sandbox.embedded import packages
from services.sandbox.embedded.process import Command, StopStep
from services.sandbox.embedded.server import Server

_ANSWER_WITHIN_S: Final = 1.0


class Valkey(Server):
    """One server without persistence: what it held is gone when it ends."""

    name = "Valkey"
    ready_within_s = 15.0

    def __init__(self, data_dir: Path, *, log_path: Path, port: int | None = None) -> None:
        super().__init__(log_path=log_path, ports=() if port is None else (port,))
        self.data_dir = data_dir

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> Command:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        return Command(
            name=self.name,
            argv=(
                *(packages.valkey_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.data_dir),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
                *("--set-proc-title", "no"),  # the title is written over the environment, ROWCLAIM_RUN with it
            ),
            log_path=self.log_path,
            death_signal=signal.SIGTERM,
            stop=(StopStep(signal.SIGTERM, 5.0),),
        )

    async def _is_ready(self) -> bool:
        client = Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=_ANSWER_WITHIN_S,
            socket_connect_timeout=_ANSWER_WITHIN_S,
            retry=Retry(NoBackoff(), 0),  # the default retries stretch a second to fifteen
        )
        try:
            return bool((await client.info("server"))["process_id"] == self.process.pid)
        except RedisError:
            return False
        finally:
            await client.aclose()
