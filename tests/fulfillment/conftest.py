"""What the slice's tests share: purchases on a real database, any number of processes, a scripted outside."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import asyncpg
import pytest

from services.fulfillment.flow.flush import Fulfillment, Inviter, Outside
from services.fulfillment.machine import (
    AccessMail,
    ChargeAnswer,
    ChargeMissing,
    Fetched,
    FulfillmentState,
    HandleAnswer,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    MailAnswer,
    MailSent,
    NewSession,
    Opened,
    Outcome,
    SessionAnswer,
    SessionMissing,
    SessionOpened,
)
from services.kernel.gate import Gates
from services.kernel.pager import Pager
from tests.fixtures.database import Connect, Connection
from tests.fulfillment.product import GATE, open_product
from tests.fulfillment.vendor import Vendor

ROLE = "rowclaim_fulfillment"


class Purchases:
    """Rows to start from and to look at, past every service."""

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._count = 0

    async def add(self, handle: str | None = "octocat", *, age_s: float = 0, **columns: Any) -> int:
        """A purchase as it is born, then put into the state that `columns` describe, past the guard.

        Of two without an age the one added later is younger.
        """
        self._count += 1
        row: dict[str, Any] = {
            "stripe_session_id": f"cs_test_{self._count}",
            "email": f"buyer{self._count}@example.com",
            "github_handle": handle,
            "fulfillment_state": "pending",
            "edge": "record",
        } | columns
        names, places = ", ".join(row), ", ".join(f"${n}" for n in range(2, len(row) + 2))
        async with self._owner.transaction():
            await self._owner.execute("set local session_replication_role = replica")
            added: int = await self._owner.fetchval(
                f"insert into purchases (created_at, {names}) values (rowclaim_now() - $1::interval, {places})"
                " returning id",
                timedelta(seconds=age_s),
                *row.values(),
            )
        return added

    async def in_state(self, state: str, handle: str | None = "octocat", **columns: Any) -> int:
        """A purchase in a state, as its last writer left it just now."""
        error = (
            {"fulfillment_last_error": "no", "fulfillment_last_code": "no"} if state == FulfillmentState.FAILED else {}
        )
        now = await self.now()
        attempted = {"fulfillment_attempted_at": now, "fulfillment_attempts": 1}
        delivered = {"fulfilled_at": now} if state == FulfillmentState.DELIVERED else {}
        known = error | delivered | ({} if state == FulfillmentState.PENDING else attempted)
        return await self.add(handle, fulfillment_state=state, **(known | columns))

    async def now(self) -> datetime:
        """The database's instant."""
        now: datetime = await self._owner.fetchval("select rowclaim_now()")
        return now

    async def row(self, purchase_id: int) -> asyncpg.Record:
        """A purchase as it stands."""
        row = await self._owner.fetchrow("select * from purchases where id = $1", purchase_id)
        assert row is not None
        return row

    async def ids(self) -> list[int]:
        """All ids, in order."""
        return [r["id"] for r in await self._owner.fetch("select id from purchases order by id")]

    async def states(self) -> list[str]:
        """All states, by id."""
        return [r["fulfillment_state"] for r in await self._owner.fetch("select * from purchases order by id")]

    async def attempts(self) -> list[int]:
        """All attempt counts, by id."""
        return [r["fulfillment_attempts"] for r in await self._owner.fetch("select * from purchases order by id")]

    async def age(self, purchase_id: int, by: timedelta) -> None:
        """As if everything that happened to it had happened earlier."""
        await self._owner.execute(
            "update purchases set created_at = created_at - $2::interval, fulfilled_at = fulfilled_at - $2::interval,"
            " fulfillment_attempted_at = fulfillment_attempted_at - $2::interval where id = $1",
            purchase_id,
            by,
        )


@dataclass(slots=True)
class Post:
    """A mail server in the flow's own words."""

    mails: list[AccessMail] = field(default_factory=list)
    answer: MailAnswer = field(default_factory=MailSent)
    before: Callable[[AccessMail], Awaitable[None]] | None = None

    async def send(self, mail: AccessMail) -> MailAnswer:
        if self.before is not None:
            await self.before(mail)
        self.mails.append(mail)
        return self.answer


@dataclass(slots=True)
class Sessions:
    """Checkout Sessions, and the charges in them, as their vendor has them."""

    found: dict[str, SessionAnswer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    charges: dict[str, ChargeAnswer] = field(default_factory=dict)
    paid_in: dict[str, str] = field(default_factory=dict)
    """The Session by its payment."""
    opened: list[NewSession] = field(default_factory=list)
    says: SessionOpened = field(default_factory=lambda: Opened("cs_test_opened", "https://stripe.test/pay"))
    """To whoever opens one."""

    def put(self, session_id: str, **fields: Any) -> None:
        """A paid Session of this slice, with these fields laid over it."""
        self.found[session_id] = Fetched(
            {
                "object": "checkout.session",
                "id": session_id,
                "payment_status": "paid",
                "metadata": {"rowclaim_slice": "fulfillment", "github_username": "octocat"},
                "customer_details": {"email": "buyer@example.com"},
                "client_reference_id": "user_1",
                "amount_total": 4900,
                "currency": "usd",
            }
            | fields
        )

    async def fetch(self, session_id: str) -> SessionAnswer:
        self.asked.append(session_id)
        return self.found.get(session_id, SessionMissing())

    async def session_of_payment(self, payment_id: str) -> SessionAnswer:
        return await self.fetch(self.paid_in.get(payment_id, "none"))

    async def charge(self, charge_id: str) -> ChargeAnswer:
        self.asked.append(charge_id)
        return self.charges.get(charge_id, ChargeMissing())

    async def open(self, new: NewSession) -> SessionOpened:
        self.opened.append(new)
        return self.says


@dataclass(frozen=True, slots=True)
class Checked:
    """The product of this installation, whose check of a handle is the vendor's script alone."""

    product: Inviter
    vendor: Vendor

    @property
    def gate(self) -> str:
        return self.product.gate

    async def check(self, handle: str) -> HandleAnswer:
        return await self.vendor.check(handle)

    async def invite(self, request: InviteRequest) -> Outcome:
        return await self.product.invite(request)

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        return await self.product.standing(query)


@dataclass(frozen=True, slots=True)
class Process:
    """One process's fulfillment, and everything outside it."""

    fulfillment: Fulfillment
    vendor: Vendor
    post: Post
    sessions: Sessions
    gates: Gates
    stopping: asyncio.Event


class Start(Protocol):
    def __call__(
        self, *, like: Process | None = None, pace_s: float = 0, bound_s: float = 20
    ) -> Awaitable[Process]: ...


@pytest.fixture
def purchases(owner: Connection) -> Purchases:
    return Purchases(owner)


@pytest.fixture
def start(connect: Connect) -> Start:
    """Start a process of the slice under its own login role; `like`: with the outside of another."""

    async def process(*, like: Process | None = None, pace_s: float = 0, bound_s: float = 20) -> Process:
        db = await connect(ROLE, size_max=4)
        gates = Gates(db, pace_s={GATE: pace_s})
        vendor, post, sessions = (like.vendor, like.post, like.sessions) if like else (Vendor(), Post(), Sessions())
        stopping = asyncio.Event()
        outside = Outside(Checked(open_product(vendor, gates), vendor), sessions, post, gates, Pager(db))
        return Process(Fulfillment(db, outside, bound_s, stopping), vendor, post, sessions, gates, stopping)

    return process
