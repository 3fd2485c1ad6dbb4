"""What is read of Stripe's objects: as little as possible, and nothing that the database could not keep."""

import pytest
from pydantic import BaseModel, ValidationError

from schemas.stripe import Charge, ChargeEvent, CheckoutSession, FulfillmentMetadata, NewCheckoutSession, SessionEvent

SESSION = {"object": "checkout.session", "id": "cs_test_a1", "payment_status": "paid"}


def test_an_event_is_believed_about_its_sessions_id_alone() -> None:
    event = SessionEvent.model_validate(
        {"id": 7, "api_version": "2020-08-27", "data": {"object": SESSION | {"metadata": "?"}}}
    )
    assert event.data.object.model_dump() == {"object": "checkout.session", "id": "cs_test_a1"}


@pytest.mark.parametrize("session_id", ["", "cs_", "pi_1", "cs_a/b", "cs_a b", "cs_a\n", "cs_" + "a" * 251, 7, None])
def test_a_session_id_is_one_plain_word(session_id: object) -> None:
    with pytest.raises(ValidationError):
        SessionEvent.model_validate({"data": {"object": {"object": "checkout.session", "id": session_id}}})


@pytest.mark.parametrize(
    ("details", "typed", "email"),
    [
        ({"email": "details@example.com"}, "given@example.com", "details@example.com"),
        ({"email": None}, "given@example.com", "given@example.com"),
        ({"email": ""}, "", None),
        (None, "given@example.com", "given@example.com"),
        (None, None, None),
    ],
)
def test_a_buyer_is_reached_where_they_said(details: object, typed: str | None, email: str | None) -> None:
    session = CheckoutSession.model_validate(SESSION | {"customer_details": details, "customer_email": typed})
    assert session.email == email


@pytest.mark.parametrize(
    ("metadata", "mark"),
    [(None, None), ({}, None), ({"rowclaim_slice": ""}, None), ({"rowclaim_slice": "rewards"}, "rewards")],
)
def test_a_session_bears_its_slices_mark_or_none(metadata: object, mark: str | None) -> None:
    assert CheckoutSession.model_validate(SESSION | {"metadata": metadata}).rowclaim_slice == mark


@pytest.mark.parametrize(
    ("metadata", "handle", "account_id"),
    [
        ({}, None, None),
        ({"github_username": "", "github_account_id": ""}, None, None),
        ({"github_username": " Octo-Cat ", "github_account_id": "583231", "other": "x"}, " Octo-Cat ", 583231),
    ],
)
def test_a_username_is_kept_as_it_was_typed(metadata: object, handle: str | None, account_id: int | None) -> None:
    wanted = FulfillmentMetadata.model_validate(metadata)
    assert (wanted.github_username, wanted.github_account_id) == (handle, account_id)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (FulfillmentMetadata, {"github_username": "a\0"}),
        (FulfillmentMetadata, {"github_username": "a\ud800"}),
        (FulfillmentMetadata, {"github_account_id": "0"}),
        (FulfillmentMetadata, {"github_account_id": "12a"}),
        (FulfillmentMetadata, {"github_account_id": str(2**63)}),
        (CheckoutSession, SESSION | {"amount_total": -1}),
        (CheckoutSession, SESSION | {"payment_intent": "ch_1"}),
        (CheckoutSession, SESSION | {"payment_intent": {"id": None}}),
        (Charge, {"object": "charge", "id": "ch_1", "refunded": True}),
        (Charge, {"object": "charge", "id": "ch_1", "disputed": True}),
        (Charge, {"object": "charge", "id": "ch_1", "refunded": "perhaps", "disputed": False}),
        (NewCheckoutSession, {"object": "checkout.session", "id": "cs_1", "url": None}),
        (NewCheckoutSession, {"object": "checkout.session", "id": "cs_1", "url": "https://pay.test/\0"}),
        (CheckoutSession, SESSION | {"amount_total": 2**63}),
        (CheckoutSession, SESSION | {"currency": "us\0"}),
        (CheckoutSession, SESSION | {"customer_email": "a\ud800@example.com"}),
    ],
)
def test_what_the_database_could_not_keep_is_not_read(model: type[BaseModel], fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)


DISPUTE = {"object": "dispute", "id": "dp_1", "charge": "ch_1", "payment_intent": None, "status": "needs_response"}


@pytest.mark.parametrize(
    ("about", "charge_id"),
    [
        ({"object": "charge", "id": "ch_1", "refunded": True, "invoice": None, "refunds": {"data": []}}, "ch_1"),
        ({"object": "charge", "id": "py_1"}, "py_1"),
        (DISPUTE, "ch_1"),
        (DISPUTE | {"charge": "py_1"}, "py_1"),
        (DISPUTE | {"charge": {"object": "charge", "id": "ch_2"}}, "ch_2"),
    ],
)
@pytest.mark.parametrize("version", ["2018-02-28", "2020-08-27", "2026-10-28.endive", "2031-01-01.zinnia"])
def test_an_event_about_money_is_believed_about_its_charge_alone(about: object, charge_id: str, version: str) -> None:
    event = ChargeEvent.model_validate({"api_version": version, "data": {"object": about}})
    assert event.charge_id == charge_id


@pytest.mark.parametrize(
    "about",
    [
        None,
        [],
        {"object": "refund", "id": "re_1", "charge": "ch_1"},
        {"object": "charge"},
        {"object": "charge", "id": "pi_1"},
        {"object": "charge", "id": "ch_a/b"},
        {"object": "charge", "id": "ch_1\n"},
        DISPUTE | {"charge": None},
        DISPUTE | {"charge": {}},
        DISPUTE | {"charge": 7},
        {"id": "ch_1"},
    ],
)
def test_an_event_that_names_no_charge_is_not_read(about: object) -> None:
    with pytest.raises(ValidationError):
        ChargeEvent.model_validate({"data": {"object": about}})


@pytest.mark.parametrize(
    ("payment", "payment_id"), [("pi_1", "pi_1"), (None, None), ({"object": "payment_intent", "id": "pi_2"}, "pi_2")]
)
def test_a_payment_is_its_id_expanded_or_not(payment: object, payment_id: str | None) -> None:
    charge = {"object": "charge", "id": "ch_1", "refunded": False, "disputed": False, "payment_intent": payment}
    assert Charge.model_validate(charge).payment_intent == payment_id
    assert CheckoutSession.model_validate(SESSION | {"payment_intent": payment}).payment_intent == payment_id


def test_an_object_of_before_payment_intents_has_none() -> None:
    assert CheckoutSession.model_validate(SESSION).payment_intent is None
    assert (
        Charge.model_validate({"object": "charge", "id": "ch_1", "refunded": 0, "disputed": 1}).payment_intent is None
    )


def test_what_was_read_cannot_be_changed() -> None:
    session = CheckoutSession.model_validate(SESSION)
    with pytest.raises(ValidationError):
        session.payment_status = "unpaid"
