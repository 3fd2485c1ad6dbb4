"""Statements with one thing removed.

The text is edited, never regenerated: what is tested is the statement as it is written. A conjunct becomes ``true``; a
parameter that stood nowhere else keeps its type in a condition that is always true.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*) | (?P<string>'(?:[^']|'')*') | (?P<word>[A-Za-z_][\w.]*) | (?P<parameter>\$\d+)
    | (?P<number>\d[\d.]*) | (?P<other>\S)""",
    re.VERBOSE,
)
_CLAUSES = frozenset(
    {
        *(
            "cross",
            "do",
            "except",
            "for",
            "from",
            "group",
            "having",
            "inner",
            "intersect",
            "join",
            "left",
            "limit",
            "offset",
        ),
        *("on", "order", "returning", "right", "set", "union", "values", "where", "window"),
    }
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, sign or literal of a statement; ``depth`` counts the brackets and CASEs around it."""

    text: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """``name`` is unique in its statement and says what is gone."""

    name: str
    text: str


def mutants(text: str, types: Mapping[str, str]) -> list[Mutant]:
    """All statements that ``text`` becomes by losing one thing. ``types``: of its parameters, by ``$n``."""
    found = [*_conjuncts(text, types), *_conflicts(text)]
    if re.search(r"\bedge = 'claim'", text):
        found += _claim_parts(text)
    named: dict[str, Mutant] = {}
    for mutant in found:
        name, nth = mutant.name, 2
        while name in named:
            name, nth = f"{mutant.name} ({nth})", nth + 1
        named[name] = Mutant(name, mutant.text)
    return list(named.values())


def tokens(text: str) -> list[Token]:
    """The tokens of a statement, comments left out."""
    found: list[Token] = []
    depth = 0
    for match in _TOKEN.finditer(text):
        word = match.group()
        if match.lastgroup == "comment":
            continue
        if word == ")" or (word == "end" and match.lastgroup == "word"):
            depth -= 1
        found.append(Token(word, match.start(), match.end(), depth))
        if word == "(" or (word == "case" and match.lastgroup == "word"):
            depth += 1
    return found


def _conjuncts(text: str, types: Mapping[str, str]) -> Iterator[Mutant]:
    stream = tokens(text)
    for nth, token in enumerate(stream):
        joins = token.text == "on" and stream[nth + 1].text not in ("conflict", "(")
        if token.text == "where" or joins:
            for start, end in _split(stream, nth + 1):
                gone = text[start:end]
                rest = text[:start] + text[end:]
                yield Mutant(f"without {_short(gone)}", text[:start] + _always(gone, rest, types) + text[end:])


def _split(stream: Sequence[Token], first: int) -> Iterator[tuple[int, int]]:
    """The conjuncts of the condition that begins at ``first``, as spans of the text."""
    depth = stream[first].depth
    start, between = first, False
    last = first
    for nth in range(first, len(stream)):
        token = stream[nth]
        closes = token.depth < depth
        if token.depth == depth and not closes:
            if token.text == "between":
                between = True
            elif token.text == "and" and between:
                between = False
            elif token.text == "and":
                yield stream[start].start, stream[last].end
                start = nth + 1
            elif token.text in _CLAUSES and stream[nth - 1].text != "distinct":
                closes = True
        if closes:
            break
        last = nth
    yield stream[start].start, stream[last].end


def _always(gone: str, rest: str, types: Mapping[str, str]) -> str:
    """``true``, and a mention of each parameter that would otherwise have lost its type."""
    lost = sorted(set(re.findall(r"\$\d+", gone)) - set(re.findall(r"\$\d+", rest)))
    return " and ".join(["true", *(f"({name}::{types[name]} is null or true)" for name in lost)])


def _conflicts(text: str) -> Iterator[Mutant]:
    for match in re.finditer(r"on conflict(\s*\([^)]*\))? do nothing", text):
        yield Mutant("without on conflict do nothing", text[: match.start()] + text[match.end() :])


def _claim_parts(text: str) -> Iterator[Mutant]:
    """What makes a claim a claim, one at a time."""
    for name, pattern, instead in (
        ("waiting for locked rows", r"\bskip locked\b", ""),
        ("locking against children too", r"\bfor no key update\b", "for update"),
        ("taking no lock", r"\bfor no key update skip locked\b", ""),
        ("in no order", r"\border by .*?(?=\s+limit\b)", ""),
        ("without a limit", r"\blimit (\$\d+|\d+)", r"limit 1000000 + 0 * coalesce(0, \1)"),
        ("keeping the token", r"\bclaim_token = (\w+\.claim_token) \+ 1", r"claim_token = \1"),
        ("keeping the outcome's token", r",\s*outcome_token = null", ""),
    ):
        if match := re.search(pattern, text, re.DOTALL):
            yield Mutant(name, text[: match.start()] + match.expand(instead) + text[match.end() :])


def _short(text: str) -> str:
    return f"`{' '.join(text.split())}`"
