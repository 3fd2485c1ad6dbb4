"""The yardstick itself: every kind of deviation is found, nested ones and expanded ones too."""

import copy
from typing import Any

import pytest
from stripe import Event
from stripe.checkout import Session

from services.sandbox.stripe.expansion import expand
from services.sandbox.world import World
from tests.sandbox.stripe.sdk_types import Contradicts, check


@pytest.fixture
def shown(world: World, session_id: str) -> dict[str, Any]:
    world.buyer.complete(session_id)
    session = world.books.get("checkout.session", session_id)
    return expand(session, ["line_items", "payment_intent"], world.books)


def deviation(shown: dict[str, Any], path: list[str | int], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(shown)
    node: Any = changed
    for step in path[:-1]:
        node = node[step]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["expires_at"], ..., "Session.expires_at: declared without Optional, but missing"),
        (["custom_text"], None, "Session.custom_text"),
        (["payment_status"], "payed", "Session.payment_status: 'payed'"),
        (["status"], "closed", "Session.status: 'closed'"),
        (["object"], "session", "Session.object"),
        (["created"], "1", "Session.created: '1'"),
        (["livemode"], 0, "Session.livemode: 0"),
        (["created"], True, "Session.created: True"),
        (["display_items"], [], "Session.display_items: not declared"),
        (["automatic_tax", "enabled"], ..., "Session.automatic_tax.enabled"),
        (["custom_fields"], [{"key": "k"}], "Session.custom_fields"),
        (["metadata"], [], "Session.metadata"),
        (["line_items", "object"], "array", "Session.line_items"),
        (["line_items", "data", 0, "amount_total"], None, "Session.line_items.data[0].amount_total"),
        (["line_items", "data", 0, "price", "unit_amount_decimal"], 49.5, "price.unit_amount_decimal"),
        (["line_items", "data", 0, "price", "type"], "once", "price.type: 'once'"),
        (["payment_intent", "status"], "done", "Session.payment_intent.status: 'done'"),
        (["shipping_options"], {}, "Session.shipping_options"),
        (["customer"], 5, "Session.customer: 5"),
    ],
)
def test_a_deviation_is_found_and_named(shown: dict[str, Any], path: list[str | int], value: object, said: str) -> None:
    check(Session, shown)
    with pytest.raises(Contradicts) as found:
        check(Session, deviation(shown, path, value))
    assert said in str(found.value)


def test_an_event_of_an_unknown_type_is_found(world: World, session_id: str) -> None:
    world.buyer.complete(session_id)
    event = next(iter(world.books.table("event").values()))
    check(Event, event)
    with pytest.raises(Contradicts, match=r"Event\.type: 'checkout\.session\.finished'"):
        check(Event, event | {"type": "checkout.session.finished"})
