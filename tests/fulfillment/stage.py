"""Several processes' worth of work, moved one exchange at a time: whose turn it is, a test decides.

Each actor is a thread with a loop and one database connection of its own. It stops before every crossing of a door (and
before every line of the scripted outside), and goes on when it is given its turn; so exactly one of them moves between
two crossings. One that waits for another's row lock is left waiting: it goes on by itself when the lock is released.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from services.kernel import doors
from services.kernel.db import Database
from services.kernel.doors import Door, Moment
from tests.fixtures.database import Connection

PLAY_WITHIN_S: Final = 30.0
TURN_WITHIN_S: Final = 60.0
LOOK_AT_LOCKS_AFTER_S: Final = 0.02
STEPS_MAX: Final = 400

Work = Callable[[Database], Awaitable[Any]]
Trace = tuple[tuple[str, str], ...]

_here = threading.local()


class Stuck(AssertionError):
    """Everybody waits for everybody, or nobody comes to an end."""


def point(what: str) -> None:
    """Wait for this actor's turn; elsewhere than in an actor, nothing."""
    actor: _Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.wait_for_turn(what)


@dataclass(slots=True)
class Played:
    """What happened: who did what, in order, and each actor's result (or the exception it ended with)."""

    trace: Trace
    results: dict[str, Any]


@dataclass(slots=True)
class _Told:
    """``what`` None: the actor's work is over."""

    actor: "_Actor"
    what: str | None
    result: Any = None


class _Actor:
    """One thread, one loop, one connection whose application name is the actor's."""

    def __init__(self, name: str, url: str, tell: Callable[[_Told], None]) -> None:
        self.name = name
        self._url = url
        self._tell = tell
        self._turn = threading.Semaphore(0)
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._playing = False
        self._thread.start()

    def begin(self, work: Work) -> None:
        self._works.put(work)

    def go(self) -> None:
        self._turn.release()

    def end(self) -> None:
        self._works.put(None)
        self._turn.release()
        self._thread.join(TURN_WITHIN_S)

    def wait_for_turn(self, what: str) -> None:
        if self._playing:
            self._tell(_Told(self, " ".join(what.split())))
            if not self._turn.acquire(timeout=TURN_WITHIN_S):
                raise Stuck(f"{self.name} never had its turn at {what}")

    def _live(self) -> None:
        _here.actor = self
        with asyncio.Runner() as runner:
            try:
                database = runner.run(Database.connect(self._url, application=self.name, size_max=1))
            except BaseException as error:
                self._tell(_Told(self, None, error))
                return
            self._tell(_Told(self, None))
            while (work := self._works.get()) is not None:
                self._playing = True
                try:
                    result = runner.run(_as_coroutine(work, database))
                except BaseException as error:
                    result = error
                self._playing = False
                self._tell(_Told(self, None, result))
            runner.run(database.close())


async def _as_coroutine(work: Work, database: Database) -> Any:
    return await work(database)


@dataclass(slots=True)
class Stage:
    """The actors, and who of them stands where."""

    _looker: Connection
    _told: "asyncio.Queue[_Told]" = field(default_factory=asyncio.Queue)
    _actors: list[_Actor] = field(default_factory=list)

    async def play(self, works: Sequence[tuple[str, Work]], random: Random, *, stays: float) -> Played:
        """Let the works run at once, one exchange at a time; whoever moved goes on moving with probability ``stays``.

        Raises Stuck where nobody can move, or too many steps or seconds pass.
        """
        names = {actor: name for actor, (name, _) in zip(self._actors, works, strict=True)}
        for actor, (_, work) in zip(self._actors, works, strict=True):
            actor.begin(work)
        trace: list[tuple[str, str]] = []
        results: dict[str, Any] = {}
        standing: dict[_Actor, str] = {}
        moving, latest = set(self._actors), self._actors[0]
        async with asyncio.timeout(PLAY_WITHIN_S):
            while True:
                await self._settle(moving, standing, results, names)
                if not standing:
                    break
                stay = latest in standing and random.random() < stays
                latest = latest if stay else random.choice([one for one in self._actors if one in standing])
                trace.append((names[latest], standing.pop(latest)))
                if len(trace) > STEPS_MAX:
                    raise Stuck(f"no end after {STEPS_MAX} steps: {trace[-12:]}")
                moving.add(latest)
                latest.go()
        if moving:
            raise Stuck(f"{sorted(names[one] for one in moving)} wait for locks that nobody releases: {trace[-12:]}")
        return Played(tuple(trace), results)

    async def _settle(
        self,
        moving: set[_Actor],
        standing: dict[_Actor, str],
        results: dict[str, Any],
        names: Mapping[_Actor, str],
    ) -> None:
        """Until whoever moves stands before its next point, is done, or waits for a lock."""
        while moving:
            try:
                async with asyncio.timeout(LOOK_AT_LOCKS_AFTER_S):
                    told = await self._told.get()
            except TimeoutError:
                if {one.name for one in moving} <= await self._waiting_for_locks():
                    return
                continue
            moving.discard(told.actor)
            if told.what is None:
                results[names[told.actor]] = told.result
            else:
                standing[told.actor] = told.what

    async def _waiting_for_locks(self) -> set[str]:
        rows = await self._looker.fetch(
            "select distinct a.application_name as name from pg_locks l join pg_stat_activity a using (pid)"
            " where not l.granted"
        )
        return {row["name"] for row in rows}


@asynccontextmanager
async def stage(url: str, looker: Connection, actors: int) -> AsyncIterator[Stage]:
    """So many actors, connected to ``url``; ``looker`` sees who waits for whose lock."""
    loop = asyncio.get_running_loop()
    made = Stage(looker)

    def tell(told: _Told) -> None:
        loop.call_soon_threadsafe(made._told.put_nowait, told)

    def at(door: Door, what: str, moment: Moment) -> None:
        if moment == "before":
            point(what)

    before = doors.watch(at)
    try:
        for number in range(actors):
            made._actors.append(_Actor(f"actor {number}", url, tell))
        for _ in range(actors):
            told = await made._told.get()
            assert told.result is None, told.result
        yield made
    finally:
        for actor in made._actors:
            await asyncio.to_thread(actor.end)
        doors.watch(before)
