"""An installation's own parts: what it waits for, whom it watches, and which failure it tells."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from services.kernel.errors import Stop
from services.operations.installation import Installation, Plan, first_json, together
from services.operations.terminal import Terminal
from services.sandbox.embedded.process import ServerProcess
from services.sandbox.embedded.stack import Stack
from tests.operations.conftest import OTHER, TOY, log_sender


class Service:
    """A process as an installation sees it."""

    def __init__(self, *, alive: bool = True, exit_code: int | None = None, stops_with: int = 0) -> None:
        self.alive = alive
        self.exit_code = exit_code
        self.stopped: list[float] = []
        self._stops_with = stops_with

    def log_tail(self) -> str:
        return "the last line"

    async def stop(self) -> None:
        self.stopped.append(asyncio.get_running_loop().time())
        self.alive, self.exit_code = False, self._stops_with


def installation_of(tmp_path: Path, **services: Service) -> Installation:
    terminal = Terminal((TOY, OTHER), log_sender, {})
    whole = Installation(terminal, Stack(tmp_path, parts=[]), Plan())
    whole.processes.update(cast(dict[str, ServerProcess], services))
    return whole


async def test_a_service_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    whole = installation_of(tmp_path, serve=Service(), consume=Service(alive=False, exit_code=70))
    with pytest.raises(Stop) as stopped:
        await whole.watch(asyncio.Event())
    assert stopped.value.code.exit == 70
    assert str(stopped.value) == "service_ended: consume ended with exit 70:\nthe last line"


async def test_a_stop_ends_the_watch(tmp_path: Path) -> None:
    whole = installation_of(tmp_path, serve=Service())
    stopping = asyncio.Event()
    watching = asyncio.ensure_future(whole.watch(stopping))
    await asyncio.sleep(0)
    assert not watching.done()
    stopping.set()
    await asyncio.wait_for(watching, 5)


async def test_the_sandbox_is_stopped_last_and_who_did_not_end_in_order_is_remembered(tmp_path: Path) -> None:
    serve, consume, sandbox = Service(), Service(stops_with=75), Service(stops_with=1)
    whole = installation_of(tmp_path, sandbox=sandbox, serve=serve, consume=consume, gone=Service(alive=False))
    await whole.close()
    assert max(*serve.stopped, *consume.stopped) <= sandbox.stopped[0]
    assert whole.ended_badly == ["consume: exit 75"]


async def test_of_what_is_done_at_once_the_first_failure_is_told() -> None:
    cancelled: list[str] = []

    async def failing() -> None:
        await asyncio.sleep(0)
        raise Stop("migration_failed", "why")

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("waiting")
            raise

    with pytest.raises(Stop, match="migration_failed: why"):
        await together(waiting(), failing())
    assert cancelled == ["waiting"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, None),
        ("", None),
        ('{"ready": tr', None),
        ('{"ready": true}', None),
        ('a warning\n{"ready": true}\n{"later": 1}\n', {"ready": True}),
    ],
)
def test_a_line_counts_when_it_is_whole(tmp_path: Path, text: str | None, said: Any) -> None:
    log = tmp_path / "log"
    if text is not None:
        log.write_text(text)
    assert first_json(log) == said
