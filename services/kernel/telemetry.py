"""Logs that name their row, traces that cross processes, metrics that never name one.

Each line of a unit of work carries event id, row kind and id, claim token and trace id. A metric's label never holds
an id: it would make as many series as there are rows. ``LABELS`` is the closed list of what a label may say.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import structlog

LABELS: Final = frozenset(
    {"call", "consumer", "job", "kind", "method", "outcome", "reason", "result", "route", "secret", "severity"}
    | {"slice", "source", "state", "status", "sweep", "topic", "vendor", "worker"}
)
"""Every label name a metric may have. Values are of closed or configured sets: never an id, never a person."""

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a unit of work stands in a trace (W3C Trace Context)."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def begin(cls) -> Self:
        """A new trace."""
        return cls(secrets.token_hex(16), secrets.token_hex(8))

    @classmethod
    def parse(cls, header: str | None) -> Self | None:
        """The caller's position, or None for a header that is absent or not as the standard has it."""
        found = _TRACEPARENT.fullmatch(header or "")
        if found is None:
            return None
        version, trace_id, span_id, flags, more = found.groups()
        if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & 1))

    def child(self) -> Self:
        """A span of ours in the same trace."""
        return type(self)(self.trace_id, secrets.token_hex(8), self.sampled)

    @property
    def header(self) -> str:
        """The value of ``traceparent`` for whom we call."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


@contextmanager
def unit_of_work(
    *,
    event_id: int | None = None,
    row_kind: str | None = None,
    row_id: int | str | None = None,
    claim_token: int | None = None,
    trace: Trace | None = None,
) -> Iterator[None]:
    """Every line logged inside carries what is given, and the trace of the unit around it, or a new one."""
    if trace is None and "trace_id" not in structlog.contextvars.get_contextvars():
        trace = Trace.begin()
    named = {
        "event_id": event_id,
        "row_kind": row_kind,
        "row_id": row_id,
        "claim_token": claim_token,
        "trace_id": trace and trace.trace_id,
        "span_id": trace and trace.span_id,
    }
    with structlog.contextvars.bound_contextvars(**{name: value for name, value in named.items() if value is not None}):
        yield
