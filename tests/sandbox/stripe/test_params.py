"""Reading parameters, and refusing them with their full name."""

from typing import Any

import pytest

from services.sandbox.stripe.forms import as_nodes
from services.sandbox.stripe.params import Choice, Flag, Group, Kind, Many, Metadata, Span, Text, Whole
from services.sandbox.stripe.refusals import StripeRefusal

GROUP = Group(
    {"name": Text(5), "items": Many(Group({"amount": Whole(1, 9)}, required=frozenset({"amount"})), most=2)},
    required=frozenset({"name"}),
    elsewhere=frozenset({"tax"}),
)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Text(), "x", "x"),
        (Whole(), 7, 7),
        (Whole(-5), -5, -5),
        (Flag(), True, True),
        (Flag(), "false", False),
        (Choice(("a", "b")), "b", "b"),
        (Metadata(), {"k": "v", "7": ""}, {"k": "v", "7": ""}),
        (Metadata(), "", {}),
        (Many(Text()), ["a", "b"], ["a", "b"]),
        (Many(Text()), "", []),
        (Many(Text()), {"10": "b", "2": "a"}, ["a", "b"]),
        (Span(), 5, {"gte": 5, "lte": 5}),
        (Span(), {"gt": 1, "lte": 4}, {"gt": 1, "lte": 4}),
        (GROUP, {"name": "n", "items": [{"amount": 3}]}, {"name": "n", "items": [{"amount": 3}]}),
    ],
)
def test_what_is_right_is_read(kind: Kind, value: Any, read: Any) -> None:
    assert kind.read(as_nodes(value), "p") == read


@pytest.mark.parametrize(
    ("kind", "value", "param", "code"),
    [
        (Text(), "", "p", "parameter_invalid_empty"),
        (Text(), {"a": "b"}, "p", None),
        (Text(3), "four", "p", "parameter_invalid_string"),
        (Whole(), "1.5", "p", "parameter_invalid_integer"),
        (Whole(), -1, "p", "parameter_invalid_integer"),
        (Whole(0, 5), 6, "p", "parameter_invalid_integer"),
        (Flag(), "yes", "p", None),
        (Choice(("a",)), "b", "p", None),
        (Metadata(), "text", "p", None),
        (Metadata(), {"k": {"deep": "er"}}, "p[k]", None),
        (Metadata(), {str(number): "v" for number in range(51)}, "p", None),
        (Metadata(), {"k" * 41: "v"}, "p", None),
        (Metadata(), {"k": "v" * 501}, "p[k]", None),
        (Many(Text()), "one", "p", None),
        (Many(Text()), {"a": "b"}, "p", None),
        (Many(Text(), most=1), ["a", "b"], "p", None),
        (Span(), {"over": 5}, "p[over]", "parameter_unknown"),
        (GROUP, "text", "p", None),
        (GROUP, {}, "p[name]", "parameter_missing"),
        (GROUP, {"name": "n", "coupon": "c"}, "p[coupon]", "parameter_unknown"),
        (GROUP, {"name": "n", "tax": "t"}, "p[tax]", "sandbox_not_played"),
        (
            GROUP,
            {"name": "n", "items": [{"amount": 1}, {"amount": 10}]},
            "p[items][1][amount]",
            "parameter_invalid_integer",
        ),
        (GROUP, {"name": "n", "items": [{}]}, "p[items][0][amount]", "parameter_missing"),
        (GROUP, {"name": "n", "items": [{"amount": 1, "x": 1}]}, "p[items][0][x]", "parameter_unknown"),
    ],
)
def test_what_is_wrong_is_named(kind: Kind, value: Any, param: str, code: str | None) -> None:
    with pytest.raises(StripeRefusal) as refused:
        kind.read(as_nodes(value), "p")
    error = refused.value.error
    assert (error["param"], error.get("code"), error["type"]) == (param, code, "invalid_request_error")
    assert refused.value.status == 400
    assert not refused.value.saved, "nothing began to execute"
    assert ("doc_url" in error) == (code is not None)


def test_at_the_top_a_parameter_has_its_own_name() -> None:
    with pytest.raises(StripeRefusal) as refused:
        GROUP.read({})
    assert refused.value.error["param"] == "name"
