"""State machines as values: a status write names its edge, and the database refuses every other.

A slice's ``machine.py`` declares a StrEnum and its edges; the same edges stand as rows of ``law.state_edges``, where a
trigger (``law.guard_state``) holds every client to them, psql and this code alike. At boot the code's edges must be a
subset of the database's (``kernel.service.verify_machine``), so that release N runs on schema N and N+1; the house
tests demand equality. Pure: a machine can be read and drawn without a database.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fence(StrEnum):
    """What a write must present to take an edge. Held by the database."""

    BIRTH = "birth"
    """A row may be born in the target state."""
    CLAIM = "claim"
    """Takes a new claim token: a claim, or a reap that fences the dead worker off."""
    TOKEN = "token"  # noqa: S105 - a fence, not a password
    """Presents the current claim token: the outcome of the attempt that holds the row."""
    PERSON = "person"
    """Takes a new claim token on somebody's word or a vendor's proof: whoever held the row holds it no more."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One permitted change of state. ``source`` None: a row is born here."""

    name: str
    source: StrEnum | None
    target: StrEnum
    fence: Fence


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """An edge as ``law.state_edges`` keeps it."""

    edge: str
    source: str | None
    target: str
    fence: str


class Machine:
    """All states and edges of one table's state column.

    Raises ValueError (at import) unless names are unique, every state is reached and every claimed state has a put-back
    edge (fence token), so that an orderly stop can always give a row back.
    """

    def __init__(self, table: str, states: type[StrEnum], edges: Iterable[Edge], *, column: str = "state") -> None:
        self.table: Final = table
        self.states: Final = states
        self.column: Final = column
        declared = tuple(edges)
        self.edges: Final[Mapping[str, Edge]] = {edge.name: edge for edge in declared}
        if len(self.edges) != len(declared):
            raise ValueError(f"{table}: an edge name stands twice")
        if unreached := set(states) - {edge.target for edge in declared}:
            raise ValueError(f"{table}: unreachable {sorted(unreached)}")
        for claim in (edge for edge in declared if edge.name == "claim"):
            back = [
                e for e in declared if e.source is claim.target and e.target is claim.source and e.fence is Fence.TOKEN
            ]
            if not back:
                raise ValueError(f"{table}: a claimed row cannot be put back")

    def rows(self) -> set[EdgeRow]:
        """The edges as the database keeps them."""
        return {EdgeRow(e.name, e.source, e.target, e.fence) for e in self.edges.values()}

    def mermaid(self) -> str:
        """The picture for the slice's README: one line an edge, in the order declared."""
        lines = ["stateDiagram-v2"]
        lines += [f"    {e.source or '[*]'} --> {e.target}: {e.name}" for e in self.edges.values()]
        return "\n".join(lines)
