"""Apache Kafka in a container, without Docker: testcontainers speaks to an engine that only writes down.

That engine knows as much of Docker's API as a container's life needs; it runs nothing, so who listens is made up too.
"""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from testcontainers.core.config import testcontainers_config

from services.sandbox.embedded.process import StartFailed
from tests.fixtures.brokers import settings_of
from tests.stack import container
from tests.stack.container import ContainedKafka, compose_image, require_engine
from tests.stack.jars import Unavailable

ID = "c0ffee" * 8
LOG = "[2026-12-01 10:00:00,000] INFO Kafka version: 4.9.9 (org.apache.kafka.common.utils.AppInfoParser)\n"


class Engine(ThreadingHTTPServer):
    """One container at most; what was asked of it, in order, and the state it is in."""

    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.asked: list[str] = []
        self.created: dict[str, Any] = {}
        self.state = "none"

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    @property
    def variables(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.created["Env"])


class Asked(BaseHTTPRequestHandler):
    """Docker's API as far as it goes here."""

    protocol_version = "HTTP/1.0"  # no connection outlives its request
    server: Engine
    becomes: ClassVar = {
        "start": "running",
        "stop": "exited",
        "kill": "exited",
        "pause": "paused",
        "unpause": "running",
    }

    def do_GET(self) -> None:
        path = self._path()
        if path.endswith("/version"):
            self._answer(200, {"ApiVersion": "1.47", "Version": "27.0.0"})
        elif path.endswith("/_ping"):
            self._answer(200, "OK")
        elif path.startswith("/images/"):
            self._answer(200, {"Id": "sha256:1", "RepoTags": [self.server.created.get("Image", "")]})
        elif path.endswith("/logs"):
            # One frame of standard output, with its length.
            self._answer(200, b"\x01\0\0\0" + len(LOG).to_bytes(4) + LOG.encode())
        elif path.endswith("/json"):
            self._answer(200, {"Id": ID, "State": {"Status": self.server.state}, "Config": {"Tty": False}})
        else:
            self._answer(404, {"message": path})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        verb = self._path().rpartition("/")[2]
        if verb == "create":
            self.server.created, self.server.state = body, "created"
            self.server.asked.append("create")
            self._answer(201, {"Id": ID, "Warnings": []})
        elif verb == "wait":
            self._answer(200, {"StatusCode": 137})
        else:
            self.server.state = self.becomes[verb]
            self.server.asked.append(verb)
            self._answer(204, b"")

    def do_DELETE(self) -> None:
        self.server.state = "none"
        self.server.asked.append("remove")
        self._answer(204, b"")

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _path(self) -> str:
        return re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])

    def _answer(self, status: int, said: object) -> None:
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if isinstance(said, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Engine() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", served.url)
        monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)

        async def find_cluster_id(_: str) -> str | None:
            return served.variables["CLUSTER_ID"] if served.state == "running" else None

        monkeypatch.setattr(container, "find_cluster_id", find_cluster_id)
        yield served
        served.shutdown()
        thread.join()


async def test_a_container_is_the_same_node_on_loopback_for_its_whole_life(engine: Engine) -> None:
    require_engine()
    kafka = ContainedKafka()
    try:
        await kafka.start()
        assert engine.created["Image"] == compose_image()
        bound = engine.created["HostConfig"]["PortBindings"]["9092/tcp"]
        assert bound == [{"HostIp": "127.0.0.1", "HostPort": kafka.bootstrap.partition(":")[2]}]
        given = engine.variables
        assert given["KAFKA_ADVERTISED_LISTENERS"] == f"CLIENT://{kafka.bootstrap}"
        assert (given["KAFKA_PROCESS_ROLES"], given["KAFKA_AUTO_CREATE_TOPICS_ENABLE"]) == (
            "broker,controller",
            "false",
        )
        assert settings_of(kafka) == {"ROWCLAIM_KAFKA_BOOTSTRAP": kafka.bootstrap}
        assert kafka.version == "Apache Kafka 4.9.9"
        await kafka.freeze()
        kafka.thaw()
        await kafka.stop()
        await kafka.start()
        kafka.kill()
        await kafka.wipe()
    finally:
        await kafka.discard()
        await kafka.discard()
    life = ["create", "start", "pause", "unpause", "stop", "start", "kill", "remove", "create", "start", "remove"]
    assert engine.asked == life


async def test_one_that_ends_before_it_answers_shows_its_log_and_is_removed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Asked.becomes, "start", "exited")
    with pytest.raises(StartFailed, match=r"(?s)it is not ready \(exited\).*Kafka version: 4\.9\.9"):
        await ContainedKafka().start()
    assert engine.asked == ["create", "start", "remove"]


def test_without_an_engine_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"no Docker engine answers \(DockerException\)"):
        require_engine()
