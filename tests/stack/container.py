"""Apache Kafka in a container, where Docker answers and Maven does not: the same node with the same settings.

The image is the one that `docker-compose.yml` names. Testcontainers' reaper removes what a killed run leaves behind;
where its image cannot be had, TESTCONTAINERS_RYUK_DISABLED=true does without it.
"""

import asyncio
import gc
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final

from ruamel.yaml import YAML

from services.sandbox.embedded.broker import find_cluster_id
from services.sandbox.embedded.process import StartFailed, free_port
from tests.stack.jars import ROOT, Unavailable
from tests.stack.kafka import VERSION, new_cluster_id, properties

CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
READY_S: Final = 120.0
STOP_S: Final = 30
POLL_S: Final = 0.1


def compose_image() -> str:
    """The image of Apache Kafka, with its version."""
    loaded: Any = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return str(loaded["services"]["kafka"]["image"])


def require_engine() -> None:
    """Raises Unavailable when no Docker engine answers."""
    # What the client leaves open when nobody answers is collected here, and not in somebody's test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            from testcontainers.core.docker_client import DockerClient

            client = DockerClient().client
            client.ping()
            client.close()
        except Exception as error:
            raise Unavailable(f"no Docker engine answers ({type(error).__name__})") from None
        finally:
            gc.collect()


class ContainedKafka:
    """One broker in a container. `start` after `stop` or `kill` finds what was written; `wipe` forgets it."""

    name = "Apache Kafka (container)"
    manners: Mapping[str, str] = {}

    def __init__(self, image: str | None = None) -> None:
        from testcontainers.core.container import DockerContainer

        self.cluster_id = new_cluster_id()
        self._port = free_port()
        listeners = f"CLIENT://0.0.0.0:{CLIENT_PORT}"
        given = properties(
            listeners=listeners,
            advertised=f"CLIENT://{self.bootstrap}",
            controller_port=CONTROLLER_PORT,
            log_dir="/tmp/kafka",  # noqa: S108 - the container's own
        )
        variables = {f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in given.items()}
        variables |= {"CLUSTER_ID": self.cluster_id, "KAFKA_HEAP_OPTS": "-Xms64m -Xmx256m"}
        self._described = DockerContainer(image or compose_image(), env=variables)
        # With the address: the plain number would listen on every network of this machine.
        self._described.ports[f"{CLIENT_PORT}/tcp"] = ("127.0.0.1", self._port)
        self._made = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def version(self) -> str:
        """What the broker says of itself; it is asked once it runs."""
        told = VERSION.search(self._log())
        if told is None:
            raise StartFailed(self.name, "it tells no version", self._log()[-4_000:])
        return f"Apache Kafka {told[1]}"

    async def start(self) -> None:
        """Return when it answers. Raises StartFailed; then nothing of it runs."""
        if self._made:
            await asyncio.to_thread(self._container.start)
        else:
            await asyncio.to_thread(self._described.start)
            self._made = True
        deadline = time.monotonic() + READY_S
        while await find_cluster_id(self.bootstrap) != self.cluster_id:
            await asyncio.to_thread(self._container.reload)
            if self._container.status not in ("created", "running") or time.monotonic() > deadline:
                said = self._log()[-4_000:]
                await self.discard()
                raise StartFailed(self.name, f"it is not ready ({self._container.status})", said)
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        await asyncio.to_thread(self._container.stop, timeout=STOP_S)

    def kill(self) -> None:
        self._container.kill()
        self._container.wait()

    async def wipe(self) -> None:
        await self.discard()
        await self.start()

    async def freeze(self) -> None:
        await asyncio.to_thread(self._container.pause)

    def thaw(self) -> None:
        self._container.unpause()

    async def discard(self) -> None:
        if self._made:
            self._made = False
            await asyncio.to_thread(self._container.remove, force=True, v=True)

    @property
    def _container(self) -> Any:
        return self._described.get_wrapped_container()

    def _log(self) -> str:
        return str(self._container.logs(), "utf-8", "replace")
