"""Closing and opening vendors' gates on a person's word: the act and its record in one commit, by whichever way.

Nobody passes a closed gate, not even who forces a row: the answer says until when it is closed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.kernel.db import Database, Tx
from services.kernel.errors import Refusal
from services.kernel.gate import VENDORS, Gates
from services.operations.store import Gate, list_closed_by_hand, list_gates, open_gate, record_action

ONLY_BY_NAME: Final = frozenset({"jwks", "pagerduty"})
"""What lets people in, and what wakes them, goes on while all vendors are paused."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts, and why; kept in ``admin_actions``."""

    actor: str
    reason: str


async def list_known(tx: Tx) -> list[Gate]:
    """The gate of every vendor that this installation calls or ever called, by name."""
    found = {gate.vendor: gate for gate in await list_gates(tx)}
    return [found.get(vendor) or Gate(vendor, None, None, None, 0) for vendor in sorted(VENDORS | found.keys())]


async def close(database: Database, vendors: Sequence[str], person: Person, *, minutes: float) -> list[Gate]:
    """Call none of the vendors (none named: all) for a while; a gate that is closed for longer stays as it is.
    Raises Refusal("vendor_unknown"), with nothing written."""
    async with database.transaction() as tx:
        before = await _known(tx)
        chosen = _chosen(vendors, before) or sorted(before.keys() - ONLY_BY_NAME)
        for vendor in chosen:
            await Gates(tx).close(vendor, timedelta(minutes=minutes), person.reason, person.actor)
        return await _recorded(tx, "close_gate", person, chosen, before)


async def reopen(database: Database, vendors: Sequence[str], person: Person) -> list[Gate]:
    """Call the vendors (none named: those that were closed by hand) again at once. What closed a gate will close it
    again if it still stands. Raises Refusal("vendor_unknown" | "gate_not_closed"), with nothing written."""
    async with database.transaction() as tx:
        before = await _known(tx)
        chosen = _chosen(vendors, before) or await list_closed_by_hand(tx)
        for vendor in chosen:
            if not await open_gate(tx, vendor):
                raise Refusal("gate_not_closed", vendor)
        return await _recorded(tx, "open_gate", person, chosen, before)


async def _known(tx: Tx) -> dict[str, Gate]:
    return {gate.vendor: gate for gate in await list_known(tx)}


def _chosen(vendors: Iterable[str], known: Mapping[str, Gate]) -> list[str]:
    """Sorted: two who act at once lock the rows in one order."""
    chosen = sorted(set(vendors))
    for vendor in chosen:
        if vendor not in known:
            raise Refusal("vendor_unknown", vendor)
    return chosen


async def _recorded(tx: Tx, verb: str, person: Person, chosen: Iterable[str], before: Mapping[str, Gate]) -> list[Gate]:
    """Keep what was done to each, in the commit that does it; the gates as they now stand."""
    after = await _known(tx)
    for vendor in chosen:
        await record_action(
            tx,
            actor=person.actor,
            verb=verb,
            target=f"gate {vendor}",
            reason=person.reason,
            before=_shown(before[vendor]),
            after=_shown(after[vendor]),
        )
    return [after[vendor] for vendor in chosen]


def _shown(gate: Gate) -> dict[str, str | None]:
    return {"closed_until": gate.closed_until.isoformat() if gate.closed_until else None, "reason": gate.reason}
