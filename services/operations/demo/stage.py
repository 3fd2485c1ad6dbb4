"""The stage of a demo: an installation of its own, the hand behind the scenery, and a look into the database."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
import httpx

from services.operations.installation import Installation, Plan, installation
from services.operations.terminal import Terminal
from services.sandbox.control import SandboxControl
from services.sandbox.wire import MintToken

T = TypeVar("T")

POLL_S: Final = 0.03
OPERATOR: Final = "user_operator"
ANSWER_S: Final = 40.0
"""An answer may wait 25 seconds for the flush it caused."""
# The pace that GitHub asks for is a second; the story would take a minute of waiting. The lease is short for the same
# reason: what a killed consumer held is taken up again within it.
PLAN: Final = Plan(
    parts=frozenset({"postgres", "broker"}),
    consumers=2,
    settings={"ROWCLAIM_FULFILLMENT_GITHUB_PACE_S": "0.1", "ROWCLAIM_FULFILLMENT_DELIVERY_LEASE_S": "6"},
    alone=True,
)

Note = Callable[[str], None]
"""Told in a few words what is going on."""


class TooLate(Exception):
    """Something the story waits for did not happen in time; the message names it."""


async def until(probe: Callable[[], Awaitable[T]], *, within_s: float, what: str) -> T:
    """Ask ``probe`` until what it says is true, and return that. Raises TooLate."""
    deadline = time.monotonic() + within_s
    while True:
        said = await probe()
        if said:
            return said
        if time.monotonic() > deadline:
            raise TooLate(f"{what}: not within {within_s:g} s (last seen: {said!r})")
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Answer:
    """What our API said."""

    status: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs, while it runs."""

    whole: Installation
    control: SandboxControl
    database: "asyncpg.Pool[asyncpg.Record]"
    client: httpx.AsyncClient

    async def call(self, user: str, method: str, path: str, body: object = None) -> Answer:
        """A request to our HTTP process with a token of this user's; the operator's says the role."""
        token = await self.control.do(MintToken(user, role="admin" if user == OPERATOR else None))
        headers = {"authorization": f"Bearer {token}"}
        answer = await self.client.request(method, path, json=body, headers=headers)
        return Answer(answer.status_code, answer.json())


@asynccontextmanager
async def set_up(terminal: Terminal, directory: Path) -> AsyncIterator[Stage]:
    """Servers, vendors, schema, topics, one web process and two consumers; all gone at the end of the block."""
    async with installation(terminal, directory, PLAN) as whole, whole.control() as control:
        pool = await asyncpg.create_pool(whole.settings["ROWCLAIM_DATABASE_URL"], min_size=1, max_size=2)
        try:
            async with httpx.AsyncClient(base_url=whole.http_url, trust_env=False, timeout=ANSWER_S) as client:
                yield Stage(whole, control, pool, client)
        finally:
            await pool.close()
