"""The sweep: a flow is run and killed at its first point, its second, ... until a run ends before it is killed.

    points                every crossing of a door, before and after: found, not listed
    flow                  what dies
    redrive               what happens next in the life of the system: another trigger, a reaper, a sweep
    judge                 compares the end with what must hold, knowing where the cut was

With ``pairs`` the redrive is killed too, at so many of its own points, drawn by the first one, and driven again
(``CRASH_PAIRS=3 make crash``; ``CRASH_PAIRS=1000`` for all of them).
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from services.kernel.doors import Door
from tests.crash.child import Ended, run_child

POINTS_MAX = 2_000


class World(Protocol):
    """One scenario on a fresh database, before anything has happened."""

    async def flow(self) -> None: ...
    async def redrive(self) -> None: ...
    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        """What is wrong with the end, in words; ``killed`` are the processes that died, each with all it crossed."""
        ...

    def seen_outside(self) -> Mapping[Door, int]:
        """How many exchanges the servers of each door counted themselves; doors that nobody counts are left out."""
        ...


Make = Callable[[], AbstractContextManager[World]]


@dataclass(slots=True)
class Report:
    """``points``: how many kills were survived or judged; ``doors``: where they were."""

    points: int = 0
    doors: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.points} ({', '.join(f'{door} {count}' for door, count in sorted(self.doors.items()))})"


PAIRS = int(os.environ.get("CRASH_PAIRS", "0"))


def sweep(make: Make, *, pairs: int = PAIRS, part: int = 0, parts: int = 1, faults_max: int = 20) -> Report:
    """Kill at every point, or until so many faults are found. The caller asserts that ``faults`` is empty.

    ``part`` of ``parts``: every so-many-th point alone, for sweeps that share the work.
    """
    report = Report()
    if part == 0:
        _check_doors(make, report)
    for nth in range(1 + part, POINTS_MAX, parts):
        if len(report.faults) >= faults_max:
            return report
        with make() as world:
            first = run_child(world.flow, kill_at=nth)
            _count(report, first)
            follows = _drive(world, report, *([first] if first.killed else []))
        if not first.killed:
            return report
        for second_at in random.Random(nth).sample(range(1, follows + 1), min(pairs, follows)):
            with make() as world:
                first = run_child(world.flow, kill_at=nth)
                second = run_child(world.redrive, kill_at=second_at)
                _count(report, second)
                _drive(world, report, *(end for end in (first, second) if end.killed))
    raise AssertionError(f"more than {POINTS_MAX} points: a flow that does not end")


def _drive(world: World, report: Report, *killed: Ended) -> int:
    """Drive on to the end and judge it; how many points the redrive had."""
    points = 0
    try:
        points = len(run_child(world.redrive).crossed)
        wrong = world.judge(killed)
    except AssertionError as error:
        wrong = [str(error)]
    where = " then ".join(str(end.cut) for end in killed) or "nowhere"
    report.faults += [f"killed {where}: {fault}" for fault in wrong]
    return points


def _check_doors(make: Make, report: Report) -> None:
    """Every exchange that a server outside counted must have been seen crossing a door: else it is never cut."""
    with make() as world:
        crossed = Counter(point.door for point in run_child(world.flow).crossed if point.moment == "after")
        for door, count in world.seen_outside().items():
            if crossed[door] != count:
                report.faults.append(f"{count} exchanges over {door} were seen outside, {crossed[door]} at the door")


def _count(report: Report, ended: Ended) -> None:
    if ended.cut is not None:
        report.points += 1
        report.doors[ended.cut.door] += 1
