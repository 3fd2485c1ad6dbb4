"""Reading ``a[b][0][c]=1``, the way Stripe writes nested parameters into a form or a query."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from services.sandbox.stripe.refusals import invalid

Node: TypeAlias = "str | dict[str, Node]"

_NAME: Final = re.compile(r"^(?P<head>[^\[\]]+)(?P<tail>(?:\[[^\[\]]*\])*)$")
_PART: Final = re.compile(r"\[([^\[\]]*)\]")
DEPTH_MAX: Final = 12


def decode(pairs: Iterable[tuple[str, str]]) -> dict[str, Node]:
    """A tree of texts. Lists stay objects with numbered keys: only the parameter's declaration knows it is a list.

    ``a[]`` takes the next free number. A name that is no nesting is kept whole, to be refused as unknown; a name used
    both as a value and as a container raises StripeRefusal.
    """
    tree: dict[str, Node] = {}
    for name, text in pairs:
        parts = _parts(name)
        node = tree
        for part in parts[:-1]:
            key = part or str(len(node))
            inner = node.setdefault(key, {})
            if not isinstance(inner, dict):
                raise invalid(f"Invalid parameter nesting at: {name}", name)
            node = inner
        last = parts[-1] or str(len(node))
        if isinstance(node.get(last), dict):
            raise invalid(f"Invalid parameter nesting at: {name}", name)
        node[last] = text
    return tree


def as_nodes(value: Any) -> Any:
    """JSON values as the tree a form would have given: texts, and objects with numbered keys for lists."""
    if isinstance(value, Mapping):
        return {name: as_nodes(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return {str(number): as_nodes(inner) for number, inner in enumerate(value)}
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _parts(name: str) -> list[str]:
    match = _NAME.match(name)
    if match is None:
        return [name]
    parts = [match["head"], *_PART.findall(match["tail"])]
    if len(parts) > DEPTH_MAX:
        raise invalid("Parameters are nested too deeply", name)
    return parts
