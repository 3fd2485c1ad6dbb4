"""Telling people of pages: each is sent once when it opens and once when it is over, by whichever process sweeps."""

import logging
from datetime import timedelta
from typing import Final, Protocol

import structlog

from services.kernel.db import Tx
from services.kernel.errors import Retryable
from services.kernel.pager import Page, Severity
from services.operations.store import let_go, take_unsent

log = structlog.get_logger()

SEND_BATCH: Final = 5
# Longer than a batch whose every call runs into its bound, shorter than anybody should wait when a sender has died.
SENDING_LEASE: Final = timedelta(seconds=60)


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


async def send_unsent(tx: Tx, sender: PageSender) -> dict[str, int]:
    """Send what was not yet sent, oldest first; returns counts. Never raises for the pager's trouble."""
    counts = {"sent": 0, "failed": 0}
    for page in await take_unsent(tx, limit=SEND_BATCH, lease=SENDING_LEASE):
        taken = await _sent(sender, page)
        await let_go(tx, page, taken=taken)
        counts["sent" if taken else "failed"] += 1
    return counts


async def _sent(sender: PageSender, page: Page) -> bool:
    try:
        return await sender.send(page)
    except (Retryable, TimeoutError) as error:
        log.warning("page.not_sent", dedup_key=page.dedup_key, error=str(error) or type(error).__name__)
        return False
