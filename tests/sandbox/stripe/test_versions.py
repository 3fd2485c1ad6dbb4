"""Walking back through the breaking changes."""

import pytest

from services.sandbox.stripe.books import API_VERSION
from services.sandbox.stripe.versions import is_known, render, render_event
from services.sandbox.world import World

ADDRESS = {"address": {"city": "Oslo"}, "name": "Ada"}


@pytest.mark.parametrize(
    ("version", "ui_mode", "present", "absent"),
    [
        ("2020-08-27", "hosted", {"shipping", "shipping_rate"}, {"collected_information", "shipping_details"}),
        ("2022-08-01", "hosted", {"shipping_details", "shipping_cost"}, {"collected_information", "shipping"}),
        ("2025-03-31.basil", "hosted", {"collected_information"}, {"shipping_details"}),
        ("2026-03-25.dahlia", "hosted_page", {"collected_information"}, {"shipping_details"}),
        (API_VERSION, "hosted_page", {"collected_information"}, {"shipping_details"}),
        ("2031-01-01.zinnia", "hosted_page", {"collected_information"}, {"shipping_details"}),
    ],
)
def test_a_session_in_a_version(
    world: World, session_id: str, version: str, ui_mode: str, present: set[str], absent: set[str]
) -> None:
    session = world.books.get("checkout.session", session_id)
    session["collected_information"] = {"shipping_details": ADDRESS}
    session["shipping_cost"] = {"shipping_rate": "shr_1"}
    shown = render(session, version)
    assert shown["ui_mode"] == ui_mode
    assert present <= shown.keys()
    assert not absent & shown.keys()
    where = shown.get("shipping") or shown.get("shipping_details") or shown["collected_information"]["shipping_details"]
    assert where == ADDRESS
    assert shown.get("shipping_rate", "shr_1") == "shr_1"
    assert session["ui_mode"] == "hosted_page", "the original is untouched"


@pytest.mark.parametrize(("now", "then"), [("embedded_page", "embedded"), ("elements", "custom"), ("form", "form")])
def test_every_ui_mode_has_its_old_name(world: World, session_id: str, now: str, then: str) -> None:
    session = world.books.get("checkout.session", session_id)
    session["ui_mode"] = now
    assert render(session, "2025-09-30.clover")["ui_mode"] == then


@pytest.mark.parametrize(("version", "there"), [("2025-02-24.acacia", True), ("2025-03-31.basil", False)])
def test_a_charge_once_named_its_invoice(world: World, session_id: str, version: str, there: bool) -> None:
    world.buyer.complete(session_id)
    (charge,) = world.books.table("charge").values()
    assert ("invoice" in render(charge, version)) == there


def test_an_event_is_changed_inside_and_says_its_version(world: World, session_id: str) -> None:
    world.buyer.complete(session_id)
    event = next(row for row in world.books.table("event").values() if row["type"] == "checkout.session.completed")
    old = render_event(event, "2020-08-27")
    assert (old["api_version"], old["data"]["object"]["ui_mode"]) == ("2020-08-27", "hosted")
    assert old["data"]["object"]["shipping"] is None
    assert event["api_version"] == API_VERSION


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2020-08-27", True),
        ("2025-09-30.clover", True),
        (API_VERSION, True),
        ("2026-10-29", False),
        ("2031-01-01.zinnia", False),
        ("clover", False),
        ("2025-9-30", False),
        ("", False),
    ],
)
def test_which_versions_stripe_has(version: str, known: bool) -> None:
    assert is_known(version) is known
