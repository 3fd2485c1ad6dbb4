"""A process: its settings, its pools, its signals, and how its tasks end it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from services.kernel.effects import uncut
from services.kernel.errors import Invariant, Retryable, Stop
from services.kernel.transition import Edge, Fence, Machine
from services.operations import process as process_module
from services.operations.process import KERNEL_MACHINES, Process, Task, open_database, run_tasks, signals
from tests.fixtures.database import DatabaseUrl
from tests.operations.conftest import TOY, MakeTerminal, ToySettings, log_sender
from tests.waiting import wait_until

Opened = Callable[[], Awaitable[Process]]


@pytest.fixture
async def process(make_terminal: MakeTerminal) -> AsyncIterator[Process]:
    """An open process of the toy slice that gives up after a moment."""
    async with Process.open("toy", (TOY,), make_terminal().load((TOY,)), log_sender) as opened:
        opened.settings = opened.settings.model_copy(update={"graceful_stop_s": 0.2})
        yield opened


async def test_it_lends_its_slices_one_pool_a_role(process: Process) -> None:
    pools = await asyncio.gather(*(process.database("rowclaim_fulfillment") for _ in range(5)))
    assert len({id(pool) for pool in pools}) == 1
    assert pools[0].role == "rowclaim_fulfillment"
    assert (await process.database("rowclaim_ingress")).role == "rowclaim_ingress"
    assert process.slice_settings(ToySettings).colour == "green"


async def test_what_was_opened_is_closed_latest_first_and_the_pools_last(make_terminal: MakeTerminal) -> None:
    closed: list[str] = []
    async with Process.open("toy", (TOY,), make_terminal().load((TOY,)), log_sender) as process:
        database = await process.database(TOY.role)

        def closing(name: str) -> Callable[[], Awaitable[None]]:
            async def close() -> None:
                await database.value("select 1")
                closed.append(name)

            return close

        process.on_close(closing("first"))
        process.on_close(closing("second"))
    assert closed == ["second", "first"]
    with pytest.raises(Retryable, match="database_unavailable"):
        await database.value("select 1")


async def test_a_half_failed_opening_leaves_no_pool(make_terminal: MakeTerminal, owner: Any) -> None:
    async def failing(process: Process) -> Any:
        raise Stop("setting_invalid", "pager")

    with pytest.raises(Stop, match="pager"):
        async with Process.open("halffailed", (TOY,), make_terminal().load((TOY,)), failing):
            pytest.fail("it opened")

    async def gone() -> bool:
        query = "select count(*) = 0 from pg_stat_activity where application_name = 'rowclaim-halffailed'"
        return bool(await owner.fetchval(query))

    await wait_until(gone, within_s=5, what="its connections are closed")


async def test_a_machine_the_database_does_not_know_stops_it(make_terminal: MakeTerminal) -> None:
    known = KERNEL_MACHINES[0]
    states = known.states
    strange = Machine(known.table, states, [*known.edges.values(), Edge("jump", *list(states)[3:1:-1], Fence.PERSON)])
    card = replace(TOY, machines=(strange,))
    with pytest.raises(Stop, match="machine_unknown: webhook_deliveries lacks the edges jump"):
        async with Process.open("toy", (card,), make_terminal(card).load((card,)), log_sender):
            pytest.fail("it opened")


async def test_a_server_that_says_no_is_told_from_one_that_is_not_there(database_url: DatabaseUrl) -> None:
    with pytest.raises(Stop, match=r"database_refused: .*rowclaim_nobody"):
        await open_database(database_url("rowclaim_nobody"), application="toy")
    with pytest.raises(Stop, match=r"database_refused: .*does not exist"):
        await open_database(database_url().replace("/rowclaim_test", "/rowclaim_absent"), application="toy")
    with pytest.raises(Retryable, match="database_unavailable"):
        await open_database("postgres://127.0.0.1:1/x", application="toy")


def until_told(log: list[str], name: str) -> Task:
    async def run(stopping: asyncio.Event) -> None:
        await stopping.wait()
        log.append(name)

    return run


async def test_tasks_finish_what_they_have_in_hand(process: Process) -> None:
    log: list[str] = []
    running = asyncio.ensure_future(run_tasks(process, {"a": until_told(log, "a"), "b": until_told(log, "b")}))
    await asyncio.sleep(0)
    process.stopping.set()
    await running
    assert sorted(log) == ["a", "b"]


async def pages(process: Process) -> list[str]:
    database = await process.database(TOY.role)
    keys: str = await database.value("select coalesce(string_agg(dedup_key, ',' order by id), '') from pages")
    return keys.split(",") if keys else []


async def test_a_crashed_task_ends_all_and_wakes_somebody(process: Process) -> None:
    log: list[str] = []

    async def crashing(_: asyncio.Event) -> None:
        raise ZeroDivisionError("secret detail")

    with pytest.raises(Invariant) as crashed:
        await run_tasks(process, {"worker": crashing, "other": until_told(log, "other")})
    assert (crashed.value.code.name, crashed.value.code.exit) == ("task_crashed", 70)
    assert crashed.value.detail == "worker: ZeroDivisionError"
    assert log == ["other"]
    assert await pages(process) == ["crashed:toy:worker"]


async def test_a_broken_law_is_raised_as_it_is(process: Process) -> None:
    async def breaking(_: asyncio.Event) -> None:
        raise Invariant("fence_refused", "purchases")

    with pytest.raises(Invariant, match="fence_refused"):
        await run_tasks(process, {"worker": breaking})
    assert await pages(process) == ["crashed:toy:worker"]


async def test_a_passing_trouble_wakes_nobody(process: Process) -> None:
    async def troubled(_: asyncio.Event) -> None:
        raise Retryable("broker_unavailable")

    with pytest.raises(Retryable, match="broker_unavailable"):
        await run_tasks(process, {"worker": troubled})
    assert await pages(process) == []


async def test_a_task_that_ends_untold_is_a_crash(process: Process) -> None:
    async def ending(_: asyncio.Event) -> None:
        return

    with pytest.raises(Invariant, match="task_crashed: worker ended without being told to"):
        await run_tasks(process, {"worker": ending, "other": until_told([], "other")})


async def test_a_crash_while_the_database_is_away_is_still_told(process: Process) -> None:
    async def crashing(_: asyncio.Event) -> None:
        await (await process.database(TOY.role)).close()
        raise ZeroDivisionError

    with pytest.raises(Invariant, match="task_crashed"):
        await run_tasks(process, {"worker": crashing})


async def test_what_outlasts_the_graceful_stop_is_cut_off_but_not_an_outcomes_write(process: Process) -> None:
    written: list[str] = []
    release = asyncio.Event()

    async def outcome() -> bool:
        await release.wait()
        written.append("outcome")
        return True

    async def writing(_: asyncio.Event) -> None:
        await uncut(outcome())

    async def hanging(_: asyncio.Event) -> None:
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_tasks(process, {"writing": writing, "hanging": hanging}))
    await asyncio.sleep(0)
    process.stopping.set()
    asyncio.get_running_loop().call_later(0.4, release.set)
    with pytest.raises(Retryable, match="stop_overdue: hanging, writing") as overdue:
        await running
    assert overdue.value.code.exit == 75
    assert written == ["outcome"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_and_the_second_ends(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(process_module.os, "_exit", exits.append)
    stopping = asyncio.Event()
    with signals(stopping):
        os.kill(os.getpid(), number)
        await wait_until(stopping.is_set, within_s=5, what="the process is told to stop")
        assert exits == []
        os.kill(os.getpid(), number)
        await wait_until(lambda: exits, within_s=5, what="the process is ended")
    assert exits == [130]
