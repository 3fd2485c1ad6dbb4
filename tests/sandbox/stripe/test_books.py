"""Lists by cursor, and bounds on instants."""

from typing import Any

import pytest

from services.sandbox.stripe.books import page, within
from services.sandbox.stripe.refusals import StripeRefusal

ROWS = {f"o_{number}": {"id": f"o_{number}", "odd": bool(number % 2)} for number in range(1, 8)}


def ids(params: dict[str, Any], *, odd: bool = False) -> tuple[list[str], bool]:
    answer = page(ROWS, params, "/v1/os", lambda row: row["odd"] or not odd)
    assert (answer["object"], answer["url"]) == ("list", "/v1/os")
    return [row["id"].removeprefix("o_") for row in answer["data"]], answer["has_more"]


@pytest.mark.parametrize(
    ("params", "odd", "expected"),
    [
        ({}, False, (list("7654321"), False)),
        ({"limit": 3}, False, (list("765"), True)),
        ({"limit": 7}, False, (list("7654321"), False)),
        ({"limit": 3, "starting_after": "o_5"}, False, (list("432"), True)),
        ({"limit": 3, "starting_after": "o_4"}, False, (list("321"), False)),
        ({"starting_after": "o_1"}, False, ([], False)),
        ({"limit": 2, "ending_before": "o_4"}, False, (list("65"), True)),
        ({"limit": 3, "ending_before": "o_4"}, False, (list("765"), False)),
        ({"limit": 2}, True, (list("75"), True)),
        ({"limit": 2, "starting_after": "o_4"}, True, (list("31"), False)),
        ({"limit": 1, "ending_before": "o_4"}, True, (list("5"), True)),
    ],
)
def test_a_page(params: dict[str, Any], odd: bool, expected: tuple[list[str], bool]) -> None:
    assert ids(params, odd=odd) == expected


def test_walking_by_cursor_sees_everything_once() -> None:
    seen: list[str] = []
    more = True
    while more:
        cursor = {"starting_after": f"o_{seen[-1]}"} if seen else {}
        found, more = ids({"limit": 2} | cursor)
        seen += found
    assert seen == list("7654321")


def test_a_cursor_must_be_a_row_and_alone() -> None:
    with pytest.raises(StripeRefusal, match="No such object: 'o_9'"):
        ids({"starting_after": "o_9"})
    with pytest.raises(StripeRefusal, match="both"):
        ids({"starting_after": "o_1", "ending_before": "o_2"})


@pytest.mark.parametrize(
    ("span", "fits"),
    [
        (None, True),
        ({"gt": 9}, True),
        ({"gt": 10}, False),
        ({"gte": 10}, True),
        ({"gte": 11}, False),
        ({"lt": 11}, True),
        ({"lt": 10}, False),
        ({"lte": 10}, True),
        ({"lte": 9}, False),
        ({"gte": 10, "lte": 10}, True),
        ({"gt": 5, "lt": 8}, False),
    ],
)
def test_bounds(span: dict[str, int] | None, fits: bool) -> None:
    assert within(10, span) is fits
