"""Jobs are rows: one row a job and period, planned by whoever sees it due, worked off by whoever claims it.

Every process plans and claims by the database's clock in UTC, so a job runs however few processes live, and once
however many do. A period missed while nobody ran is planned late. Whoever dies holding a period loses it to the reaper:
a run must bear being run again, and one that lost its lease is cancelled. Here stands what a slice says of a job;
``operations/jobs.py`` runs it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from services.kernel.transition import Edge, Fence, Machine


class JobState(StrEnum):
    """Who moves a period next."""

    DUE = "due"
    """Any process that runs the job, once ``next_attempt_at`` has come."""
    RUNNING = "running"
    """The process that holds the lease; after it, the reaper."""
    DONE = "done"
    """Nobody."""


S = JobState
JOB_RUNS = Machine(
    "job_runs",
    JobState,
    [
        Edge("plan", None, S.DUE, Fence.BIRTH),
        Edge("claim", S.DUE, S.RUNNING, Fence.CLAIM),
        Edge("finish", S.RUNNING, S.DONE, Fence.TOKEN),
        Edge("put_back", S.RUNNING, S.DUE, Fence.TOKEN),
        Edge("reap", S.RUNNING, S.DUE, Fence.CLAIM),
    ],
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A period every ``every``, due ``at`` after its start; starts are counted from Monday, midnight UTC."""

    every: timedelta
    at: timedelta


def daily(*, hour: int) -> Schedule:
    """Every day at ``hour`` o'clock UTC."""
    return Schedule(timedelta(days=1), timedelta(hours=hour))


def weekly(*, weekday: int, hour: int) -> Schedule:
    """Every week on ``weekday`` (Monday is 0) at ``hour`` o'clock UTC."""
    return Schedule(timedelta(days=7), timedelta(days=weekday, hours=hour))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``run`` once a period, which it is told (the date of its due day); its report is kept (JSON; counts, no people).

    ``back_fill``: how many of the latest periods are still run if they were missed. A job that was never planned starts
    with its latest period alone. Periods of one job may overlap in two processes when some were missed.
    """

    name: str
    schedule: Schedule
    run: Callable[[str], Awaitable[Mapping[str, object]]]
    back_fill: int = 1
    lease: timedelta = timedelta(seconds=60)
