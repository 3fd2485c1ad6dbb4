"""Periods of jobs keep the law of claims."""

from collections.abc import Mapping
from datetime import timedelta

from services.kernel import jobs
from services.kernel.claim import WORKER
from services.kernel.db import Tx
from services.kernel.jobs import Job
from services.operations.store import periods as store
from tests.conformance.claims import Claims
from tests.conformance.kind import Held, Kind


async def never_run(period: str) -> Mapping[str, object]:
    raise AssertionError(f"{period} was run")


JOB = Job(name="rollups", schedule=jobs.daily(hour=3), run=never_run)


async def claim(tx: Tx, limit: int) -> list[Held]:
    period = await store.claim_period(tx, JOB)
    return [] if period is None else [Held((JOB.name, period.period), period.claim_token)]


def period_of(held: Held) -> store.ClaimedPeriod:
    _, period = held.key
    return store.ClaimedPeriod(str(period), held.token, 1)


async def finish(tx: Tx, held: Held) -> bool:
    return await store.finish(tx, JOB, period_of(held), {"rows": 7})


async def put_back(tx: Tx, held: Held) -> bool:
    return await store.put_back(tx, JOB, period_of(held), timedelta(0))


async def renew(tx: Tx, held: Held) -> bool:
    return await store.renew(tx, JOB, period_of(held))


async def reap(tx: Tx) -> int:
    return await store.reap(tx, JOB)


JOB_RUNS = Kind(
    machine=jobs.JOB_RUNS,
    role="rowclaim_fulfillment",
    key=("job", "period"),
    seed=f"""
insert into job_runs (job, period, state, edge, next_attempt_at)
select '{JOB.name}', 'day ' || n, 'due', 'plan', rowclaim_now() - interval '1 day' + n * interval '1 s'
from generate_series($1::int, 1, -1) n""",
    ages="next_attempt_at, period",
    claim=claim,
    claim_query=store.CLAIM,
    claim_arguments=(JOB.name, WORKER, JOB.lease),
    claim_index="job_runs_due",
    lease=JOB.lease,
    outcomes={"finish": finish, "put_back": put_back},
    renew=renew,
    reap=reap,
    columns={
        "due": "lease_until = null",
        "running": "lease_until = rowclaim_now() + interval '60 s'",
        "done": "lease_until = null",
    },
    withheld={
        "not due yet": "next_attempt_at = rowclaim_now() + interval '1 minute'",
        "another job's": "job = 'another'",
    },
)


class TestJobRuns(Claims):
    kind = JOB_RUNS
