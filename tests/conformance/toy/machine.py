"""The states of a letter and the edges between them."""

from enum import StrEnum
from typing import Final

from services.kernel.transition import Edge, Fence, Machine


class LetterState(StrEnum):
    PENDING = "pending"
    """The next worker to look takes it."""
    IN_PROGRESS = "in_progress"
    """One worker holds it, until its lease is over."""
    POSTED = "posted"
    """Nobody moves it any more."""
    REFUSED = "refused"
    """A person corrects the address."""


LETTERS: Final = Machine(
    "letters",
    LetterState,
    [
        Edge("write", None, LetterState.PENDING, Fence.BIRTH),
        Edge("claim", LetterState.PENDING, LetterState.IN_PROGRESS, Fence.CLAIM),
        Edge("post", LetterState.IN_PROGRESS, LetterState.POSTED, Fence.TOKEN),
        Edge("refuse", LetterState.IN_PROGRESS, LetterState.REFUSED, Fence.TOKEN),
        Edge("put_back", LetterState.IN_PROGRESS, LetterState.PENDING, Fence.TOKEN),
        Edge("reap", LetterState.IN_PROGRESS, LetterState.PENDING, Fence.CLAIM),
        Edge("readdress", LetterState.REFUSED, LetterState.PENDING, Fence.PERSON),
        Edge("redirect", LetterState.PENDING, LetterState.PENDING, Fence.PERSON),
    ],
)
