"""The periods of jobs (``job_runs``), in the order in which the loop of a job meets them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

from services.kernel.claim import WORKER
from services.kernel.db import Tx
from services.kernel.jobs import Job


@dataclass(frozen=True, slots=True)
class ClaimedPeriod:
    """A period as its claim returned it."""

    period: str
    claim_token: int
    attempt: int


# Reckoned without a zone: days are added by the session's zone otherwise, where one in spring has 23 hours.
PLAN: Final[LiteralString] = """
with latest as (
  select date_bin($2::interval, rowclaim_now() at time zone 'UTC', timestamp '2001-01-01' + $3::interval) as due),
periods as (
  select l.due - nth * $2::interval as due from latest l cross join generate_series(0, $4::integer - 1) as nth),
known as (
  select coalesce(max(r.period), to_char((select due - $2::interval from latest), 'YYYY-MM-DD')) as last
  from job_runs r where r.job = $1)
insert into job_runs (job, period, state, edge, next_attempt_at)
select $1, to_char(p.due, 'YYYY-MM-DD'), 'due', 'plan', p.due at time zone 'UTC'
from periods p cross join known k where to_char(p.due, 'YYYY-MM-DD') > k.last
on conflict (job, period) do nothing"""

REAP: Final[LiteralString] = """
with dead as materialized (
  select job, period, claim_token from job_runs
  where state = 'running' and job = $1 and lease_until <= rowclaim_now() for no key update skip locked)
update job_runs r set state = 'due', edge = 'reap', claim_token = r.claim_token + 1, outcome_token = null,
  next_attempt_at = rowclaim_clock(), lease_until = null
from dead where r.job = dead.job and r.period = dead.period and r.claim_token = dead.claim_token"""

CLAIM: Final[LiteralString] = """
with next as materialized (
  select job, period, claim_token from job_runs
  where state = 'due' and job = $1 and next_attempt_at <= rowclaim_now()
  order by next_attempt_at limit 1 for no key update skip locked)
update job_runs r set state = 'running', edge = 'claim', claim_token = r.claim_token + 1, outcome_token = null,
  attempt = r.attempt + 1, claimed_by = $2, claimed_at = rowclaim_now(), lease_until = rowclaim_now() + $3::interval
from next where r.job = next.job and r.period = next.period and r.claim_token = next.claim_token
returning r.period, r.claim_token, r.attempt"""

RENEW: Final[LiteralString] = """
update job_runs set lease_until = rowclaim_now() + $4::interval
where job = $1 and period = $2 and state = 'running' and claim_token = $3"""

FINISH: Final[LiteralString] = """
update job_runs set state = 'done', edge = 'finish', outcome_token = $3, lease_until = null,
  finished_at = rowclaim_clock(), report = $4::jsonb
where job = $1 and period = $2 and state = 'running' and claim_token = $3"""

PUT_BACK: Final[LiteralString] = """
update job_runs set state = 'due', edge = 'put_back', outcome_token = $3, lease_until = null,
  next_attempt_at = rowclaim_clock() + $4::interval
where job = $1 and period = $2 and state = 'running' and claim_token = $3"""


async def plan(tx: Tx, job: Job) -> int:
    """Insert the periods that are due by now and not known; how many."""
    return await tx.execute(PLAN, job.name, job.schedule.every, job.schedule.at, job.back_fill)


async def reap(tx: Tx, job: Job) -> int:
    """Free the periods whose holder let the lease run out; how many."""
    return await tx.execute(REAP, job.name)


async def claim_period(tx: Tx, job: Job) -> ClaimedPeriod | None:
    """Take the oldest due period of the job."""
    return await tx.row(ClaimedPeriod, CLAIM, job.name, WORKER, job.lease)


async def renew(tx: Tx, job: Job, claimed: ClaimedPeriod) -> bool:
    """Hold a period for another lease; False: it is somebody else's."""
    return await tx.execute(RENEW, job.name, claimed.period, claimed.claim_token, job.lease) == 1


async def finish(tx: Tx, job: Job, claimed: ClaimedPeriod, report: Mapping[str, object]) -> bool:
    """Close a period with its report; False: it is somebody else's."""
    return await tx.execute(FINISH, job.name, claimed.period, claimed.claim_token, json.dumps(report)) == 1


async def put_back(tx: Tx, job: Job, claimed: ClaimedPeriod, after: timedelta) -> bool:
    """Give a period back, claimable ``after`` from now; False: it is somebody else's."""
    return await tx.execute(PUT_BACK, job.name, claimed.period, claimed.claim_token, after) == 1
