"""Timer-free micro-batches: whatever queued while the last commit ran goes into the next one.

Nobody waits for a batch to fill. The first item of a quiet spell is written at once; under load the commit before is
the timer, so batches grow with the arrival rate and one commit is shared by all who would have waited for it anyway.

The batch is the fast path and owes nobody anything: it is sorted, so that two batches over the same keys lock them in
one order, and its ``write`` gives up soon where somebody else holds a lock. Whatever goes wrong with it (one item the
database refuses, a deadlock, a lock not granted, a COMMIT whose answer was lost) sends each item down the single path,
on its own. ``write_alone`` therefore begins by looking whether its item was written already: it may have been.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import Counter, Histogram

from services.kernel.errors import Retryable

log = structlog.get_logger()

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

SIZES = Histogram(
    "rowclaim_batch_items", "Items that shared one commit.", ["worker"], buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
ALONE = Counter("rowclaim_batch_alone", "Items written alone because their batch failed.", ["worker"])


@dataclass(slots=True, eq=False)
class _Waiter(Generic[ItemT, AnswerT]):
    item: ItemT
    answer: "asyncio.Future[AnswerT]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher(Generic[ItemT, AnswerT]):
    """Answers every submitted item exactly once, with its own answer or its own error.

    ``write``: the items (sorted by ``order``) in one commit; one answer an item, in their order. It returns after the
    commit or raises. ``write_alone``: one item; begins with the replay read. ``overflow``: the code of the Retryable
    that an item gets while ``waiting_max`` others are unanswered.
    """

    def __init__(
        self,
        name: str,
        *,
        write: Callable[[Sequence[ItemT]], Awaitable[Sequence[AnswerT]]],
        write_alone: Callable[[ItemT], Awaitable[AnswerT]],
        order: Callable[[ItemT], Any],
        overflow: str,
        batch_max: int = 256,
        waiting_max: int = 4096,
    ) -> None:
        if not 0 < batch_max <= waiting_max:
            raise ValueError(f"a batch of {batch_max} out of {waiting_max} waiting")
        self._name = name
        self._write = write
        self._write_alone = write_alone
        self._order = order
        self._overflow = overflow
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._queue: deque[_Waiter[ItemT, AnswerT]] = deque()
        self._flight: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()
        self._sizes = SIZES.labels(name)
        self._parted = ALONE.labels(name)

    async def submit(self, item: ItemT) -> AnswerT:
        """The answer, after the commit that holds it. Cancelling a submit hurts no other; the item may be written."""
        if len(self._queue) + len(self._alone) >= self._waiting_max:
            raise Retryable(self._overflow)
        waiter: _Waiter[ItemT, AnswerT] = _Waiter(item)
        self._queue.append(waiter)
        if self._flight is None:
            # A context of its own: the batch belongs to no caller, and must not carry one's transaction or log fields.
            loop = asyncio.get_running_loop()
            self._flight = loop.create_task(self._fly(), name=f"batch:{self._name}", context=Context())
        return await waiter.answer

    async def close(self) -> None:
        """Return when everything submitted so far is answered."""
        while self._flight is not None or self._alone:
            await asyncio.wait({*self._alone, *([self._flight] if self._flight is not None else [])})

    async def _fly(self) -> None:
        """Commit after commit until the queue is empty."""
        batch: list[_Waiter[ItemT, AnswerT]] = []
        try:
            while batch := self._board():
                await self._write_together(batch)
        except BaseException:
            # Only the end of the loop cancels a flight: nobody may be left waiting for an answer that cannot come.
            for waiter in [*batch, *self._queue]:
                waiter.answer.cancel()
            self._queue.clear()
            raise
        finally:
            self._flight = None

    def _board(self) -> list[_Waiter[ItemT, AnswerT]]:
        """Who goes into the next commit: those who stopped waiting before it are left out."""
        batch: list[_Waiter[ItemT, AnswerT]] = []
        while self._queue and len(batch) < self._batch_max:
            waiter = self._queue.popleft()
            if not waiter.answer.done():
                batch.append(waiter)
        return batch

    async def _write_together(self, batch: list[_Waiter[ItemT, AnswerT]]) -> None:
        self._sizes.observe(len(batch))
        try:
            batch.sort(key=lambda waiter: self._order(waiter.item))
            answers = await self._write([waiter.item for waiter in batch])
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it was, each item finds out for itself
            log.warning("batch.failed", batch=self._name, items=len(batch), error=type(error).__name__)
            self._parted.inc(len(batch))
            for waiter in batch:
                # Beside the next batch, not before it: one locked row must not hold up all others.
                task = asyncio.get_running_loop().create_task(self._answer_alone(waiter))
                self._alone.add(task)
                task.add_done_callback(self._alone.discard)
            return
        for waiter, answer in answered:
            if not waiter.answer.done():
                waiter.answer.set_result(answer)

    async def _answer_alone(self, waiter: _Waiter[ItemT, AnswerT]) -> None:
        if waiter.answer.done():
            return
        try:
            answer = await self._write_alone(waiter.item)
        except Exception as error:  # noqa: BLE001 - it is the waiter's own, and is raised there
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
        except BaseException:
            waiter.answer.cancel()
            raise
        else:
            if not waiter.answer.done():
                waiter.answer.set_result(answer)
