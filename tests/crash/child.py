"""A forked child that runs a flow and is killed at a given crossing of the kernel's doors.

The parent is warm (everything imported) and cold at once: no loop runs in it and it holds no connection that a child
could inherit. A child therefore begins within milliseconds, as a fresh process would.
"""

import asyncio
import ctypes
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

import httpcore  # noqa: F401 - httpx imports it at its first client; a warm parent has it

from services.kernel import doors
from services.kernel.doors import Door, Moment

FAILED = 70
PR_SET_PDEATHSIG = 1
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One instant at which a process can die: before a server saw the request, or after it acted."""

    door: Door
    moment: Moment
    what: str

    def __str__(self) -> str:
        return f"{self.moment} {self.door}: {' '.join(self.what.split())[:70]}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a child crossed, and whether it was killed there: then the last point is where."""

    crossed: tuple[Point, ...]
    killed: bool

    @property
    def cut(self) -> Point | None:
        return self.crossed[-1] if self.killed else None


class ChildFailed(AssertionError):
    """A child ended by itself, and not well; the message is its traceback."""


def run_child(work: Callable[[], Awaitable[object]], *, kill_at: int | None = None) -> Ended:
    """Run ``work`` in a forked child on a loop of its own, and kill it at its ``kill_at``-th point (1 is the first)."""
    reader, writer = os.pipe()
    parent, child = os.getpid(), fork()
    if child == 0:
        os.close(reader)
        die_with(parent)
        _live(work, kill_at, writer)
    os.close(writer)
    try:
        told = _read(reader, child)
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and kill_at is not None:
        return Ended(_points(told), killed=True)
    if status != 0:
        raise ChildFailed(f"wait status {status}\n{told}")
    return Ended(_points(told), killed=False)


@contextmanager
def forked(serving: Callable[[], AbstractAsyncContextManager[object]]) -> Iterator[None]:
    """Servers that outlive whoever is killed: they listen inside ``serving()``, in a child that ends with the block."""
    reader, writer = os.pipe()
    parent, child = os.getpid(), fork()
    if child == 0:
        os.close(reader)
        die_with(parent)
        _serve(serving, writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as report:
            said = report.readline()
        if said != "ready\n":
            raise ChildFailed(f"a server did not start: {said}")
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(serving: Callable[[], AbstractAsyncContextManager[object]], writer: int) -> None:
    async def serve() -> None:
        async with serving():
            os.write(writer, b"ready\n")
            os.close(writer)
            await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except BaseException as error:
        os.write(writer, f"{error!r}\n".encode())
    os._exit(FAILED)


def fork() -> int:
    """``os.fork``, without the newer Pythons' warning about threads: a parallel test worker has one, which only waits
    for its orders and holds nothing that a child could need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def die_with(parent: int) -> None:
    """Ask the system to end this process when its parent's does; elsewhere than on Linux nobody can be asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(FAILED)


def _live(work: Callable[[], Awaitable[object]], kill_at: int | None, writer: int) -> None:
    """The child's whole life; never returns."""
    count = 0

    def at(door: Door, what: str, moment: Moment) -> None:
        nonlocal count
        count += 1
        os.write(writer, f"{door}\t{moment}\t{' '.join(what.split())}\n".encode())
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        await work()

    code = 0
    try:
        doors.watch(at)
        asyncio.run(run())
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
        code = FAILED
    os._exit(code)


def _read(reader: int, child: int) -> str:
    """Everything the child writes until its end; one that hangs is killed and reported."""
    told = bytearray()
    deadline = time.monotonic() + WITHIN_S
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            raise ChildFailed(f"not over after {WITHIN_S:g} s; it had crossed\n{told.decode(errors='replace')}")
        part = os.read(reader, 65536)
        if not part:
            return told.decode(errors="replace")
        told += part


def _points(told: str) -> tuple[Point, ...]:
    points = []
    for line in told.splitlines():
        door, moment, what = line.split("\t", 2)
        points.append(Point(Door(door), "before" if moment == "before" else "after", what))
    return tuple(points)
