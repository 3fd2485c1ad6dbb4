"""Sending webhooks: raw bytes to a URL, every attempt written down, retried until it is taken.

Bytes are sent as they were signed. Nothing promises order: each delivery is its own task, as at the vendors.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from typing import Final

import httpx

ANSWER_BOUND_S: Final = 20
RETRY_AFTER_S: Final = (1.0, 3.0, 9.0, 27.0)
"""The vendors retry for days; a developer's afternoon gets the same shape in seconds."""
DELIVERIES_MAX: Final = 100_000


class Sender(StrEnum):
    """Who sends."""

    STRIPE = "stripe"
    CLERK = "clerk"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt. ``status`` None means no answer came, and ``error`` says why."""

    seq: int
    sender: Sender
    endpoint: str
    event_id: str
    event_type: str
    url: str
    attempt: int
    started_at: datetime
    ended_at: datetime
    status: int | None
    answer: str
    """The first 500 characters of the answer's body."""
    error: str | None

    @property
    def taken(self) -> bool:
        """Whether the receiver said 2xx, the only answer that counts."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Parcel:
    """What to send. Headers are made per attempt, because a signature carries its attempt's instant."""

    sender: Sender
    endpoint: str
    event_id: str
    event_type: str
    url: str
    body: bytes
    headers: Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class Outbox:
    """Posts parcels and remembers how it went."""

    retry_after_s: tuple[float, ...] = RETRY_AFTER_S
    deliveries: list[Delivery] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _client: httpx.AsyncClient | None = None
    _seq: count[int] = field(default_factory=lambda: count(1))

    def post(self, parcel: Parcel, taken: Callable[[], None] = lambda: None) -> None:
        """Send in the background and again until it is taken or the schedule ends; ``taken`` is called once when it is."""
        task = asyncio.get_running_loop().create_task(self._until_taken(parcel, taken))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, parcel: Parcel, attempt: int = 1) -> Delivery:
        """Send once, now."""
        started_at = datetime.now(UTC)
        status, answer, error = None, "", None
        try:
            response = await self._http().post(parcel.url, content=parcel.body, headers=dict(parcel.headers()))
            status, answer = response.status_code, response.text[:500]
        except httpx.HTTPError as failure:
            error = f"{type(failure).__name__}: {failure}"
        delivery = Delivery(
            seq=next(self._seq),
            sender=parcel.sender,
            endpoint=parcel.endpoint,
            event_id=parcel.event_id,
            event_type=parcel.event_type,
            url=parcel.url,
            attempt=attempt,
            started_at=started_at,
            ended_at=datetime.now(UTC),
            status=status,
            answer=answer,
            error=error,
        )
        self.deliveries.append(delivery)
        del self.deliveries[:-DELIVERIES_MAX]
        return delivery

    async def idle(self) -> None:
        """Wait until nothing is being sent or waits for its retry."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Stop sending; what waits for a retry is forgotten."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _until_taken(self, parcel: Parcel, taken: Callable[[], None]) -> None:
        for attempt, wait_s in enumerate((*self.retry_after_s, None), start=1):
            if (await self.send(parcel, attempt)).taken:
                taken()
                return
            if wait_s is not None:
                await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=ANSWER_BOUND_S,
                limits=httpx.Limits(max_connections=200, max_keepalive_connections=20),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client
