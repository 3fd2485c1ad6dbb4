"""Claim and finish cycles a second: our delivery worker beside the plain SQL loop that is its floor.

The floor is no product: it has no lease, no token, no guard, no event to read, and loses what it held when it dies.
How far ours stays behind it is what those cost.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, LiteralString

import asyncpg

from bench.measure import Comparison, Slice, cpu_seconds, pairs
from services.kernel.db import Database
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, Verdict
from services.sandbox.embedded.stack import DATABASE, Stack

WORKERS: Final = 16

FLOOR_TABLE: Final[LiteralString] = """
create table if not exists floor_jobs (
  id bigint generated always as identity primary key, payload bytea not null, state text not null default 'pending',
  created_at timestamptz not null default now(), lease_until timestamptz, attempts integer not null default 0,
  finished_at timestamptz);
create index if not exists floor_jobs_pending on floor_jobs (created_at, id) where state = 'pending'"""

FLOOR_FILL: Final[LiteralString] = """
insert into floor_jobs (payload) select 'x' from generate_series(1, $1::integer)"""

FLOOR_CLAIM: Final[LiteralString] = """
update floor_jobs set state = 'running', lease_until = now() + interval '30 seconds', attempts = attempts + 1
where id = any(array(
  select id from floor_jobs where state = 'pending' order by created_at, id limit $1 for update skip locked))
returning id"""

FLOOR_FINISH: Final[LiteralString] = """
update floor_jobs set state = 'done', finished_at = now() where id = any($1::bigint[]) and state = 'running'"""

OURS_FILL: Final[LiteralString] = """
with arrived as (
  insert into event_ids (source, external_id, kind, received_at)
  select 'bench', gen_random_uuid()::text, 'bench.event', rowclaim_now() from generate_series(1, $1::integer)
  returning id, received_at),
bodies as (
  insert into event_bodies (received_at, event_id, body) select received_at, id, 'x' from arrived)
insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at)
select id, 'bench', received_at, 'pending', 'arrive', rowclaim_clock() from arrived"""

OURS_FINISHED: Final[LiteralString] = """
select count(*) from webhook_deliveries where consumer = 'bench' and state = 'done'"""

FLOOR_FINISHED: Final[LiteralString] = """select count(*) from floor_jobs where state = 'done'"""

Drain = Callable[[], Awaitable[None]]


async def compare(stack: Stack, *, until: float, batch: int, rows: int) -> Comparison:
    """Drain ``rows`` rows ``batch`` at a time with 16 workers, each side in turns. Asserts that all were finished."""
    url = stack.postgres.url(DATABASE)
    owner = await asyncpg.connect(url, command_timeout=60)
    db = await Database.connect(stack.postgres.url(DATABASE, user="rowclaim_fulfillment"), size_max=WORKERS)
    pool = await asyncpg.create_pool(url, min_size=WORKERS, max_size=WORKERS)
    await owner.execute(FLOOR_TABLE)
    ours: list[Slice] = []
    base: list[Slice] = []
    try:
        for filled in itertools.chain([rows // 10], (rows for _ in pairs(until))):
            await owner.execute(OURS_FILL, filled)
            await owner.execute("vacuum analyze webhook_deliveries, event_ids")
            mine = await drained(stack, owner, filled, OURS_FINISHED, lambda: drain_ours(db, batch))
            await owner.execute(FLOOR_FILL, filled)
            await owner.execute("vacuum analyze floor_jobs")
            theirs = await drained(stack, owner, filled, FLOOR_FINISHED, lambda: drain_floor(pool, batch))
            ours.append(mine)
            base.append(theirs)
    finally:
        await pool.close()
        await db.close()
        await owner.close()
    name = "deliveries, one by one" if batch == 1 else f"deliveries, {batch} at a time"
    # The first pair warmed caches and plans up.
    return Comparison(name, "plain SQL loop (floor)", "claim + finish", tuple(ours[1:]), tuple(base[1:]))


async def drained(
    stack: Stack,
    owner: "asyncpg.Connection[asyncpg.Record]",
    rows: int,
    finished: LiteralString,
    drain: Drain,
) -> Slice:
    before = await owner.fetchval(finished)
    postgres = stack.postgres.process.pid
    server_s, client_s, began = cpu_seconds(postgres), time.process_time(), time.perf_counter()
    await drain()
    seconds = time.perf_counter() - began
    client_us = (time.process_time() - client_s) / rows * 1e6
    server_us = (cpu_seconds(postgres) - server_s) / rows * 1e6
    assert await owner.fetchval(finished) - before == rows
    return Slice(rows, seconds, None, None, client_us, server_us)


async def drain_ours(db: Database, batch: int) -> None:
    async def handle(deliveries: Sequence[Delivery]) -> dict[int, Verdict]:
        return {delivery.event_id: Done() for delivery in deliveries}

    async def work() -> None:
        worker = DeliveryWorker(db, "bench", handle, lease=timedelta(seconds=30), batch_max=batch)
        while await worker.step():
            pass

    await asyncio.gather(*(work() for _ in range(WORKERS)))


async def drain_floor(pool: "asyncpg.Pool[asyncpg.Record]", batch: int) -> None:
    async def work() -> None:
        async with pool.acquire() as connection:
            while claimed := await connection.fetch(FLOOR_CLAIM, batch):
                await connection.execute(FLOOR_FINISH, [row["id"] for row in claimed])

    await asyncio.gather(*(work() for _ in range(WORKERS)))
