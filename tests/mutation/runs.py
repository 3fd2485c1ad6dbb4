"""Runs of pytest in forked children of a warm parent: one for each mutant, a handful at a time."""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from services.kernel import doors
from services.kernel.doors import Door, Moment
from tests.crash.child import die_with, fork

WITHIN_S = 120.0
_WITHOUT = (
    *("cacheprovider", "faulthandler", "threadexception", "unraisableexception"),
    # What a whole suite is judged by: the parent's server outlives each of its children.
    *("promise-recorder", "tests.fixtures.leftovers"),
)
OPTIONS = ("-q", "--assert=plain", *(part for name in _WITHOUT for part in ("-p", f"no:{name}")))
"""Plain asserts: the parent has the tests imported already, and nobody reads why one died."""


class Result(StrEnum):
    DIED = "died"
    """A test failed, or hung: the mutant was noticed."""
    SURVIVED = "survived"
    BROKEN = "broken"
    """The run itself did not work; the log says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """``prepare`` makes the mutant in the child; ``tests`` are node ids or files."""

    name: str
    prepare: Callable[[], None]
    tests: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ran:
    run: Run
    result: Result
    seconds: float
    log: str


def run_all(runs: Sequence[Run], logs: Path, *, jobs: int) -> Iterator[Ran]:
    """The results, in the order in which the runs end."""
    waiting = list(reversed(runs))
    going: dict[int, tuple[Run, int, float, Path]] = {}
    while waiting or going:
        while waiting and len(going) < jobs:
            run = waiting.pop()
            log = logs / f"{len(waiting)}.log"
            child, over = _start(run, log)
            going[child] = (run, over, time.monotonic(), log)
        ready, _, _ = select.select([over for _, over, _, _ in going.values()], [], [], 1.0)
        for child, (run, over, started, log) in list(going.items()):
            hung = time.monotonic() - started > WITHIN_S
            if hung:
                os.kill(child, signal.SIGKILL)
            if hung or over in ready:
                _, status = os.waitpid(child, 0)
                os.close(over)
                del going[child]
                result = Result.DIED if hung else _result(os.waitstatus_to_exitcode(status))
                yield Ran(run, result, time.monotonic() - started, log.read_text(errors="replace"))


def _result(code: int) -> Result:
    match code:
        case pytest.ExitCode.TESTS_FAILED:
            return Result.DIED
        case pytest.ExitCode.OK:
            return Result.SURVIVED
        case _:
            return Result.BROKEN


def _start(run: Run, log: Path) -> tuple[int, int]:
    """The child's pid, and a pipe that ends with it."""
    reader, writer = os.pipe()
    parent, child = os.getpid(), fork()
    if child:
        os.close(writer)
        return child, reader
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        die_with(parent)
        _redirect(log)
        run.prepare()
        code = int(pytest.main([*OPTIONS, "-x", *run.tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


# --------------------------------------------------------------------------------------------------- who runs what
@dataclass(frozen=True, slots=True)
class Covered:
    """A test that passed as things are, the statements it ran, and how long it took."""

    test: str
    queries: frozenset[str]
    seconds: float


class Coverage:
    """A pytest plugin that notes which statements each test sends through the database's door."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._tests: list[dict[str, object]] = []
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        queries: set[str] = set()

        def note(door: Door, what: str, moment: Moment) -> None:
            if door is Door.DATABASE and moment == "before":
                queries.add(what)

        before = doors.watch(note)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            doors.watch(before)
            seconds = time.monotonic() - started
            self._tests.append({"test": item.nodeid, "queries": sorted(queries), "seconds": seconds})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = [test for test in self._tests if test["test"] not in self._failed]
        self._out.write_text(json.dumps(passed), encoding="utf-8")


def warm(parts: Sequence[Sequence[str]], logs: Path) -> None:
    """Import in this process what its children would import again and again: pytest, its plugins and the tests."""
    said = logs / "warm.log"
    with said.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        code = pytest.main([*OPTIONS, "--collect-only", *(argument for part in parts for argument in part)])
    assert code == pytest.ExitCode.OK, said.read_text(errors="replace")[-4000:]


def cover(parts: Sequence[Sequence[str]], prepare: Callable[[], None], logs: Path) -> list[Covered]:
    """Run ``parts`` side by side, unchanged, and note what each test that passed ran.

    One that fails by itself can tell nothing about a mutant; the suite is where it is red.
    """
    outs = [logs / f"coverage-{nth}.json" for nth, _ in enumerate(parts)]
    children = []
    for part, out in zip(parts, outs, strict=True):
        child = fork()
        if not child:
            code = int(pytest.ExitCode.INTERNAL_ERROR)
            try:
                _redirect(out.with_suffix(".log"))
                prepare()
                code = int(pytest.main([*OPTIONS, *part], plugins=[Coverage(out)]))
            finally:
                os._exit(code)
        children.append(child)
    for child, out in zip(children, outs, strict=True):
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        said = out.with_suffix(".log").read_text(errors="replace")
        assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), said[-4000:]
    return [
        Covered(test["test"], frozenset(test["queries"]), test["seconds"])
        for out in outs
        for test in json.loads(out.read_text(encoding="utf-8"))
    ]
