"""A flush: claim one row, deliver it, write the outcome, ask for the next.

It reports counts and never raises for a vendor's trouble: every caller of it is the side effect of something that
already happened.
"""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, assert_never

import structlog

from services.fulfillment import store
from services.fulfillment.machine import (
    AccessMail,
    ChargeAnswer,
    Config,
    Delivered,
    HandleAnswer,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    MailAnswer,
    MailNotSent,
    MailSent,
    NewSession,
    Outcome,
    Pause,
    SessionAnswer,
    SessionOpened,
    Terminal,
    Transient,
)
from services.kernel import effects
from services.kernel.claim import WORKER
from services.kernel.db import Database
from services.kernel.errors import Retryable
from services.kernel.gate import Closed, Gates
from services.kernel.pager import Pager, Severity
from services.kernel.telemetry import unit_of_work

log = structlog.get_logger()

SLICE: Final = "fulfillment"

CONFIG_PAUSE: Final = timedelta(minutes=15)
"""How long a vendor is left alone after telling us that we are at fault, unless it said until when."""

SLOW_TIMEOUTS: Final = 5
"""So many timeouts in a row, with another purchase delivered meanwhile, and a row is slow, not the vendor."""
DEFERRAL: Final = timedelta(seconds=30)
DEFERRAL_MAX: Final = timedelta(minutes=15)

PASSED_OVER_MAX: Final = 3
"""How often a flush looks again for a purchase that somebody was just writing."""

UNEXPLAINED_LOGINS: Final = 3
"""So many different buyers refused without a known reason, one after another, and it is not the buyers."""

COOLDOWN: Final = timedelta(minutes=10)
"""How long after an attempt failed its username may not be corrected again."""

FLUSHED_WITHIN_S: Final = 25.0
"""How long an answer waits for the flush it caused; what is not delivered by then is shown as it stands."""

NO_HANDLE: Final = Terminal("no_handle", "No GitHub handle was recorded for this purchase.")
TIMED_OUT: Final = Transient("timed_out", "The attempt ran into its bound.", ask_first=True, timed_out=True)


# --------------------------------------------------------------------------------------------------------- the outside
class Inviter(Protocol):
    """Delivers one purchase. Answers every vendor's answer and failure with an outcome; raises nothing."""

    @property
    def gate(self) -> str:
        """The name of the gate its calls go through."""
        ...

    async def invite(self, request: InviteRequest) -> Outcome: ...
    async def check(self, handle: str) -> HandleAnswer:
        """Whether anybody can be delivered to under this handle; within five seconds, the wait for the pace
        included."""
        ...

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        """What became of an invitation. Changes nothing."""
        ...


class Checkout(Protocol):
    """Opens Checkout Sessions, and looks payments up as they are now. Raises nothing."""

    async def open(self, new: NewSession) -> SessionOpened: ...
    async def fetch(self, session_id: str) -> SessionAnswer: ...
    async def session_of_payment(self, payment_id: str) -> SessionAnswer:
        """The Session in which a payment was made."""
        ...

    async def charge(self, charge_id: str) -> ChargeAnswer: ...


class Mailer(Protocol):
    """Sends a mail, or says that it did not. Raises nothing."""

    async def send(self, mail: AccessMail) -> MailAnswer: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything beyond the process and its database."""

    inviter: Inviter
    checkout: Checkout
    mailer: Mailer
    gates: Gates
    pager: Pager


# ---------------------------------------------------------------------------------------------------------- the report
class Stopped(StrEnum):
    """Why a flush ended."""

    DRAINED = "drained"
    """Nothing is pending."""
    TRANSIENT = "transient"
    """The vendor decided nothing about a row: if it is down for one it is down for all."""
    CONFIG = "config"
    """We are at fault; an operator was paged."""
    GATE_CLOSED = "gate_closed"
    LEASE_LOST = "lease_lost"
    """A person took the row over while it was being attempted."""
    STOPPING = "stopping"
    """The process ends."""


@dataclass(slots=True)
class FlushReport:
    """Counts, and no people in them. ``closed_until``: when the vendor's gate opens. ``passed_over``: somebody was
    writing a purchase that is due, for longer than a lock is waited for."""

    stopped: Stopped = Stopped.DRAINED
    closed_until: datetime | None = None
    passed_over: bool = False
    attempted: int = 0
    delivered: int = 0
    failed: int = 0
    put_back: int = 0
    mails_sent: int = 0
    mails_not_sent: int = 0

    @property
    def is_cut_short(self) -> bool:
        """It left purchases for a reason that is ours alone. Nothing polls them: what caused the flush must cause
        another."""
        return self.passed_over or self.stopped in (Stopped.STOPPING, Stopped.LEASE_LOST)

    def counts(self) -> dict[str, int]:
        """The numbers alone."""
        return {
            "attempted": self.attempted,
            "delivered": self.delivered,
            "failed": self.failed,
            "put_back": self.put_back,
            "mails_sent": self.mails_sent,
            "mails_not_sent": self.mails_not_sent,
        }


async def close_gate(gates: Gates, gate: str, pause: Pause, code: str) -> None:
    """Leave a vendor alone for as long as it said, or, where it did not say, the longer the more often it refused."""
    if pause.wait is not None:
        await gates.close(gate, pause.wait, code, WORKER)
    else:
        await gates.refuse(gate, code, WORKER)


# ----------------------------------------------------------------------------------------------------------- the flush
@dataclass(slots=True)
class Fulfillment:
    """One process's fulfillment: at most one of its flushes runs at a time."""

    db: Database
    outside: Outside
    attempt_bound_s: float
    stopping: asyncio.Event
    cooldown: timedelta = COOLDOWN
    _flushing: "asyncio.Task[FlushReport] | None" = field(default=None, init=False)
    _again: "asyncio.Task[FlushReport] | None" = field(default=None, init=False)

    async def flush(self) -> FlushReport:
        """Deliver what is pending, oldest first, one row at a time; the report of a flush that began after this call.

        While one runs, further callers share the next: it may have passed the row they are about.
        """
        if self._again is not None:  # promised, and not begun: the moment it begins it is no longer "again"
            return await asyncio.shield(self._again)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
            return await asyncio.shield(self._flushing)
        self._again = asyncio.create_task(self._flush_after(self._flushing))
        return await asyncio.shield(self._again)

    async def flushed(self, within_s: float = FLUSHED_WITHIN_S) -> FlushReport | None:
        """A flush's report, for an answer that has to show what it did; None: it goes on, without the caller."""
        try:
            async with asyncio.timeout(within_s):
                return await self.flush()
        except TimeoutError:
            return None

    async def drain(self) -> None:
        """Wait for the flushes in hand: at a stop they claim nothing more, and finish the attempt they are in."""
        while running := [task for task in (self._flushing, self._again) if task is not None and not task.done()]:
            await asyncio.wait(running)

    async def _flush_after(self, running: "asyncio.Task[FlushReport]") -> FlushReport:
        await asyncio.wait({running})
        self._flushing, self._again = self._again, None
        return await self._flush()

    async def _flush(self) -> FlushReport:
        report = FlushReport()
        may_try_deferred = True
        while await self._may_claim(report):
            purchase = await self._claim_oldest(report)
            if purchase is None and may_try_deferred:
                may_try_deferred = False
                purchase = await store.claim_deferred(self.db)
            if purchase is None:
                break
            with unit_of_work(row_kind="purchase", row_id=purchase.id, claim_token=purchase.claim_token):
                goes_on = await self._deliver(purchase, report)
            if not goes_on:
                break
        log.info("fulfillment.flushed", stopped=report.stopped, **report.counts())
        return report

    async def _claim_oldest(self, report: FlushReport) -> store.ClaimedPurchase | None:
        for _ in range(PASSED_OVER_MAX):
            if (purchase := await store.claim_oldest(self.db)) is not None:
                return purchase
            try:
                if not await store.wait_for_passed_over(self.db):
                    return None
            except Retryable:  # held for longer than a lock is waited for: the next trigger takes it
                break
        report.passed_over = True
        return None

    async def _may_claim(self, report: FlushReport) -> bool:
        """Whether to claim one more row: the stop, the gate and the pace are all waited for before anything is held."""
        if not self.stopping.is_set():
            if not await store.anything_pending(self.db):
                return False
            entered = await self.outside.gates.reserve(self.outside.inviter.gate)
            if isinstance(entered, Closed):
                report.stopped, report.closed_until = Stopped.GATE_CLOSED, entered.until
                return False
        if self.stopping.is_set():
            report.stopped = Stopped.STOPPING
            return False
        return True

    async def _deliver(self, purchase: store.ClaimedPurchase, report: FlushReport) -> bool:
        """One attempt at a claimed row; whether the flush goes on to the next."""
        report.attempted += 1
        ended = await self._attempt(purchase)
        if not ended.held:
            log.warning("fulfillment.lease_lost")
            report.stopped = Stopped.LEASE_LOST
            return False
        match ended.outcome:
            case Delivered():
                log.info("fulfillment.delivered", attempt=purchase.attempt)
                report.delivered += 1
                await self._mail(purchase, ended.outcome, report)
                await self._all_is_well(report)
                return True
            case Terminal(code):
                log.warning("fulfillment.refused", attempt=purchase.attempt, code=code)
                report.failed += 1
                return True
            case Transient(code):
                log.warning("fulfillment.put_back", attempt=purchase.attempt, code=code)
                report.stopped = Stopped.TRANSIENT
            case Config(code):
                log.error("fulfillment.misconfigured", attempt=purchase.attempt, code=code)
                report.stopped = Stopped.CONFIG
                # Ids and codes: what the vendor said stands in the row, for operators alone.
                await self.outside.pager.page(
                    self._page_key,
                    Severity.ERROR,
                    f"Deliveries stopped: {self.outside.inviter.gate} says {code} at purchase {purchase.id}.",
                )
            case never:
                assert_never(never)
        report.put_back += 1
        report.closed_until = await self.outside.gates.closed_until(self.outside.inviter.gate)
        return False

    @property
    def _page_key(self) -> str:
        return f"{SLICE}:{self.outside.inviter.gate}"

    async def _all_is_well(self, report: FlushReport) -> None:
        """The flush's first delivery: refusals in a row begin anew, and whoever was paged may sleep."""
        if report.delivered == 1:
            await self.outside.gates.succeed(self.outside.inviter.gate)
            await self.outside.pager.resolve(self._page_key)

    async def _attempt(self, purchase: store.ClaimedPurchase) -> effects.Attempt[Outcome]:
        async def invite() -> Outcome:
            if purchase.github_handle is None:
                return NO_HANDLE
            request = InviteRequest(
                purchase_id=purchase.id,
                handle=purchase.github_handle,
                account_id=purchase.github_account_id,
                ask_first=purchase.ask_first,
                replaces=purchase.replaces,
            )
            return await self._doubted(purchase, await self.outside.inviter.invite(request))

        return await effects.attempt(
            invite,
            lambda outcome: self._write(purchase, outcome),
            bound_s=self.attempt_bound_s,
            timed_out=lambda: TIMED_OUT,
        )

    async def _doubted(self, purchase: store.ClaimedPurchase, outcome: Outcome) -> Outcome:
        """An unexplained refusal, unless so many different buyers met one in a row that the fault must be ours."""
        if not isinstance(outcome, Terminal) or not outcome.unexplained:
            return outcome
        logins = {(purchase.github_handle or "").lower()}
        try:
            others = await store.list_failed_in_a_row(self.db, purchase, limit=10 * UNEXPLAINED_LOGINS)
        except Retryable:  # whose fault it is cannot be told now; the vendor, asked again, says the same
            return Transient(outcome.code, outcome.reason)
        for failed in others:
            if failed.code != outcome.code:
                break
            logins.add(failed.login)
        return outcome if len(logins) < UNEXPLAINED_LOGINS else Config("unexplained_refusals", outcome.reason)

    async def _write(self, purchase: store.ClaimedPurchase, outcome: Outcome) -> bool:
        """Write the outcome by the claim's token; False: somebody else has the row, and nothing was written.

        A refusal of everybody closes the gate in the same commit: between the two, another flush would claim the row
        that was just put back and call inside the very window the vendor named.
        """
        match outcome:
            case Delivered(invitation=invitation):
                known = purchase.github_account_id is not None and invitation.account_id is not None
                stranger = known and invitation.account_id != purchase.github_account_id
                return await store.deliver(self.db, purchase, outcome, "invitee_mismatch" if stranger else None)
            case Terminal(code, reason, unexplained):
                attention = code if unexplained else None
                return await store.refuse(self.db, purchase, code=code, reason=reason, attention=attention)
            case Transient(code, reason, ask_first, _, pause, attention):
                timeouts = await self._timeouts(purchase, outcome)
            case Config(code, reason, wait):
                pause, ask_first, attention, timeouts = Pause(wait or CONFIG_PAUSE), False, None, store.Timeouts()
            case never:
                assert_never(never)
        async with self.db.transaction() as tx:
            held = await store.put_back(
                tx, purchase, code=code, reason=reason, ask_first=ask_first, attention=attention, timeouts=timeouts
            )
            if pause is not None:
                await close_gate(Gates(tx), self.outside.inviter.gate, pause, code)
        return held

    async def _timeouts(self, purchase: store.ClaimedPurchase, outcome: Transient) -> store.Timeouts:
        """The row's timeouts after this attempt. Only a row that timed out while others were delivered is put off:
        an outage looks the same for every row, and must not reorder them."""
        if not outcome.timed_out:
            return store.Timeouts()
        starts = [*purchase.timeout_starts, purchase.attempted_at][-SLOW_TIMEOUTS:]
        counted = store.Timeouts(purchase.timeouts_in_row + 1, starts)
        if len(starts) < SLOW_TIMEOUTS or not await store.delivered_since(self.db, starts[0]):
            return counted
        defer = min(DEFERRAL * 2 ** min(purchase.deferrals, 16), DEFERRAL_MAX)
        return replace(counted, deferrals=purchase.deferrals + 1, defer=defer)

    async def _mail(self, purchase: store.ClaimedPurchase, delivered: Delivered, report: FlushReport) -> None:
        """Tell the buyer, after the delivered write: a mail that fails must not cost them the access they have."""
        if purchase.email is None:
            return
        mail = AccessMail(purchase.id, purchase.attempt, purchase.attempted_at, purchase.email, delivered.instructions)
        match await self.outside.mailer.send(mail):
            case MailSent():
                report.mails_sent += 1
            case MailNotSent(code):
                report.mails_not_sent += 1
                log.warning("fulfillment.mail_not_sent", code=code)
            case never:
                assert_never(never)
