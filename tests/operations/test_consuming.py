"""What a consuming process runs: subscriptions, sweeps over deliveries, jobs, rings, and its own health."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from schemas.triggers import EventsTrigger
from services.ingress.store import Arrival, arrive
from services.kernel.db import Database
from services.kernel.deliveries import claim_deliveries
from services.kernel.inbox import Subscription
from services.kernel.jobs import Job, daily
from services.kernel.pager import Severity
from services.kernel.service import Consumption, Runtime, Service
from services.kernel.sweep import Sweep
from services.kernel.triggers import Publisher
from services.kernel.worker import Worker
from services.operations import consuming as consuming_module
from services.operations.consuming import Consuming, begin, health, job_tasks, subscribed, sweeps_of
from services.operations.process import Process, run_tasks
from services.operations.subscribers import run_subscribers
from services.sandbox.embedded.process import free_port
from tests.fixtures.brokers import BrokerServer, settings_of
from tests.fixtures.database import Clock, Connect
from tests.fixtures.servers import create_topics
from tests.operations.conftest import OTHER, TOY, MakeTerminal, RunCommand, log_sender
from tests.waiting import wait_until

KIND = "checkout.session.completed"


class Rung(Worker):
    """A worker that only counts its rings."""

    def __init__(self, name: str = "toy") -> None:
        super().__init__(name, self._nothing)
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    async def _nothing(self) -> int:
        return 0


def card(worker: Worker, service: Service = TOY, **changes: Any) -> Service:
    async def consume(_: Runtime) -> Consumption:
        return Consumption(workers=[worker])

    given = {"consume": consume, "subscriptions": (Subscription("stripe", KIND),)} | changes
    return replace(service, **given)


@pytest.fixture
def worker() -> Rung:
    return Rung()


@pytest.fixture
async def process(make_terminal: MakeTerminal, broker_server: BrokerServer) -> AsyncIterator[Process]:
    kafka = {name.removeprefix("ROWCLAIM_"): value for name, value in settings_of(broker_server).items()}
    line = make_terminal(TOY, OTHER, INGRESS_NEEDED="set", **kafka)
    async with Process.open("toy", (TOY, OTHER), line.load((TOY, OTHER)), log_sender) as opened:
        yield opened


@pytest.fixture
async def database(connect: Connect) -> Database:
    return await connect("rowclaim_ingress")


async def store(database: Database, external_id: str = "evt_1") -> int:
    event = (await arrive(database, [Arrival("stripe", external_id, KIND, b"{}")]))[("stripe", external_id)]
    assert event.event_id is not None
    return event.event_id


async def swept(process: Process, consuming: list[Consuming], name: str) -> Mapping[str, int]:
    (sweep,) = [sweep for sweep in await sweeps_of(process, consuming) if sweep.name == name]
    return await sweep.run_once()


async def test_a_slice_is_subscribed_before_it_runs(process: Process, worker: Rung, owner: Any) -> None:
    for row in await owner.fetch(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'event_bodies'::regclass"
    ):
        await owner.execute(f"drop table {row[0]}")
    (consuming,) = await begin(process, [card(worker), OTHER])
    assert list(consuming.consumption.workers) == [worker]
    subscriptions = await owner.fetch("select source, kind, consumer from webhook_subscriptions")
    assert [tuple(row) for row in subscriptions] == [("stripe", KIND, "fulfillment")]
    assert await owner.fetchval("select event_weeks_ahead()") == 8
    await begin(process, [card(worker)])
    assert await owner.fetchval("select count(*) from webhook_subscriptions") == 1


async def test_a_missing_delivery_is_made_and_its_consumer_woken(
    process: Process, worker: Rung, database: Database, owner: Any, clock: Clock
) -> None:
    other = Rung("other")
    consuming = await begin(process, [card(worker), card(other, OTHER, subscriptions=())])
    await store(database)
    await owner.execute("delete from webhook_deliveries")
    assert await swept(process, consuming, "deliveries.recent") == {"owed": 0}  # it may still be on its way
    await clock.shift(timedelta(seconds=10))
    assert await swept(process, consuming, "deliveries.recent") == {"owed": 1}
    assert await swept(process, consuming, "deliveries.recent") == {"owed": 0}
    assert (worker.rings, other.rings) == (1, 0)


async def test_what_the_short_window_missed_the_long_one_finds(
    process: Process, worker: Rung, database: Database, owner: Any, clock: Clock
) -> None:
    consuming = await begin(process, [card(worker)])
    await store(database)
    await owner.execute("delete from webhook_deliveries")
    await clock.shift(timedelta(minutes=30))
    assert await swept(process, consuming, "deliveries.recent") == {"owed": 0}
    assert await swept(process, consuming, "deliveries.last_hour") == {"owed": 1}
    assert worker.rings == 1


async def test_a_new_subscription_is_caught_up_once(
    process: Process, worker: Rung, database: Database, owner: Any, clock: Clock
) -> None:
    consuming = await begin(process, [card(worker)])
    await store(database)
    await owner.execute("delete from webhook_deliveries")
    await clock.shift(timedelta(days=2))
    assert await swept(process, consuming, "deliveries.new_subscriptions") == {"owed": 1}
    assert worker.rings == 1
    await owner.execute("delete from webhook_deliveries")
    assert await swept(process, consuming, "deliveries.new_subscriptions") == {"owed": 0}
    assert worker.rings == 1


async def test_a_delivery_whose_holder_died_is_freed_and_its_consumer_woken(
    process: Process, worker: Rung, database: Database, owner: Any, clock: Clock
) -> None:
    consuming = await begin(process, [card(worker)])
    await store(database)
    lease = timedelta(seconds=30)
    toy = await process.database(TOY.role)
    assert len(await claim_deliveries(toy, "fulfillment", limit=1, lease=lease, floor=None)) == 1
    assert await swept(process, consuming, "deliveries.reaper") == {"reaped": 0}
    await clock.shift(timedelta(seconds=31))
    assert await swept(process, consuming, "deliveries.reaper") == {"reaped": 1}
    assert await owner.fetchval("select state from webhook_deliveries") == "pending"
    assert worker.rings == 1


async def test_pages_are_sent_and_a_slices_own_sweeps_run(process: Process, worker: Rung) -> None:
    async def own() -> Mapping[str, int]:
        return {"flushed": 3}

    async def consume(_: Runtime) -> Consumption:
        return Consumption(sweeps=[Sweep("toy.flush", 60.0, own)])

    consuming = await begin(process, [card(worker, consume=consume)])
    await process.pager.page("k", Severity.ERROR, "s")
    assert await swept(process, consuming, "pages") == {"sent": 1, "failed": 0}
    assert await swept(process, consuming, "toy.flush") == {"flushed": 3}


async def test_sweep_once_tells_counts(make_terminal: MakeTerminal, run_command: RunCommand, worker: Rung) -> None:
    ended = await run_command(make_terminal(card(worker)), "sweep", "--once", "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == {
        "deliveries.recent": {"owed": 0},
        "deliveries.last_hour": {"owed": 0},
        "deliveries.new_subscriptions": {"owed": 0},
        "deliveries.reaper": {"reaped": 0},
        "pages": {"sent": 0, "failed": 0},
    }
    assert (await run_command(make_terminal(TOY), "sweep", "--once")).code == 64


async def test_a_job_runs_under_its_slices_role(process: Process, worker: Rung, owner: Any) -> None:
    async def run(period: str) -> Mapping[str, object]:
        return {"period": period, "role": (await process.database(OTHER.role)).role}

    async def consume(_: Runtime) -> Consumption:
        return Consumption(jobs=[Job(name="toy_job", schedule=daily(hour=0), run=run)])

    tasks = await job_tasks(process, await begin(process, [card(worker), card(worker, OTHER, consume=consume)]))
    assert list(tasks) == ["job:toy_job"]
    running = asyncio.ensure_future(run_tasks(process, tasks))

    async def done() -> str | None:
        report: str | None = await owner.fetchval("select report::text from job_runs where state = 'done'")
        return report

    assert "rowclaim_ingress" in (await wait_until(done, within_s=10, what="the job is done") or "")
    process.stopping.set()
    await running


Topic = Callable[[str], str]


@asynccontextmanager
async def serving(process: Process, consuming: list[Consuming]) -> AsyncIterator[str]:
    """The subscribers and the health port of a consuming process, until the end of the block."""
    port = free_port()
    process.settings = process.settings.model_copy(update={"health_port": port})
    broker = subscribed(process, consuming)
    tasks = {"health": await health(process, [one.service for one in consuming], broker)}
    if broker.subscribers:
        tasks["subscribers"] = lambda stopping: run_subscribers(broker, stopping)
    running = asyncio.ensure_future(run_tasks(process, tasks))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stopping.set()
        await running


async def test_a_ring_wakes_all_workers_of_the_slice_and_of_no_other(
    process: Process, broker_server: BrokerServer, unique_topic: Topic
) -> None:
    topic, elsewhere = unique_topic("stripe.events.v1"), unique_topic("clerk.events.v1")
    await create_topics(broker_server.bootstrap, {topic: 1, elsewhere: 1})
    first, second, other = Rung("first"), Rung("second"), Rung("other")

    async def both(_: Runtime) -> Consumption:
        return Consumption(workers=[first, second])

    toy = card(first, consume=both, topics=(topic,))
    consuming = await begin(process, [toy, card(other, OTHER, subscriptions=(), topics=(elsewhere,))])
    async with serving(process, consuming) as url, httpx.AsyncClient(trust_env=False) as http:

        async def ready() -> bool:
            try:
                return (await http.get(f"{url}/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(ready, within_s=30, what="all groups are joined")
        publisher = Publisher(process.kafka)
        await publisher.publish(topic, EventsTrigger(ids=(1,)).model_dump_json().encode())
        await publisher.close()
        await wait_until(lambda: first.rings and second.rings, within_s=10, what="the workers are rung")
        assert other.rings == 0


async def test_a_process_that_has_not_joined_is_alive_and_not_ready(
    process: Process, worker: Rung, unique_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_broker: Any, stopping: asyncio.Event) -> None:
        await stopping.wait()

    async def dead(_: Any) -> bool:
        return False

    monkeypatch.setitem(globals(), "run_subscribers", never)
    consuming = await begin(process, [card(worker, topics=(unique_topic("stripe.events.v1"),))])
    async with serving(process, consuming) as url, httpx.AsyncClient(trust_env=False) as http:

        async def answer() -> httpx.Response | None:
            try:
                return await http.get(f"{url}/health/ready")
            except httpx.TransportError:
                return None

        ready = await wait_until(answer, within_s=10, what="the health port answers")
        assert ready is not None
        assert (ready.status_code, ready.json()["checks"]["subscribers"]) == (503, "not joined")
        assert (await http.get(f"{url}/health/live")).status_code == 200
        assert (await http.get(f"{url}/metrics")).status_code == 200
    process.stopping.clear()
    monkeypatch.setattr(consuming_module.Liveness, "alive", dead)
    async with serving(process, consuming) as url, httpx.AsyncClient(trust_env=False) as http:

        async def dies() -> bool:
            try:
                return (await http.get(f"{url}/health/live")).status_code == 503
            except httpx.TransportError:
                return False

        await wait_until(dies, within_s=10, what="a consumer that does not consume is told dead")


async def test_a_slice_without_topics_joins_nothing(process: Process, worker: Rung) -> None:
    consuming = await begin(process, [card(worker)])
    async with serving(process, consuming) as url, httpx.AsyncClient(trust_env=False) as http:

        async def ready() -> bool:
            try:
                return (await http.get(f"{url}/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(ready, within_s=10, what="it is ready")
        assert (await http.get(f"{url}/health/live")).json() == {"live": True}
