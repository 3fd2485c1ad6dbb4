"""Waking a person: a row first, a message second.

A page is open once per key, counted when seen again, and resolved by whoever sees its cause gone. It is recorded
before anybody is told, so that a pager that is down delays a page and never loses it. Summaries carry ids, not people.
"""

import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, LiteralString, Protocol

import structlog

from services.kernel.db import Tx
from services.kernel.errors import Retryable

log = structlog.get_logger()

SUMMARY_MAX: Final = 1024
SEND_BATCH: Final = 5
# Longer than a batch whose every call runs into its bound, shorter than anybody should wait when a sender has died.
SENDING_LEASE: Final = timedelta(seconds=60)

_ADDRESS: Final = re.compile(r"[^\s@<>]+@[^\s@<>]+")


class Severity(StrEnum):
    """How loudly somebody is woken."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it is sent: opened (``resolved`` False) or over."""

    id: int
    dedup_key: str
    severity: Severity
    summary: str
    resolved: bool


class PageSender(Protocol):
    """Tells people. Sending the same page twice must be harmless: the dedup key is how it is recognised."""

    async def send(self, page: Page) -> bool:
        """Whether it was taken; False or Retryable or TimeoutError: it is sent again later."""
        ...


class LogSender:
    """For installations without a pager: the log is where somebody looks."""

    async def send(self, page: Page) -> bool:
        loud = logging.CRITICAL if page.severity is Severity.CRITICAL else logging.ERROR
        level, event = (logging.INFO, "page.resolved") if page.resolved else (loud, "page.opened")
        log.log(level, event, page=page.id, dedup_key=page.dedup_key, severity=page.severity, summary=page.summary)
        return True


OPEN_PAGE: Final[LiteralString] = """
insert into pages as p (dedup_key, severity, summary, opened_at, seen_at)
values ($1, $2, $3, rowclaim_now(), rowclaim_now())
on conflict (dedup_key) where resolved_at is null do update set seen = p.seen + 1, seen_at = excluded.seen_at
returning p.seen = 1 as is_new"""

RESOLVE_PAGE: Final[LiteralString] = """
update pages set resolved_at = rowclaim_now() where dedup_key = $1 and resolved_at is null"""

# One sender a page at a time: a late "opened" behind a "resolved" would wake somebody for what is over and never end.
# What was refused stands behind what was not tried: pages that the pager never takes must not hold up all others.
TAKE_UNSENT: Final[LiteralString] = """
with next as materialized (
  select id from pages
  where (sent_at is null or (resolved_at is not null and resolve_sent_at is null))
    and coalesce(sending_until, '-infinity') <= rowclaim_now()
  order by sending_until nulls first, id limit $1 for no key update skip locked)
update pages p set sending_until = rowclaim_now() + $2::interval
from next where p.id = next.id
returning p.id, p.dedup_key, p.severity, p.summary, p.sent_at is not null as resolved"""

LET_GO: Final[LiteralString] = """
update pages set sending_until = case when not $2 then rowclaim_now() end,
  sent_at = coalesce(sent_at, case when $2 then rowclaim_now() end),
  resolve_sent_at = case when $2 and $3 then rowclaim_now() end
where id = $1"""


class Pager:
    """The pages of one process. ``tx`` writes the rows, ``sender`` tells people."""

    def __init__(self, tx: Tx, sender: PageSender) -> None:
        self._tx = tx
        self._sender = sender

    async def page(self, dedup_key: str, severity: Severity, summary: str) -> bool:
        """Open a page, or count it when its key is open already; returns whether it is new. A Sweep sends it."""
        shown = _ADDRESS.sub("[address]", summary)[:SUMMARY_MAX]
        is_new: bool = await self._tx.value(OPEN_PAGE, dedup_key, severity, shown)
        return is_new

    async def resolve(self, dedup_key: str) -> bool:
        """The cause is gone; False: no page of this key was open."""
        return await self._tx.execute(RESOLVE_PAGE, dedup_key) == 1

    async def send_unsent(self) -> dict[str, int]:
        """Send what was not yet sent, oldest first; returns counts. Never raises for the pager's trouble."""
        counts = {"sent": 0, "failed": 0}
        for page in sorted(await self._tx.rows(Page, TAKE_UNSENT, SEND_BATCH, SENDING_LEASE), key=lambda p: p.id):
            taken = await self._sent(page)
            await self._tx.execute(LET_GO, page.id, taken, page.resolved)
            counts["sent" if taken else "failed"] += 1
        return counts

    async def _sent(self, page: Page) -> bool:
        try:
            return await self._sender.send(page)
        except (Retryable, TimeoutError) as error:
            log.warning("page.not_sent", dedup_key=page.dedup_key, error=str(error) or type(error).__name__)
            return False
