"""Sending webhooks: raw bytes to a URL, every attempt written down, retried until it is taken.

Bytes are sent as they were signed. Nothing promises order: each delivery is its own task, as at the vendors.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import count
from typing import Final

import httpx

ANSWER_BOUND_S: Final = 20
RETRY_AFTER_S: Final = (1.0, 3.0, 9.0, 27.0)
"""The vendors retry for days; a developer's afternoon gets the same shape in seconds."""
DELIVERIES_MAX: Final = 100_000


COPIES_MAX: Final = 100


@cache
def trust() -> ssl.SSLContext:
    """Whom https believes. Read once: every httpx client would read the certificates again, for 20 ms and more."""
    return httpx.create_ssl_context()


class Posting(StrEnum):
    """When an endpoint is told of something new."""

    AUTO = "auto"
    """At once, and again until it answers 2xx."""
    HELD = "held"
    """Only when a plan names the event."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A scripted delivery: these events, in this order, so often, so wrongly. One attempt each, no retries.

    Raises ValueError for a number of copies outside 1..COPIES_MAX.
    """

    events: tuple[str, ...]
    """Event ids in the wanted order; one may stand there twice."""
    endpoints: tuple[str, ...] = ()
    """Endpoint ids; none means every enabled endpoint that wants the event's type."""
    copies: int = 1
    """How often each is sent."""
    simultaneous: bool = False
    """Everything at one instant, instead of each after the answer to the one before."""
    shuffle_seed: int | None = None
    """Shuffle the whole list, copies included."""
    pause_ms: int = 0
    """Waited between one answer and the next sending."""
    signed_ago_s: int = 0
    """The signature's age; negative for the future."""
    secrets: tuple[str, ...] | None = None
    """Instead of the endpoint's: a wrong one, an old one, or several."""
    api_version: str | None = None
    """Stripe: instead of the endpoint's."""

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= COPIES_MAX:
            raise ValueError(f"copies must be 1 to {COPIES_MAX}, got {self.copies}")


class Sender(StrEnum):
    """Who sends."""

    STRIPE = "stripe"
    CLERK = "clerk"


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
    _seq: Iterator[int] = field(default_factory=lambda: count(1))

    def post(self, parcel: Parcel, taken: Callable[[Delivery], None] = lambda _: None) -> None:
        """Send in the background, and again until it is taken (then ``taken`` is called) or the schedule ends."""
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

    async def play(self, parcels: list[Parcel], plan: Plan) -> list[Delivery]:
        """Send what a plan asks for, in its way; the deliveries in the order of sending."""
        if plan.shuffle_seed is not None:
            random.Random(plan.shuffle_seed).shuffle(parcels)  # noqa: S311 (an order, not a secret)
        if plan.simultaneous:
            return list(await asyncio.gather(*(self.send(parcel) for parcel in parcels)))
        deliveries: list[Delivery] = []
        for parcel in parcels:
            if deliveries and plan.pause_ms:
                await asyncio.sleep(plan.pause_ms / 1000)
            deliveries.append(await self.send(parcel))
        return deliveries

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

    async def _until_taken(self, parcel: Parcel, taken: Callable[[Delivery], None]) -> None:
        for attempt, wait_s in enumerate((*self.retry_after_s, None), start=1):
            delivery = await self.send(parcel, attempt)
            if delivery.taken:
                taken(delivery)
                return
            if wait_s is not None:
                await asyncio.sleep(wait_s)

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=ANSWER_BOUND_S,
                limits=httpx.Limits(max_connections=200, max_keepalive_connections=20),
                verify=trust(),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client
