"""Waking a person: a row first, a message second.

A page is open once per key, counted when seen again, and resolved by whoever sees its cause gone. It is recorded
before anybody is told (``operations/paging.py``), so that a pager that is down delays a page and never loses it.
Summaries carry ids, not people.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, LiteralString

from services.kernel.db import Tx

SUMMARY_MAX: Final = 1024

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


OPEN_PAGE: Final[LiteralString] = """
insert into pages as p (dedup_key, severity, summary, opened_at, seen_at)
values ($1, $2, $3, rowclaim_now(), rowclaim_now())
on conflict (dedup_key) where resolved_at is null do update set seen = p.seen + 1, seen_at = excluded.seen_at
returning p.seen = 1 as is_new"""

RESOLVE_PAGE: Final[LiteralString] = """
update pages set resolved_at = rowclaim_now() where dedup_key = $1 and resolved_at is null"""


class Pager:
    """The pages of one process; ``tx`` writes the rows."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def page(self, dedup_key: str, severity: Severity, summary: str) -> bool:
        """Open a page, or count it when its key is open already; returns whether it is new. A Sweep sends it."""
        shown = _ADDRESS.sub("[address]", summary)[:SUMMARY_MAX]
        is_new: bool = await self._tx.value(OPEN_PAGE, dedup_key, severity, shown)
        return is_new

    async def resolve(self, dedup_key: str) -> bool:
        """The cause is gone; False: no page of this key was open."""
        return await self._tx.execute(RESOLVE_PAGE, dedup_key) == 1
