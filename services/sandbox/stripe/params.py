"""Declaring parameters, and refusing what was not declared, in Stripe's words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from services.sandbox.stripe.forms import Node
from services.sandbox.stripe.refusals import invalid, missing_parameter, not_played, unknown_parameter

METADATA_KEYS_MAX: Final = 50
METADATA_KEY_MAX: Final = 40
METADATA_VALUE_MAX: Final = 500


class Kind(Protocol):
    """How one parameter is read; raises StripeRefusal."""

    def read(self, node: Node, name: str) -> Any: ...


def _text(node: Node, name: str, what: str) -> str:
    if not isinstance(node, str):
        raise invalid(f"Invalid {what}: {name}", name)
    if node == "":
        raise invalid(
            f"You passed an empty string for '{name}'. We assume empty values are an attempt to unset a field; however "
            f"'{name}' cannot be unset. You should remove '{name}' from your request or supply a non-empty value.",
            name,
            "parameter_invalid_empty",
        )
    return node


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most ``longest`` characters."""

    longest: int = 5000

    def read(self, node: Node, name: str) -> str:
        text = _text(node, name, "string")
        if len(text) > self.longest:
            raise invalid(
                f"Invalid string: {text[:10]}…; must be at most {self.longest} characters",
                name,
                "parameter_invalid_string",
            )
        return text


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer between ``least`` and ``most``."""

    least: int = 0
    most: int = 99_999_999_999

    def read(self, node: Node, name: str) -> int:
        text = _text(node, name, "integer")
        try:
            number = int(text)
        except ValueError as error:
            raise invalid(f"Invalid integer: {text}", name, "parameter_invalid_integer") from error
        if number < self.least:
            raise invalid(
                f"This value must be greater than or equal to {self.least}.", name, "parameter_invalid_integer"
            )
        if number > self.most:
            raise invalid(f"This value must be less than or equal to {self.most}.", name, "parameter_invalid_integer")
        return number


@dataclass(frozen=True, slots=True)
class Flag:
    """``true`` or ``false``."""

    def read(self, node: Node, name: str) -> bool:
        text = _text(node, name, "boolean")
        if text not in ("true", "false"):
            raise invalid(f"Invalid boolean: {text}", name)
        return text == "true"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these words."""

    words: tuple[str, ...]

    def read(self, node: Node, name: str) -> str:
        text = _text(node, name, "string")
        if text not in self.words:
            raise invalid(f"Invalid {name}: must be one of {', '.join(self.words)}", name)
        return text


@dataclass(frozen=True, slots=True)
class Metadata:
    """Our own keys and texts; an empty value unsets a key."""

    def read(self, node: Node, name: str) -> dict[str, str]:
        if node == "":
            return {}
        if not isinstance(node, dict):
            raise invalid(f"Invalid object: {name}", name)
        if len(node) > METADATA_KEYS_MAX:
            raise invalid(f"Metadata can have at most {METADATA_KEYS_MAX} keys", name)
        for key, value in node.items():
            if not isinstance(value, str):
                raise invalid(f"Metadata values must be strings: {key}", f"{name}[{key}]")
            if len(key) > METADATA_KEY_MAX:
                raise invalid(f"Metadata keys can be at most {METADATA_KEY_MAX} characters: {key}", name)
            if len(value) > METADATA_VALUE_MAX:
                raise invalid(
                    f"Metadata values can be at most {METADATA_VALUE_MAX} characters: {key}", f"{name}[{key}]"
                )
        return {key: value for key, value in node.items() if isinstance(value, str)}


@dataclass(frozen=True, slots=True)
class Many:
    """A list; written with numbers or empty brackets."""

    kind: Kind
    most: int = 100

    def read(self, node: Node, name: str) -> list[Any]:
        if node == "":
            return []
        if not isinstance(node, dict) or not all(key.isdecimal() for key in node):
            raise invalid(f"Invalid array: {name}", name)
        if len(node) > self.most:
            raise invalid(f"Array {name} exceeded maximum {self.most} allowed elements.", name)
        return [self.kind.read(node[key], f"{name}[{key}]") for key in sorted(node, key=int)]


@dataclass(frozen=True, slots=True)
class Group:
    """An object with these parameters and no others.

    ``elsewhere`` names parameters Stripe has and this sandbox does not play: they are refused too, in other words.
    """

    kinds: Mapping[str, Kind]
    required: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = field(default_factory=frozenset)

    def read(self, node: Node, name: str = "") -> dict[str, Any]:
        if not isinstance(node, dict):
            raise invalid(f"Invalid object: {name}", name)
        values: dict[str, Any] = {}
        for key, inner in node.items():
            full = f"{name}[{key}]" if name else key
            if (kind := self.kinds.get(key)) is not None:
                values[key] = kind.read(inner, full)
            elif key in self.elsewhere:
                raise not_played(f"The parameter {full}", full)
            else:
                raise unknown_parameter(full)
        for key in sorted(self.required - values.keys()):
            raise missing_parameter(f"{name}[{key}]" if name else key)
        return values


@dataclass(frozen=True, slots=True)
class Span:
    """An instant in epoch seconds, or bounds on one (``gt``, ``gte``, ``lt``, ``lte``)."""

    def read(self, node: Node, name: str) -> dict[str, int]:
        if isinstance(node, str):
            exact = Whole().read(node, name)
            return {"gte": exact, "lte": exact}
        return Group({bound: Whole() for bound in ("gt", "gte", "lt", "lte")}).read(node, name)


EXPAND: Final = Many(Text(), most=20)
PAGE: Final[Mapping[str, Kind]] = {
    "limit": Whole(1, 100),
    "starting_after": Text(),
    "ending_before": Text(),
    "expand": EXPAND,
}
