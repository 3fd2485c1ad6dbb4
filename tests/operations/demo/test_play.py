"""How a demo ends: what breaks a story, or is left behind by it, is in the verdict; what others run is not."""

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.kernel.errors import Stop
from services.operations.demo import play as played
from services.operations.demo.stage import Note, TooLate
from services.operations.demo.verdict import Told
from services.operations.terminal import Terminal
from services.sandbox.embedded.leftovers import find_run_processes
from tests.operations.conftest import log_sender
from tests.operations.test_terminal import console_script
from tests.waiting import wait_until

NOBODY = Terminal((), log_sender, {})
SLEEP = (sys.executable, "-c", "import time; time.sleep(120)")


@dataclass
class Whole:
    ended_badly: list[str] = field(default_factory=list)
    stops: int = 0

    async def stop_services(self) -> None:
        self.stops += 1


@dataclass
class Stage:
    whole: Whole = field(default_factory=Whole)


@dataclass
class Story:
    stage: Any
    note: Note
    told: Told = field(default_factory=lambda: Told("toy"))

    async def play(self) -> Told:
        self.told.check("two", 2, 2)
        return self.told


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    standing = Stage()

    @asynccontextmanager
    async def set_up(_terminal: Terminal, _directory: Path) -> AsyncIterator[Stage]:
        yield standing

    monkeypatch.setenv("ROWCLAIM_RUN", f"play-{os.getpid()}")
    monkeypatch.setattr(played, "set_up", set_up)
    monkeypatch.setattr(played, "STORIES", (Story,))
    return standing


async def play(tmp_path: Path) -> tuple[dict[str, bool], str]:
    """Each check of the verdict, and what was printed."""
    said, path = io.StringIO(), tmp_path / "verdict.json"
    ok = await played.play(NOBODY, Console(file=said, width=200), json_path=path, keep=tmp_path / "kept")
    document = json.loads(path.read_text())
    assert (document["verdict"] == "ok") == ok
    return {check["name"]: check["ok"] for check in document["checks"]}, said.getvalue()


@contextmanager
def sleeper() -> Iterator[int]:
    with subprocess.Popen(SLEEP, env=dict(os.environ)) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def carries_our_name(pid: int) -> bool:
    return pid in dict(find_run_processes(os.environ["ROWCLAIM_RUN"]))


async def test_all_well_is_a_good_verdict(stage: Stage, tmp_path: Path) -> None:
    checks, said = await play(tmp_path)
    assert checks == {"toy: two": True, "every service ended in order": True, "no process is left": True}
    assert "verdict: ok  3 of 3 checks" in said
    assert stage.whole.stops == 1


@pytest.mark.parametrize("broken", [TooLate("row delivered: not within 30 s"), Stop("service_ended", "topics")])
async def test_a_story_that_breaks_off_has_a_verdict_too(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    async def breaks(_: Story) -> Told:
        raise broken

    monkeypatch.setattr(Story, "play", breaks)
    checks, said = await play(tmp_path)
    assert checks == {"the story went on": False, "every service ended in order": True, "no process is left": True}
    assert str(broken) in said
    assert f"logs: {tmp_path / 'kept'}" in said
    assert stage.whole.stops == 1


async def test_a_service_that_ended_badly_fails_it(stage: Stage, tmp_path: Path) -> None:
    stage.whole.ended_badly = ["consume-1: exit 75"]
    checks, said = await play(tmp_path)
    assert not checks["every service ended in order"]
    assert "consume-1: exit 75" in said


async def test_what_the_run_left_fails_it_and_what_ran_before_does_not(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sleeper() as before:
        await wait_until(lambda: carries_our_name(before), within_s=20, what="the process before runs")
        checks, _ = await play(tmp_path)
        assert checks["no process is left"]
        left: list[subprocess.Popen[bytes]] = []

        async def leaves(story: Story) -> Told:
            left.append(subprocess.Popen(SLEEP, env=dict(os.environ)))  # noqa: ASYNC220 it is meant to outlive the story
            await wait_until(lambda: carries_our_name(left[0].pid), within_s=20, what="the one left behind runs")
            return story.told

        monkeypatch.setattr(Story, "play", leaves)
        try:
            checks, said = await play(tmp_path)
        finally:
            for process in left:
                process.kill()
                process.wait()
        assert not checks["no process is left"]
        assert str(left[0].pid) in said
        assert f"({before}," not in said


def test_a_place_for_the_verdict_that_cannot_be_is_told_before_the_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console_script(NOBODY, "demo", "--json", str(tmp_path / "none" / "verdict.json")) == 2
    # The box around it folds where it likes.
    assert "nodirectorywemaywriteto" in "".join(capsys.readouterr().err.replace("│", "").split())
