"""What a resource module hands to the registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from services.sandbox.stripe.books import Books, Cause, Obj
from services.sandbox.stripe.params import Group


@dataclass(frozen=True, slots=True)
class Request:
    """One call that passed key, idempotency and parameter checks."""

    books: Books
    path: str
    ids: tuple[str, ...]
    """What stood at the stars of the route's pattern."""
    params: Mapping[str, Any]
    cause: Cause


Verb: TypeAlias = Callable[[Request], Obj]


@dataclass(frozen=True, slots=True)
class Route:
    """``pattern`` is the path's segments; ``*`` stands for an id."""

    method: str
    pattern: tuple[str, ...]
    verb: Verb
    params: Group = field(default_factory=lambda: Group({}))
    effect: str | None = None
    """What the request log says when it was executed."""

    def match(self, method: str, segments: tuple[str, ...]) -> tuple[str, ...] | None:
        """The ids in the path, or None for another route's path."""
        if method != self.method or len(segments) != len(self.pattern):
            return None
        if any(want != got and not (want == "*" and got) for want, got in zip(self.pattern, segments, strict=True)):
            return None
        return tuple(got for want, got in zip(self.pattern, segments, strict=True) if want == "*")
