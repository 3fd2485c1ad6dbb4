"""What a sweep's scenario stands in: a fresh database each time, and where it calls vendors, a sandbox of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from services.sandbox.embedded.mail import MailSink
from services.sandbox.embedded.process import free_ports
from services.sandbox.world import Urls
from services.sandbox.world import World as SandboxWorld
from tests.crash.child import forked
from tests.crash.sweep import Make, World
from tests.fixtures.database import Server


class Arranged(World, Protocol):
    async def arrange(self) -> None:
        """Bring everything to where the flow begins."""
        ...


def on_a_database(server: Server, scenario: Callable[[Server, str], Arranged]) -> Make:
    """Scenarios made of the server and the name of a database."""

    @contextmanager
    def world() -> Iterator[World]:
        with server.copied() as name:
            yield _arranged(scenario(server, name))

    return world


def among_vendors(server: Server, scenario: Callable[[Server, str, Urls, str], Arranged]) -> Make:
    """The same, with the sandbox's addresses and that of its mail server: a process of their own, which outlives
    whoever is killed."""

    @contextmanager
    def world() -> Iterator[World]:
        port, smtp_port = free_ports(2)
        urls = Urls(f"http://127.0.0.1:{port}")

        @asynccontextmanager
        async def serving() -> AsyncIterator[None]:
            sandbox = SandboxWorld()
            sandbox.mail = MailSink(port=smtp_port)
            await sandbox.mail.start()
            async with sandbox.serve(port):
                yield

        with forked(serving), server.copied() as name:
            yield _arranged(scenario(server, name, urls, f"smtp://127.0.0.1:{smtp_port}"))

    return world


def _arranged(scenario: Arranged) -> World:
    asyncio.run(scenario.arrange())
    return scenario
