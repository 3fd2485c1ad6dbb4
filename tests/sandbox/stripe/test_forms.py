"""Brackets, as Stripe's library writes them and as people get them wrong."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stripe._encode import _api_encode

from services.sandbox.stripe.forms import DEPTH_MAX, as_nodes, decode
from services.sandbox.stripe.refusals import StripeRefusal


def read(query: str) -> object:
    return decode(parse_qsl(query, keep_blank_values=True))


@pytest.mark.parametrize(
    ("query", "tree"),
    [
        ("a=1&b=", {"a": "1", "b": ""}),
        ("a[b][c]=1&a[b][d]=2", {"a": {"b": {"c": "1", "d": "2"}}}),
        ("d[0][coupon]=c&d[1][discount]=di", {"d": {"0": {"coupon": "c"}, "1": {"discount": "di"}}}),
        ("e[]=x&e[]=y", {"e": {"0": "x", "1": "y"}}),
        ("a=1&a=2", {"a": "2"}),
        ("m%5Bk%5D=1", {"m": {"k": "1"}}),
        ("m[2]=two", {"m": {"2": "two"}}),
        ("a[b=1", {"a[b": "1"}),
        ("[a]=1", {"[a]": "1"}),
        ("a[b]c=1", {"a[b]c": "1"}),
    ],
)
def test_a_form_becomes_a_tree(query: str, tree: object) -> None:
    assert read(query) == tree


@pytest.mark.parametrize("query", ["a=1&a[b]=2", "a[b]=2&a=1", "a[b]=1&a[b][c]=2"])
def test_a_name_is_a_value_or_a_container(query: str) -> None:
    with pytest.raises(StripeRefusal, match="Invalid parameter nesting"):
        read(query)


def test_nesting_ends_somewhere() -> None:
    with pytest.raises(StripeRefusal, match="too deeply"):
        read("a" + "[b]" * DEPTH_MAX + "=1")


texts = st.text(st.characters(codec="utf-8", exclude_characters="[]"), min_size=1, max_size=8)
trees = st.recursive(
    st.one_of(st.text(max_size=8), st.integers(), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(texts, inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(texts, trees, max_size=4))
def test_what_the_library_encodes_is_what_we_read(params: dict[str, object]) -> None:
    pairs = [
        (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in _api_encode(params)
    ]
    assert decode(pairs) == as_nodes(params)
