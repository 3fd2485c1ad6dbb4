"""The loop of a job in a consuming process: plan, claim, run under a lease, write how it ended."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final

import structlog

from services.kernel.claim import renewal_interval_s
from services.kernel.db import Database
from services.kernel.effects import settled
from services.kernel.errors import Retryable
from services.kernel.jobs import Job
from services.kernel.worker import Worker
from services.operations.store import periods
from services.operations.store.periods import ClaimedPeriod

log = structlog.get_logger()

TICK_S: Final = 10.0
STOP_GRACE_S: Final = 20.0
RETRY_MIN: Final = timedelta(minutes=1)
RETRY_MAX: Final = timedelta(hours=1)


async def run_job(
    job: Job, db: Database, stop: asyncio.Event, *, tick_s: float = TICK_S, stop_grace_s: float = STOP_GRACE_S
) -> None:
    """Plan, claim and run periods of ``job`` until ``stop`` is set.

    At the stop a run has ``stop_grace_s`` seconds to end; then it is cancelled and its period given back. A run that
    raises Retryable comes again after a minute, doubling to an hour; any other error does the same and ends the loop.
    """

    async def step() -> int:
        await periods.reap(db, job)
        await periods.plan(db, job)
        claimed = await periods.claim_period(db, job)
        if claimed is None:
            return 0
        await _run_period(job, db, claimed, stop, stop_grace_s)
        return 1

    await Worker(f"job {job.name}", step, tick_s=tick_s).run(stop)


async def _run_period(job: Job, db: Database, claimed: ClaimedPeriod, stop: asyncio.Event, grace_s: float) -> None:
    fields = {"job": job.name, "period": claimed.period, "attempt": claimed.attempt}
    try:
        report = await _held(job, db, claimed, stop, grace_s)
        if report is None:
            await settled(lambda: periods.put_back(db, job, claimed, timedelta()))
            log.warning("job_cut_off", **fields)
        elif await settled(lambda: periods.finish(db, job, claimed, report)):
            log.info("job_done", **fields, report=dict(report))
        else:
            log.warning("job_lease_lost", **fields)
    except BaseException as error:
        after = min(RETRY_MIN * 2 ** min(claimed.attempt - 1, 16), RETRY_MAX)
        with suppress(Retryable):  # no database, no row to write: its lease runs out, and the reaper frees it
            await settled(lambda: periods.put_back(db, job, claimed, after))
        log.warning("job_put_back", **fields, error=type(error).__name__, after_s=after.total_seconds())
        if not isinstance(error, Retryable):
            raise


async def _held(
    job: Job, db: Database, claimed: ClaimedPeriod, stop: asyncio.Event, grace_s: float
) -> Mapping[str, object] | None:
    """Await the run while renewing its lease. None: it was cancelled, its lease being over or the stop's grace."""
    now = asyncio.get_running_loop().time
    stopped = asyncio.ensure_future(stop.wait())
    cut_at = math.inf
    held_until = now() + job.lease.total_seconds()
    run = asyncio.ensure_future(job.run(claimed.period))
    try:
        while now() < (end := min(cut_at, held_until)):
            waits = {run} if stopped.done() else {run, stopped}
            await asyncio.wait(
                waits, timeout=min(renewal_interval_s(job.lease), end - now()), return_when=asyncio.FIRST_COMPLETED
            )
            if run.done():
                return run.result()
            if stopped.done():
                cut_at = min(cut_at, now() + grace_s)
            # Before the request, so that by this clock the lease never lasts longer than by the database's.
            asked_at = now()
            try:
                if not await periods.renew(db, job, claimed):
                    return None
                held_until = asked_at + job.lease.total_seconds()
            except Retryable as error:
                log.warning("job_renewal_failed", job=job.name, period=claimed.period, code=error.code.name)
        return None
    finally:
        stopped.cancel()
        run.cancel()
        await asyncio.wait({run})
