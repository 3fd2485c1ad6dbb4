"""Whether a new schema breaks who wrote or read by the old one.

A message outlives a release: writers of the old schema still write while readers of the new one read, and the other way
round. A change is fine when neither side refuses what the other writes. Of JSON Schema this knows what pydantic makes;
a keyword it does not know may only stay as it is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Schema = Mapping[str, Any]

# Says something to people, forbids nothing.
SILENT: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$defs", "$comment"}
)
LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
STRUCTURE: Final = frozenset(
    {"$ref", "anyOf", "oneOf", "type", "enum", "const", "properties", "required", "additionalProperties", "items"}
)
KNOWN: Final = SILENT | STRUCTURE | frozenset(LEAST) | frozenset(MOST)


class Border(StrEnum):
    """Who stands on the other side of it."""

    TOPIC = "topic"
    """Writers and readers of other releases."""
    REQUEST = "request"
    """Writers: their clients, our server."""
    RESPONSE = "response"
    """Readers: our server, their clients."""


def breaks(old: Schema, new: Schema, border: Border) -> list[str]:
    """What is wrong with replacing ``old`` by ``new``, a sentence each; empty: nothing."""
    found = [f"field {path} was removed" for path in sorted(_fields(old) - _fields(new))]
    if border is not Border.RESPONSE:
        found += [f"breaks a writer: {reason}" for reason in _Pair(old, new).refusals()]
    if border is not Border.REQUEST:
        found += [f"breaks a reader: {reason}" for reason in _Pair(new, old).refusals()]
    return found


def _fields(root: Schema) -> set[str]:
    """The path of every field, through references and lists."""

    def walk(schema: Schema, path: str, above: frozenset[str]) -> Iterator[str]:
        reference = str(schema.get("$ref", ""))
        if reference in above:
            return
        inner = _resolved(root, schema)
        above = above | {reference} if reference else above
        for name, field in inner.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from walk(field, f"{path}.{name}", above)
        for more in [inner.get("items"), inner.get("additionalProperties"), *inner.get("anyOf", [])]:
            if isinstance(more, Mapping):
                yield from walk(more, path, above)

    return set(walk(root, "$", frozenset()))


def _resolved(root: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        target: Any = root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[step]
        schema = target
    return schema


@dataclass(frozen=True, slots=True)
class _Pair:
    """Values written by one schema, read by the other."""

    written: Schema
    read: Schema

    def refusals(self) -> Iterator[str]:
        """Why a value of ``written`` may be refused by ``read``."""
        return self._refusals(self.written, self.read, "$", frozenset())

    def _refusals(self, written: Schema, read: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        both = (str(written.get("$ref", "")), str(read.get("$ref", "")))
        if all(both):
            if both in seen:
                return
            seen = seen | {both}
        written, read = _resolved(self.written, written), _resolved(self.read, read)
        if "anyOf" in written or "anyOf" in read or "oneOf" in written or "oneOf" in read:
            yield from self._alternatives(written, read, at, seen)
            return
        yield from _values(written, read, at)
        yield from _bounds(written, read, at)
        yield from self._object(written, read, at, seen)
        if isinstance(read.get("items"), Mapping):
            yield from self._refusals(written.get("items", {}), read["items"], f"{at}[]", seen)

    def _alternatives(self, written: Schema, read: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        for given in _choices(written):
            if all(any(self._refusals(given, taken, at, seen)) for taken in _choices(read)):
                yield f"{at} no longer takes {_described(_resolved(self.written, given))}"

    def _object(self, written: Schema, read: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        for name in sorted(set(read.get("required", ())) - set(written.get("required", ()))):
            yield f"{at}.{name} is required and may be absent"
        ours, theirs = read.get("properties", {}), written.get("properties", {})
        for name in sorted(set(ours) & set(theirs)):
            yield from self._refusals(theirs[name], ours[name], f"{at}.{name}", seen)
        further = read.get("additionalProperties", True)
        if further is False:
            if written.get("additionalProperties", True) is not False:
                yield f"{at} refuses fields it does not know"
            for name in sorted(set(theirs) - set(ours)):
                yield f"{at}.{name} is not known"
        elif isinstance(further, Mapping):
            given = written.get("additionalProperties", True)
            yield from self._refusals(given if isinstance(given, Mapping) else {}, further, f"{at}.*", seen)


def _choices(schema: Schema) -> list[Schema]:
    choices: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return choices


def _described(schema: Schema) -> str:
    return str(schema.get("title") or schema.get("type") or schema.get("const") or schema.get("enum") or "a value")


def _values(written: Schema, read: Schema, at: str) -> Iterator[str]:
    """Types, enumerations, and keywords nobody here can weigh."""
    taken, given = _types(read), _types(written)
    listed, offered = _listed(read), _listed(written)
    untyped = not given and offered is None
    if taken and (untyped or not given <= taken | ({"integer"} if "number" in taken else set())):
        yield f"{at} was {'/'.join(sorted(given)) or 'anything'}, is {'/'.join(sorted(taken))}"
    if listed is not None and offered is None:
        yield f"{at} takes only {', '.join(map(repr, listed))}"
    elif listed is not None and offered is not None and (missing := [one for one in offered if one not in listed]):
        yield f"{at} no longer takes {', '.join(map(repr, missing))}"
    for keyword in sorted(set(read) - KNOWN):
        if read[keyword] != written.get(keyword):
            yield f"{at} has another {keyword}"


def _types(schema: Schema) -> set[str]:
    declared = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


def _listed(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _bounds(written: Schema, read: Schema, at: str) -> Iterator[str]:
    for keyword in LEAST:
        if keyword in read and not (keyword in written and written[keyword] >= read[keyword]):
            yield f"{at} has the {keyword} {read[keyword]}"
    for keyword in MOST:
        if keyword in read and not (keyword in written and written[keyword] <= read[keyword]):
            yield f"{at} has the {keyword} {read[keyword]}"
