"""Micro-batches: one commit for whoever waited, each with an answer of their own, and nobody hurt by a neighbour."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ingress.flow.batch import Batcher
from services.ingress.store import wait_briefly_for_locks
from services.kernel import db as db_module
from services.kernel.db import Database, in_transaction
from services.kernel.errors import Retryable
from tests.fixtures.database import Connect
from tests.waiting import wait_until

Batch = Batcher[int, str]


@dataclass
class Ledger:
    """A store that records what was committed, and can be told to fail."""

    committed: list[int] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)
    poison: frozenset[int] = frozenset()
    lost_commits: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, items: Sequence[int]) -> list[str]:
        self.batches.append(list(items))
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.poison & set(items):
            raise ValueError("poison in the batch")
        self.committed += items
        if self.lost_commits:
            self.lost_commits -= 1
            raise Retryable("database_unavailable", "the COMMIT's answer was lost")
        return [f"answer {item}" for item in items]

    async def write_alone(self, item: int) -> str:
        self.alone.append(item)
        await asyncio.sleep(0)
        if item in self.poison:
            raise ValueError(f"poison {item}")
        if item not in self.committed:
            self.committed.append(item)
        return f"answer {item}"

    def batcher(self, *, batch_max: int = 256, waiting_max: int = 4096) -> Batch:
        return Batcher(
            "tests",
            write=self.write,
            write_alone=self.write_alone,
            order=lambda item: item,
            overflow="ingress_full",
            batch_max=batch_max,
            waiting_max=waiting_max,
        )


def open_ledger(poison: frozenset[int] = frozenset(), lost_commits: int = 0) -> Ledger:
    ledger = Ledger(poison=poison, lost_commits=lost_commits)
    ledger.gate.set()
    return ledger


async def submit_all(batch: Batch, items: Sequence[int]) -> list[str | BaseException]:
    return await asyncio.gather(*(batch.submit(item) for item in items), return_exceptions=True)


async def test_a_first_item_waits_for_nobody_and_the_next_batch_takes_all_who_queued() -> None:
    ledger = Ledger()
    batch = ledger.batcher()
    first = asyncio.ensure_future(batch.submit(9))
    await wait_until(lambda: ledger.batches == [[9]], within_s=5, what="the first item is written at once")
    others = [asyncio.ensure_future(batch.submit(item)) for item in (5, 3, 4)]
    await asyncio.sleep(0)
    assert ledger.batches == [[9]]
    ledger.gate.set()
    assert await asyncio.gather(first, *others) == ["answer 9", "answer 5", "answer 3", "answer 4"]
    assert ledger.batches == [[9], [3, 4, 5]], "sorted, and in one commit"
    assert ledger.alone == []


async def test_a_batch_is_bounded() -> None:
    ledger = open_ledger()
    batch = ledger.batcher(batch_max=4)
    assert await submit_all(batch, range(10)) == [f"answer {item}" for item in range(10)]
    assert [len(items) for items in ledger.batches] == [4, 4, 2]


async def test_a_full_queue_is_told_and_takes_again_afterwards() -> None:
    ledger = Ledger()
    batch = ledger.batcher(batch_max=2, waiting_max=2)
    flying = asyncio.ensure_future(batch.submit(1))
    await wait_until(lambda: ledger.batches, within_s=5, what="the first flies")
    waiting = [asyncio.ensure_future(batch.submit(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(Retryable, match="ingress_full"):
        await batch.submit(4)
    ledger.gate.set()
    await asyncio.gather(flying, *waiting)
    assert await batch.submit(4) == "answer 4"
    assert sorted(ledger.committed) == [1, 2, 3, 4]


async def test_a_poisonous_item_fails_alone() -> None:
    ledger = open_ledger(poison=frozenset({3}))
    answers = await submit_all(ledger.batcher(), [1, 2, 3, 4])
    assert answers[:2] == ["answer 1", "answer 2"]
    assert isinstance(answers[2], ValueError)
    assert str(answers[2]) == "poison 3"
    assert answers[3] == "answer 4"
    assert sorted(ledger.committed) == [1, 2, 4]


async def test_a_lost_commit_is_found_again_and_written_once() -> None:
    ledger = open_ledger(lost_commits=1)
    assert await submit_all(ledger.batcher(), [1, 2]) == ["answer 1", "answer 2"]
    assert ledger.committed == [1, 2]
    assert sorted(ledger.alone) == [1, 2]


async def test_an_answer_too_few_is_an_error_of_the_batch() -> None:
    ledger = open_ledger()

    async def forgetful(items: Sequence[int]) -> list[str]:
        return ["answer 1"]

    batch: Batch = Batcher(
        "tests", write=forgetful, write_alone=ledger.write_alone, order=lambda item: item, overflow="ingress_full"
    )
    assert await submit_all(batch, [1, 2]) == ["answer 1", "answer 2"]
    assert ledger.alone == [1, 2]


async def test_cancelling_one_waiter_hurts_no_other() -> None:
    ledger = Ledger()
    batch = ledger.batcher()
    flying = [asyncio.ensure_future(batch.submit(item)) for item in (1, 2)]
    await wait_until(lambda: ledger.batches, within_s=5, what="both fly")
    queued = [asyncio.ensure_future(batch.submit(item)) for item in (3, 4)]
    await asyncio.sleep(0)
    flying[0].cancel()
    queued[0].cancel()
    await asyncio.sleep(0)
    ledger.gate.set()
    assert await flying[1] == "answer 2"
    assert await queued[1] == "answer 4"
    assert flying[0].cancelled()
    assert queued[0].cancelled()
    assert ledger.batches == [[1, 2], [4]], "who left before the commit is not written, who left during it is"


async def test_a_waiter_cancelled_while_its_item_is_written_alone_hurts_no_other() -> None:
    ledger = open_ledger(poison=frozenset({2}))
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(item: int) -> str:
        started.set()
        await go_on.wait()
        return await ledger.write_alone(item)

    batch: Batch = Batcher(
        "tests", write=ledger.write, write_alone=slowly, order=lambda item: item, overflow="ingress_full"
    )
    leaving, poisoned, staying = (asyncio.ensure_future(batch.submit(item)) for item in (1, 2, 3))
    await started.wait()
    leaving.cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert await staying == "answer 3"
    with pytest.raises(ValueError, match="poison 2"):
        await poisoned
    await batch.close()
    assert sorted(ledger.committed) == [1, 3]


async def test_items_that_are_written_alone_hold_up_no_later_batch() -> None:
    ledger = open_ledger(poison=frozenset({1}))
    stuck = asyncio.Event()

    async def wait_for_a_lock(item: int) -> str:
        await stuck.wait()
        return await ledger.write_alone(item)

    batch: Batch = Batcher(
        "tests", write=ledger.write, write_alone=wait_for_a_lock, order=lambda item: item, overflow="ingress_full"
    )
    locked = asyncio.ensure_future(batch.submit(1))
    await wait_until(lambda: ledger.batches == [[1]], within_s=5, what="the first batch failed")
    assert await batch.submit(2) == "answer 2"
    assert not locked.done()
    stuck.set()
    with pytest.raises(ValueError, match="poison 1"):
        await locked


async def test_close_returns_when_everybody_is_answered() -> None:
    ledger = open_ledger(poison=frozenset({2}))
    batch = ledger.batcher(batch_max=2)
    waiting = [asyncio.ensure_future(batch.submit(item)) for item in range(5)]
    await asyncio.sleep(0)
    await batch.close()
    assert all(waiter.done() for waiter in waiting)
    assert [waiter.exception() for waiter in waiting if waiter.exception()] == [waiting[2].exception()]


async def test_nobody_is_left_waiting_when_the_flight_is_cancelled() -> None:
    ledger = Ledger()
    batch = ledger.batcher(batch_max=1)
    waiting = [asyncio.ensure_future(batch.submit(item)) for item in (1, 2)]
    await wait_until(lambda: ledger.batches, within_s=5, what="the first flies")
    (flight,) = (task for task in asyncio.all_tasks() if task.get_name() == "batch:tests")
    flight.cancel()
    await asyncio.wait(waiting, timeout=5)
    assert [waiter.cancelled() for waiter in waiting] == [True, True]


async def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 0"):
        open_ledger().batcher(batch_max=0)


async def test_a_batch_does_not_inherit_its_first_callers_transaction(connect: Connect) -> None:
    db = await connect()
    inside: list[bool] = []

    async def write(items: Sequence[int]) -> list[str]:
        inside.append(in_transaction())
        return ["" for _ in items]

    batch: Batch = Batcher(
        "tests", write=write, write_alone=open_ledger().write_alone, order=lambda item: item, overflow="ingress_full"
    )
    async with db.transaction():
        assert in_transaction()
        await batch.submit(1)
    assert inside == [False]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    items=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    poison=st.frozensets(st.integers(0, 50), max_size=4),
    lost_commits=st.integers(0, 3),
    batch_max=st.integers(1, 9),
    pauses=st.randoms(use_true_random=False),
)
def test_every_item_gets_exactly_its_own_answer(
    items: list[int], poison: frozenset[int], lost_commits: int, batch_max: int, pauses: random.Random
) -> None:
    async def scenario() -> None:
        ledger = open_ledger(poison, lost_commits)
        batch = ledger.batcher(batch_max=batch_max)

        async def one(item: int) -> str:
            for _ in range(pauses.randrange(6)):
                await asyncio.sleep(0)
            return await batch.submit(item)

        answers = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
        for item, answer in zip(items, answers, strict=True):
            if item in poison:
                assert isinstance(answer, ValueError), (item, answer)
                assert str(answer) == f"poison {item}"
            else:
                assert answer == f"answer {item}"
        assert set(ledger.committed) == set(items) - poison
        assert all(written == sorted(written) and len(written) <= batch_max for written in ledger.batches)
        await batch.close()

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------ over real connections


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty items alone on 24 connections: on a loaded machine the last waits longer than production would."""
    monkeypatch.setattr(db_module, "ACQUIRE_S", 60.0)


async def two_batchers(
    connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]", order: Callable[[int], int]
) -> tuple[list[Batch], list[str]]:
    """Two processes' batchers over one table; ``order`` is asked for each, and errors of batches are collected."""
    await owner.execute("create table tally (key integer primary key, times integer not null)")
    await owner.execute("insert into tally select n, 0 from generate_series(1, 60) n; grant all on tally to public")
    failed: list[str] = []

    def batcher(db: Database, sign: int) -> Batch:
        async def write(items: Sequence[int]) -> list[str]:
            try:
                async with db.transaction() as tx:
                    await tx.execute("set local deadlock_timeout = '10ms'")
                    for item in items:
                        await tx.execute("update tally set times = times + 1 where key = $1", item)
            except Retryable as error:
                failed.append(error.detail)
                raise
            return [f"answer {item}" for item in items]

        async def write_alone(item: int) -> str:
            await db.execute("update tally set times = times + 1 where key = $1", item)
            return f"answer {item}"

        return Batcher(
            "tests", write=write, write_alone=write_alone, order=lambda key: order(key * sign), overflow="ingress_full"
        )

    return [batcher(await connect(size_max=24), sign) for sign in (1, -1)], failed


async def run_both(batchers: Sequence[Batch], rounds: int) -> None:
    keys = list(range(1, 61))
    answers = await asyncio.gather(
        *(batcher.submit(key) for _ in range(rounds) for batcher in batchers for key in keys), return_exceptions=False
    )
    assert sorted(answers) == sorted(f"answer {key}" for key in keys * rounds * len(batchers))


@pytest.mark.usefixtures("patient")
async def test_two_batchers_over_the_same_keys_never_deadlock(
    connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    batchers, failed = await two_batchers(connect, owner, order=abs)
    await run_both(batchers, rounds=10)
    assert failed == []
    assert await owner.fetchval("select array_agg(distinct times) from tally") == [20]


@pytest.mark.usefixtures("patient")
async def test_in_opposite_order_they_do_and_the_single_path_repairs_it(
    connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    batchers, failed = await two_batchers(connect, owner, order=lambda key: key)
    await run_both(batchers, rounds=10)
    assert "DeadlockDetectedError" in failed, "the stress did not press"
    assert await owner.fetchval("select array_agg(distinct times) from tally") == [20]


async def test_a_batch_gives_a_lock_up_soon_and_its_items_wait_alone(
    connect: Connect, owner: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    db = await connect("rowclaim_ingress")
    await owner.execute("create table locked (key integer primary key); insert into locked values (1), (2)")
    await owner.execute("grant all on locked to public")
    refused: list[str] = []

    async def write(items: Sequence[int]) -> list[str]:
        try:
            async with db.transaction() as tx:
                await wait_briefly_for_locks(tx)
                assert await tx.value("show lock_timeout") == "50ms"
                await tx.execute("update locked set key = key where key = any($1::integer[])", list(items))
        except Retryable as error:
            refused.append(f"{error.code.name} {error.detail}")
            raise
        return [f"answer {item}" for item in items]

    async def write_alone(item: int) -> str:
        await db.execute("update locked set key = key where key = $1", item)
        return f"answer {item}"

    batch: Batch = Batcher("tests", write=write, write_alone=write_alone, order=lambda k: k, overflow="ingress_full")
    lock = owner.transaction()
    await lock.start()
    await owner.execute("select from locked where key = 1 for update")
    held, free = (asyncio.ensure_future(batch.submit(item)) for item in (1, 2))
    assert await free == "answer 2", "it was in the batch with the locked one, and did not wait for the lock's end"
    assert refused == ["database_busy LockNotAvailableError"]
    assert not held.done()
    await lock.rollback()
    assert await held == "answer 1"
    assert await db.value("show lock_timeout") == "2s", "the patience of the role is back"
