"""Webhooks a second: ``rowclaim serve``, as an operator starts it, beside the textbook's endpoint.

Ours does the whole of its work: verify, store the event, its body and a delivery for its consumer, commit, ring.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import asyncpg

from bench.load import SECRET, Answered, Order
from bench.measure import Comparison, Slice, cpu_seconds, pairs
from services.kernel import inbox
from services.kernel.db import Database
from services.sandbox.embedded.process import free_ports
from services.sandbox.embedded.stack import DATABASE, Stack

CONNECTIONS: Final = 64
LISTENS_WITHIN_S: Final = 20.0
ROOT: Final = Path(__file__).resolve().parents[1]


async def compare(stack: Stack, *, until: float, slice_s: float) -> Comparison:
    """Slices of each side in turns. Asserts that both stored what they acknowledged."""
    ours_port, base_port = free_ports(2)
    settings = stack.settings() | {
        "ROWCLAIM_HTTP_PORT": str(ours_port),
        "ROWCLAIM_INGRESS_STRIPE_SECRETS": SECRET,
        "ROWCLAIM_LOG_LEVEL": "warning",
    }
    url = stack.postgres.url(DATABASE)
    db = await Database.connect(url)
    await inbox.subscribe(db, "fulfillment", [inbox.Subscription("stripe", "checkout.session.completed")])
    ours: list[Slice] = []
    base: list[Slice] = []
    owner = await asyncpg.connect(url)
    try:
        async with (
            child("services", "serve", "--slice", "ingress", settings=settings) as our_server,
            child("bench.textbook", url, str(base_port)) as base_server,
            child("bench.load", piped=True) as load,
        ):
            await asyncio.gather(listening(ours_port), listening(base_port))
            for port, server in ((ours_port, our_server), (base_port, base_server)):  # caches and plans, uncounted
                await one_slice(stack, load, server, Order(port, 0.5, CONNECTIONS))
            for _ in pairs(until):
                ours.append(await one_slice(stack, load, our_server, Order(ours_port, slice_s, CONNECTIONS)))
                base.append(await one_slice(stack, load, base_server, Order(base_port, slice_s, CONNECTIONS)))
        await assert_stored(owner, "event_ids", ours)
        await assert_stored(owner, "webhook_deliveries", ours)
        await assert_stored(owner, "textbook_events", base)
    finally:
        await owner.close()
        await db.close()
    return Comparison("webhooks", "FastAPI, construct_event, one insert each", "requests", tuple(ours), tuple(base))


async def one_slice(
    stack: Stack, load: asyncio.subprocess.Process, server: asyncio.subprocess.Process, order: Order
) -> Slice:
    assert load.stdin is not None
    assert load.stdout is not None
    postgres = stack.postgres.process.pid
    client_s, server_s = cpu_seconds(server.pid), cpu_seconds(postgres)
    load.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
    async with asyncio.timeout(order.seconds + 60):
        line = await load.stdout.readline()
    done = Answered(**json.loads(line))
    assert done.refused == 0, f"{done.refused} requests were refused"
    assert done.requests > 0
    return Slice(
        done.requests,
        done.seconds,
        done.p50_ms,
        done.p99_ms,
        client_cpu_us=(cpu_seconds(server.pid) - client_s) / done.requests * 1e6,
        server_cpu_us=(cpu_seconds(postgres) - server_s) / done.requests * 1e6,
    )


async def assert_stored(owner: "asyncpg.Connection[asyncpg.Record]", table: str, slices: list[Slice]) -> None:
    """Every request that was acknowledged is a row; the last ones of a slice may be rows without having counted."""
    stored = await owner.fetchval(f"select count(*) from {table}")  # noqa: S608 - one of three names above
    assert stored >= sum(one.operations for one in slices), f"{table} holds {stored}"


@asynccontextmanager
async def child(
    module: str, *arguments: str, settings: Mapping[str, str] | None = None, piped: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """``python -m module arguments`` until the block ends."""
    pipe = asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=ROOT,
        env={**os.environ, **(settings or {})},
        stdin=pipe,
        stdout=pipe,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        try:
            async with asyncio.timeout(10):
                await started.wait()
        except TimeoutError:
            started.kill()
            await started.wait()


async def listening(port: int) -> None:
    async with asyncio.timeout(LISTENS_WITHIN_S):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return
