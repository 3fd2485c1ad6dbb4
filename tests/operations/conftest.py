"""A small installation for the commands: toy slices over real login roles, and the environment of this test."""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest
from pydantic_settings import SettingsConfigDict

from services.kernel.service import Service
from services.kernel.settings import SliceSettings
from services.operations.command_line import make_app
from services.operations.paging import LogSender, PageSender
from services.operations.process import Process
from services.operations.terminal import Terminal, finish
from tests.fixtures.database import DatabaseUrl
from tests.fixtures.logs import logging_restored


class ToySettings(SliceSettings):
    """Of the toy slice that logs in as fulfillment does."""

    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_FULFILLMENT_")

    colour: str = "green"


class OtherSettings(SliceSettings):
    """Of the toy slice that logs in as ingress does."""

    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_INGRESS_")

    needed: str


TOY = Service(name="fulfillment", settings=ToySettings)
OTHER = Service(name="ingress", settings=OtherSettings)


async def log_sender(_: Process) -> PageSender:
    return LogSender()


class MakeTerminal(Protocol):
    def __call__(self, *services: Service, **environ: str) -> Terminal: ...


@pytest.fixture
def make_terminal(database_url: DatabaseUrl) -> MakeTerminal:
    """The command line over ``services`` (the toy slice unless told otherwise) and this test's database."""

    def make(*services: Service, **environ: str) -> Terminal:
        given = {f"ROWCLAIM_{name}": value for name, value in environ.items()}
        return Terminal(services or (TOY,), log_sender, {"ROWCLAIM_DATABASE_URL": database_url()} | given)

    return make


@dataclass(frozen=True)
class Ended:
    """How a command line ended: exit status, what it printed, what it told."""

    code: int
    out: str
    err: str


class RunCommand(Protocol):
    def __call__(self, terminal: Terminal, *arguments: str) -> Awaitable[Ended]: ...


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Iterator[RunCommand]:
    """Run one command line as the console script does, on a thread: a command brings a loop of its own."""

    async def run(terminal: Terminal, *arguments: str) -> Ended:
        capsys.readouterr()
        code = await asyncio.to_thread(finish, make_app(terminal), terminal, arguments)
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    with logging_restored():
        yield run
