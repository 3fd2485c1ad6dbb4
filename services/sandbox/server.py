"""Serving the sandbox: our own socket, no signal handlers, and the connection in reach of whoever must drop it.

Only uvicorn's protocol is used, not its ``Server``: that one looks at its stop flag ten times a second and sleeps
through a stop, which a suite with hundreds of sandboxes would feel, and it raises a captured signal a second time.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from services.sandbox.http import TRANSPORT

PORTS: Final = range(20_000, 32_000)
"""Below the range from which the kernel takes ports for outgoing connections, so none of ours can be taken by one."""
BIND_TRIES_MAX: Final = 50
BACKLOG: Final = 2048
STOP_S: Final = 2
"""How long requests in hand may take to end when the sandbox stops."""


class ReachableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which also puts its connection into the scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[typeddict-unknown-key]  # a key of ours in ASGI's scope


def listen(port: int) -> socket.socket:
    """A bound loopback socket; port 0 picks a free one of PORTS. OSError when it is taken."""
    if port:
        return _bind(port)
    for candidate in random.sample(PORTS, BIND_TRIES_MAX):
        with contextlib.suppress(OSError):
            return _bind(candidate)
    raise OSError(f"no free port found in {PORTS.start}-{PORTS.stop - 1} after {BIND_TRIES_MAX} tries")


def _bind(port: int) -> socket.socket:
    # The protocol is named, because asyncio switches Nagle's algorithm off only for a socket that says it is TCP; with
    # it on, every answer written in two parts waits 40 ms for the caller's delayed acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[str]:
    """Serve ``app`` on loopback while the block runs; yields its base URL. Requests in hand get STOP_S to end."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        date_header=False,
        server_header=False,
    )
    config.load()
    state = ServerState()
    listener = listen(port)
    server = await loop.create_server(
        lambda: ReachableProtocol(config, state, {}, loop), sock=listener, backlog=BACKLOG
    )
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            _, late = await asyncio.wait(state.tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await _connections_gone(state)


async def _connections_gone(state: ServerState) -> None:
    """Let the closed connections be told so by the loop, or they would be found open by the garbage collector."""
    for connection in list(state.connections):
        connection.transport.abort()
    while state.connections:  # noqa: ASYNC110 (uvicorn keeps a set, no event; the loop empties it in its next turns)
        await asyncio.sleep(0)
