"""One case for each way in which a change of schema breaks somebody, and for each that breaks nobody."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from schemas.compatibility import Border, breaks


def model(forbid: bool = False, **fields: Any) -> dict[str, Any]:
    config = ConfigDict(extra="forbid" if forbid else "ignore")
    schema: dict[str, Any] = create_model("Message", __config__=config, **fields).model_json_schema()
    return schema


def check(old: dict[str, Any], new: dict[str, Any]) -> dict[Border, list[str]]:
    return {border: breaks(old, new, border) for border in Border}


class Inner(BaseModel):
    """A nested part."""

    kind: Literal["a", "b"]
    amount_minor: int


class NarrowerInner(BaseModel):
    """A nested part."""

    kind: Literal["a"]
    amount_minor: int


class Tree(BaseModel):
    """Refers to itself."""

    name: str
    children: list["Tree"] = []


class OtherTree(BaseModel):
    """Refers to itself."""

    name: int
    children: list["OtherTree"] = []


ID = (int, ...)
BOTH = {Border.TOPIC, Border.REQUEST, Border.RESPONSE}
WRITER = {Border.TOPIC, Border.REQUEST}
READER = {Border.TOPIC, Border.RESPONSE}

BREAKING: list[tuple[str, dict[str, Any], dict[str, Any], set[Border], str]] = [
    ("required field removed", model(id=ID, at=(str, ...)), model(id=ID), BOTH, "field $.at was removed"),
    ("optional field removed", model(id=ID, at=(str, "")), model(id=ID), BOTH, "field $.at was removed"),
    (
        "nested field removed",
        model(one=(Inner, ...)),
        model(one=(create_model("Inner", kind=(str, ...)), ...)),
        BOTH,
        "field $.one.amount_minor was removed",
    ),
    ("field renamed", model(id=ID), model(event_id=ID), BOTH, "field $.id was removed"),
    ("new required field", model(id=ID), model(id=ID, at=(str, ...)), WRITER, "$.at is required and may be absent"),
    ("optional became required", model(at=(str, "")), model(at=(str, ...)), WRITER, "$.at is required"),
    ("required became optional", model(at=(str, ...)), model(at=(str, "")), READER, "$.at is required"),
    ("another type", model(id=ID), model(id=(str, ...)), BOTH, "$.id was "),
    ("number became integer", model(id=(float, ...)), model(id=ID), WRITER, "$.id was number, is integer"),
    ("integer became number", model(id=ID), model(id=(float, ...)), READER, "$.id was number, is integer"),
    ("null no longer taken", model(at=(str | None, ...)), model(at=(str, ...)), WRITER, "$.at no longer takes null"),
    ("null newly written", model(at=(str, ...)), model(at=(str | None, ...)), READER, "$.at no longer takes null"),
    ("enum narrowed", model(a=(Literal["x", "y"], ...)), model(a=(Literal["x"], ...)), WRITER, "no longer takes 'y'"),
    ("enum widened", model(a=(Literal["x"], ...)), model(a=(Literal["x", "y"], ...)), READER, "no longer takes 'y'"),
    ("text became an enum", model(a=(str, ...)), model(a=(Literal["x", "y"], ...)), WRITER, "$.a takes only 'x', 'y'"),
    ("constant changed", model(a=(Literal["x"], ...)), model(a=(Literal["y"], ...)), BOTH, "$.a no longer takes"),
    (
        "nested enum narrowed",
        model(one=(Inner, ...)),
        model(one=(NarrowerInner, ...)),
        WRITER,
        "$.one.kind no longer takes 'b'",
    ),
    (
        "list of nested narrowed",
        model(all=(list[Inner], ...)),
        model(all=(list[NarrowerInner], ...)),
        WRITER,
        "$.all[].kind",
    ),
    ("items of another type", model(ids=(list[int], ...)), model(ids=(list[str], ...)), BOTH, "$.ids[] was "),
    ("untyped items typed", model(ids=(list[Any], ...)), model(ids=(list[str], ...)), WRITER, "$.ids[] was anything"),
    ("map values of another type", model(m=(dict[str, int], ...)), model(m=(dict[str, str], ...)), BOTH, "$.m.* was "),
    ("minimum raised", model(n=(int, Field(ge=1))), model(n=(int, Field(ge=2))), WRITER, "$.n has the minimum 2"),
    ("minimum added", model(n=ID), model(n=(int, Field(ge=2))), WRITER, "$.n has the minimum 2"),
    ("minimum lowered", model(n=(int, Field(ge=2))), model(n=(int, Field(ge=1))), READER, "$.n has the minimum 2"),
    ("maximum lowered", model(n=(int, Field(le=9))), model(n=(int, Field(le=5))), WRITER, "$.n has the maximum 5"),
    ("maximum dropped", model(n=(int, Field(le=9))), model(n=ID), READER, "$.n has the maximum 9"),
    ("shorter text", model(a=(str, Field(max_length=9))), model(a=(str, Field(max_length=5))), WRITER, "maxLength 5"),
    (
        "fewer items",
        model(a=(list[int], Field(max_length=9))),
        model(a=(list[int], Field(max_length=5))),
        WRITER,
        "maxItems 5",
    ),
    ("at least one item", model(a=(list[int], ...)), model(a=(list[int], Field(min_length=1))), WRITER, "minItems 1"),
    ("pattern added", model(a=(str, ...)), model(a=(str, Field(pattern="^x"))), WRITER, "$.a has another pattern"),
    ("pattern changed", model(a=(str, Field(pattern="^x"))), model(a=(str, Field(pattern="^y"))), BOTH, "pattern"),
    ("unknown fields refused", model(id=ID), model(forbid=True, id=ID), WRITER, "$ refuses fields it does not know"),
    (
        "field added where unknown ones are refused",
        model(forbid=True, id=ID),
        model(forbid=True, id=ID, at=(str, "")),
        READER,
        "$.at is not known",
    ),
    ("recursive part changed", Tree.model_json_schema(), OtherTree.model_json_schema(), BOTH, "$.name was"),
]

HARMLESS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nothing", model(id=ID, one=(Inner, ...)), model(id=ID, one=(Inner, ...))),
    ("optional field added", model(id=ID), model(id=ID, at=(str, ""))),
    ("optional nested part added", model(id=ID), model(id=ID, one=(Inner | None, None))),
    ("words", model(id=(int, Field(description="old", title="Old"))), model(id=(int, Field(description="new")))),
    ("another default", model(at=(str, "a")), model(at=(str, "b"))),
    ("another order of fields", model(a=ID, b=ID), model(b=ID, a=ID)),
    ("another order of choices", model(a=(int | str, ...)), model(a=(str | int, ...))),
    ("another name of a part", model(a=(Inner, ...)), model(a=(create_model("Renamed", __base__=Inner), ...))),
    ("recursive part", Tree.model_json_schema(), Tree.model_json_schema()),
]


@pytest.mark.parametrize(
    ("old", "new", "hurt", "reason"), [case[1:] for case in BREAKING], ids=[c[0] for c in BREAKING]
)
def test_a_breaking_change_is_found_on_the_borders_it_breaks(
    old: dict[str, Any], new: dict[str, Any], hurt: set[Border], reason: str
) -> None:
    found = check(old, new)
    assert {border for border, reasons in found.items() if reasons} == hurt
    assert all(any(reason in one for one in found[border]) for border in hurt), found


@pytest.mark.parametrize(("old", "new"), [case[1:] for case in HARMLESS], ids=[case[0] for case in HARMLESS])
def test_a_harmless_change_is_none(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert check(old, new) == {border: [] for border in Border}


def test_who_is_hurt_is_said() -> None:
    assert breaks(model(id=ID), model(id=ID, at=(str, ...)), Border.TOPIC) == [
        "breaks a writer: $.at is required and may be absent"
    ]
    assert breaks(model(at=(str, ...)), model(at=(str, "")), Border.TOPIC) == [
        "breaks a reader: $.at is required and may be absent"
    ]


def test_a_keyword_nobody_can_weigh_may_only_stay() -> None:
    plain, odd = {"type": "string"}, {"type": "string", "contentEncoding": "base64"}
    assert breaks(odd, odd, Border.TOPIC) == []
    assert breaks(plain, odd, Border.REQUEST) == ["breaks a writer: $ has another contentEncoding"]
    assert breaks(odd, plain, Border.RESPONSE) == ["breaks a reader: $ has another contentEncoding"]
