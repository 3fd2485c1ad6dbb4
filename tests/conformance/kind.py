"""What the law needs to know about one kind of claimable row."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import LiteralString

from services.kernel.db import Tx
from services.kernel.transition import Fence, Machine

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A row as a claim gave it: its primary key and the token that came with it."""

    key: Key
    token: int


@dataclass(frozen=True, slots=True)
class Move:
    """An edge between two states."""

    name: str
    source: str
    target: str
    fence: Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One claimable table: its machine, its own functions, and how to arrange rows of it.

    ``claim(tx, limit)`` returns what it took, the oldest first by the kind's own order; a kind that claims one row at a
    time (``batch`` False) ignores the limit. Each of ``outcomes`` maps a token-fenced edge to the function that takes
    it. Fragments of SQL are written without ``set``.
    """

    machine: Machine
    role: str
    """The login role whose process claims."""
    key: tuple[str, ...]
    """Columns of the primary key."""
    seed: str
    """Inserts ``$1`` claimable rows, the youngest first, so that no law is kept by the order of insertion."""
    ages: str
    """Columns, as SQL text, that order the claim."""
    claim: Callable[[Tx, int], Awaitable[Sequence[Held]]]
    claim_query: LiteralString
    claim_arguments: Sequence[object]
    """Arguments of ``claim_query`` as a claim of one row gives them."""
    claim_index: str
    """The partial index that the claim must read from."""
    lease: timedelta | None
    """None: a claimed row is freed by a person alone."""
    outcomes: Mapping[str, Callable[[Tx, Held], Awaitable[bool]]]
    batch: bool = False
    renew: Callable[[Tx, Held], Awaitable[bool]] | None = None
    reap: Callable[[Tx], Awaitable[int]] | None = None
    """Frees what is over; how many rows."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """By state: what the table's CHECKs demand of a row in it."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """By reason: what makes a row in the claimable state not claimable yet."""
    schema: str = ""
    """Tables that no migration makes."""

    @property
    def table(self) -> str:
        return self.machine.table

    @property
    def claimable(self) -> str:
        return next(move.source for move in self.moves if move.name == "claim")

    @property
    def claimed(self) -> str:
        return self.machine.edges["claim"].target

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every edge but the births."""
        edges = self.machine.edges.values()
        return tuple(Move(edge.name, edge.source, edge.target, edge.fence) for edge in edges if edge.source is not None)

    @property
    def at_key(self) -> str:
        """The WHERE text that finds one row: ``$1 .. $n`` are its key."""
        return " and ".join(f"{column} = ${position}" for position, column in enumerate(self.key, 1))

    def path(self, source: str, target: str) -> tuple[Move, ...]:
        """The shortest way from one state to another; between one state and itself, no step at all."""
        ways: dict[str, tuple[Move, ...]] = {source: ()}
        queue = [source]
        while target not in ways:
            state = queue.pop(0)
            for move in self.moves:
                if move.source == state and move.target not in ways:
                    ways[move.target] = (*ways[state], move)
                    queue.append(move.target)
        return ways[target]


@dataclass(frozen=True, slots=True)
class Write:
    """A raw status write, as a client that goes round our code would send it. Token texts are SQL."""

    target: str
    edge: str
    claim_token: str
    outcome_token: str

    def query(self, kind: Kind, condition: str = "true") -> str:
        demanded = kind.columns.get(self.target, "")
        return (
            f"update {kind.table} set {kind.machine.column} = '{self.target}', edge = '{self.edge}', "
            f"claim_token = {self.claim_token}, outcome_token = {self.outcome_token}"
            f"{', ' + demanded if demanded else ''} where {kind.at_key} and {condition}"
        )


def lawful(edge: Move) -> Write:
    """The write that takes ``edge`` with the fence it asks for."""
    if edge.fence is Fence.TOKEN:
        return Write(edge.target, edge.name, "claim_token", "claim_token")
    return Write(edge.target, edge.name, "claim_token + 1", "null")


def fence_breaches(edge: Move) -> dict[str, Write]:
    """Writes that take ``edge`` with a wrong fence, by what is wrong."""
    if edge.fence is Fence.TOKEN:
        return {
            "no outcome token": Write(edge.target, edge.name, "claim_token", "null"),
            "an older claim's token": Write(edge.target, edge.name, "claim_token", "claim_token - 1"),
            "a token yet to come": Write(edge.target, edge.name, "claim_token", "claim_token + 1"),
            "a claim token reset": Write(edge.target, edge.name, "claim_token - 1", "claim_token"),
            "a claim token taken": Write(edge.target, edge.name, "claim_token + 1", "claim_token + 1"),
        }
    return {
        "no new token": Write(edge.target, edge.name, "claim_token", "null"),
        "a token two ahead": Write(edge.target, edge.name, "claim_token + 2", "null"),
        "a token set back": Write(edge.target, edge.name, "claim_token - 1", "null"),
        "an outcome token left over": Write(edge.target, edge.name, "claim_token + 1", "claim_token"),
    }
