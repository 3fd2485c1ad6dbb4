"""``rowclaim prune``: what is kept for a time is dropped after it, in pieces, by a role that may do nothing else.

A piece is a commit, so a run that is cut off leaves nothing half done and the next one goes on. Nothing unfinished is
touched, however old, and no business row: what is deleted here was done with long ago. Who asked is written before the
first piece, what was dropped after the last.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Final, Protocol

import typer

from services.kernel.db import Database, Tx
from services.operations import retention_store as store
from services.operations.store import record_action
from services.operations.terminal import Terminal, run_async, working

BODIES_KEPT: Final = timedelta(days=90)
DELIVERIES_KEPT: Final = timedelta(days=90)
"""After they were finished."""
EVENT_IDS_KEPT: Final = timedelta(days=400)
"""So long a repeated event is recognised."""
JOB_RUNS_KEPT: Final = timedelta(days=400)
PAGES_KEPT: Final = timedelta(days=400)
"""After they were resolved and the pager was told."""

CHUNK: Final = 2_000
ROWS_MAX: Final = 5_000_000
"""Rows of one table that one run looks at."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a run dropped, or would drop. ``weeks_needed``: weeks of bodies that are old enough, and hold what somebody
    may still work on. ``complete`` False: a table had more than one run looks at; run it again."""

    dry_run: bool
    deliveries: int
    event_ids: int
    job_runs: int
    pages: int
    weeks_of_bodies: int
    weeks_needed: int
    complete: bool


def prune(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and delete nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The counts as JSON.")] = False,
) -> None:
    """Drop what was kept long enough; meant for once a day.

    Event bodies after 90 days, by whole weeks; deliveries 90 days after they were finished.
    Event ids, finished runs of jobs and resolved pages after 400 days. Never what is unfinished, and no business row.
    """
    terminal: Terminal = context.obj

    async def work() -> Pruned:
        async with terminal.connected(terminal.load().settings.database_url_as(store.RETENTION_ROLE)) as database:
            return await prune_all(database, actor=terminal.actor, dry_run=dry_run)

    with working("pruning"):
        pruned = run_async(work())
    terminal.show(pruned, as_json=as_json)


async def prune_all(
    database: Database, *, actor: str, dry_run: bool, chunk: int = CHUNK, rows_max: int = ROWS_MAX
) -> Pruned:
    """Everything that is due. Raises Retryable("database_busy") when a week's lock is not granted: run it again."""
    if not dry_run:
        await _record(database, actor, "prune", {})
    deliveries, all_deliveries = await _prune_deliveries(database, dry_run=dry_run, chunk=chunk, rows_max=rows_max)
    event_ids, all_event_ids = await _prune_event_ids(database, dry_run=dry_run, chunk=chunk, rows_max=rows_max)
    job_runs = await _prune_in_chunks(database, store.prune_job_runs, JOB_RUNS_KEPT, dry_run=dry_run, chunk=chunk)
    pages = await _prune_in_chunks(database, store.prune_pages, PAGES_KEPT, dry_run=dry_run, chunk=chunk)
    weeks = await store.list_old_weeks(database, BODIES_KEPT)
    spent = [week for week in weeks if week.needed == 0]
    dropped = len(spent) if dry_run else sum([await store.drop_week(database, week, BODIES_KEPT) for week in spent])
    pruned = Pruned(
        dry_run,
        deliveries,
        event_ids,
        job_runs,
        pages,
        dropped,
        len(weeks) - len(spent),
        all_deliveries and all_event_ids,
    )
    if not dry_run:
        await _record(database, actor, "pruned", asdict(pruned))
    return pruned


async def _record(tx: Tx, actor: str, verb: str, after: dict[str, object]) -> None:
    await record_action(
        tx, actor=actor, verb=verb, target="what was kept long enough", reason="retention", before={}, after=after
    )


async def _prune_deliveries(tx: Tx, *, dry_run: bool, chunk: int, rows_max: int) -> tuple[int, bool]:
    """How many finished deliveries were old enough, and whether all were looked at."""
    pruned = looked_at = 0
    after: tuple[int, str] = (0, "")
    while looked_at < rows_max:
        done = await store.prune_deliveries(tx, after=after, chunk=chunk, kept=DELIVERIES_KEPT, dry_run=dry_run)
        if done is None or done.last_event_id is None or done.last_consumer is None:
            return pruned, True
        pruned, looked_at = pruned + done.pruned, looked_at + done.looked_at
        if done.young:
            return pruned, True
        after = done.last_event_id, done.last_consumer
    return pruned, False


async def _prune_event_ids(tx: Tx, *, dry_run: bool, chunk: int, rows_max: int) -> tuple[int, bool]:
    """How many ids were old enough, and whether all were looked at."""
    pruned = looked_at = 0
    after = store.FIRST
    while looked_at < rows_max:
        done = await store.prune_event_ids(
            tx, after=after, chunk=chunk, kept=EVENT_IDS_KEPT, deliveries_kept=DELIVERIES_KEPT, dry_run=dry_run
        )
        if done is None or done.last_received_at is None or done.last_id is None:
            return pruned, True
        pruned, looked_at = pruned + done.pruned, looked_at + done.looked_at
        after = done.last_received_at, done.last_id
    return pruned, False


class PruneSome(Protocol):
    async def __call__(self, tx: Tx, *, chunk: int, kept: timedelta, dry_run: bool) -> int: ...


async def _prune_in_chunks(tx: Tx, prune_some: PruneSome, kept: timedelta, *, dry_run: bool, chunk: int) -> int:
    pruned = 0
    while True:
        done = await prune_some(tx, chunk=chunk, kept=kept, dry_run=dry_run)
        pruned += done
        if dry_run or done < chunk:
            return pruned
