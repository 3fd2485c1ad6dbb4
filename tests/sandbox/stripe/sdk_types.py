"""What Stripe's own library declares about its objects, asked of ours.

The classes are generated from Stripe's description, so they are its word from outside: an attribute declared without
Optional must be there, and whatever is there must be declared and of the declared kind. Response literals are open in
the library (``Literal[...] | str``); here they are closed, because we make the values and must make known ones.
"""

import ast
import inspect
import sys
import typing
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import import_module
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

from stripe import StripeObject
from stripe._stripe_object import UntypedStripeObject


class Contradicts(AssertionError):
    """An object is not what the library declares."""


def check(declared: type[StripeObject], value: object) -> None:
    """Raises Contradicts with every place where ``value`` (JSON) is not a ``declared``."""
    errors = list(_object(declared, value, declared.__name__))
    if errors:
        raise Contradicts("\n".join(errors))


def _object(declared: type[StripeObject], value: object, at: str) -> typing.Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is no object"
        return
    kinds = _annotations(declared)
    encodings = getattr(declared, "_field_encodings", {})
    for name, kind in kinds.items():
        if name not in value:
            if type(None) not in _options(kind):
                yield f"{at}.{name}: declared without Optional, but missing"
        else:
            yield from _value(kind, value[name], f"{at}.{name}", declared, encodings.get(name))
    for name in value.keys() - kinds.keys():
        yield f"{at}.{name}: not declared"


def _value(kind: Any, value: object, at: str, owner: type, encoding: object) -> typing.Iterator[str]:
    """Errors of a value against every option of its kind; none when one option fits."""
    options = [_resolve(option, owner) for option in _options(kind)]
    if any(get_origin(option) is Literal for option in options):
        options = [option for option in options if option is not str]
    tries = [list(_option(option, value, at, owner, encoding)) for option in options]
    if all(tries):
        # The option that failed deepest inside is the one that was meant.
        yield from max(tries, key=lambda errors: errors[0].partition(": ")[0].count("."))


def _option(option: Any, value: object, at: str, owner: type, encoding: object) -> typing.Iterator[str]:
    origin = get_origin(option)
    if option is Any:
        return
    if option is type(None):
        fits = value is None
    elif origin is Literal:
        fits = value in get_args(option)
    elif origin in (list, list):
        if isinstance(value, list):
            for number, one in enumerate(value):
                yield from _value(get_args(option)[0], one, f"{at}[{number}]", owner, encoding)
            return
        fits = False
    elif (origin is not None and origin is UntypedStripeObject) or option is UntypedStripeObject:
        fits = isinstance(value, dict)
    elif origin is not None:  # ListObject["LineItem"]
        if not isinstance(value, dict) or value.get("object") != "list":
            yield f"{at}: {value!r} is no list object"
            return
        for number, one in enumerate(value["data"]):
            yield from _value(get_args(option)[0], one, f"{at}.data[{number}]", owner, None)
        return
    elif option is Decimal:
        fits = encoding == "decimal_string" and _is_decimal(value)
    elif option is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif option in (str, bool):
        fits = isinstance(value, option)
    elif option is float:
        fits = isinstance(value, float | int)
    elif inspect.isclass(option) and issubclass(option, StripeObject):
        yield from _object(option, value, at)
        return
    else:
        yield f"{at}: the check does not know the kind {option!r}"
        return
    if not fits:
        yield f"{at}: {value!r} is not {option}"


def _options(kind: Any) -> tuple[Any, ...]:
    """A union's members, nested unions flattened; the kind itself otherwise."""
    if get_origin(kind) is Union:
        return tuple(inner for option in get_args(kind) for inner in _options(option))
    return (kind,)


@cache
def _annotations(declared: type[StripeObject]) -> dict[str, Any]:
    """Attributes of the object itself: no class variables, nothing of the machinery above it."""
    return {
        name: kind
        for name, kind in inspect.get_annotations(declared).items()
        if not name.startswith("_") and get_origin(kind) is not typing.ClassVar
    }


def _resolve(option: Any, owner: type) -> Any:
    """A class named in quotes, imported from where its module says it would be for type checkers."""
    if not isinstance(option, ForwardRef | str):
        return option
    name = option.__forward_arg__ if isinstance(option, ForwardRef) else option
    module, attribute = _quoted_imports(owner.__module__)[name]
    return getattr(import_module(module), attribute)


@cache
def _quoted_imports(module_name: str) -> dict[str, tuple[str, str]]:
    source = inspect.getsource(sys.modules[module_name])
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _is_decimal(value: object) -> bool:
    try:
        return isinstance(value, str) and Decimal(value).is_finite()
    except InvalidOperation:
        return False
