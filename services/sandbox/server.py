"""Serving the sandbox: our own socket, our own signals, and the connection in reach of whoever must drop it."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.sandbox.http import TRANSPORT

PORTS: Final = range(20_000, 32_000)
"""Below the range from which the kernel takes ports for outgoing connections, so none of ours can be taken by one."""
BIND_TRIES_MAX: Final = 50
STOP_S: Final = 2


class ReachableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which also puts its connection into the scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[typeddict-unknown-key]


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which raise a captured signal again after serving and fire ours twice."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(port: int) -> socket.socket:
    """A bound loopback socket; port 0 picks a free one of PORTS. OSError when it is taken."""
    if port:
        return socket.create_server(("127.0.0.1", port))
    for candidate in random.sample(PORTS, BIND_TRIES_MAX):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", candidate))
    raise OSError(f"no free port found in {PORTS.start}-{PORTS.stop - 1} after {BIND_TRIES_MAX} tries")


@contextlib.asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[str]:
    """Serve ``app`` on loopback while the block runs; yields its base URL. Open requests get STOP_S to end."""
    with listen(port) as listener:
        server = QuietServer(
            uvicorn.Config(
                app,
                loop="none",
                http=ReachableProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                date_header=False,
                server_header=False,
                backlog=2048,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        serve = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not serve.done():  # noqa: ASYNC110 (uvicorn offers a flag, no event)
                await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serve
