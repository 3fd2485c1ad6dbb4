"""What is read of Stripe's objects: as little as possible, and nothing that the database could not keep."""

import pytest
from pydantic import BaseModel, ValidationError

from schemas.stripe import CheckoutSession, FulfillmentMetadata, SessionEvent

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
        (CheckoutSession, SESSION | {"amount_total": 2**63}),
        (CheckoutSession, SESSION | {"currency": "us\0"}),
        (CheckoutSession, SESSION | {"customer_email": "a\ud800@example.com"}),
    ],
)
def test_what_the_database_could_not_keep_is_not_read(model: type[BaseModel], fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)


def test_what_was_read_cannot_be_changed() -> None:
    session = CheckoutSession.model_validate(SESSION)
    with pytest.raises(ValidationError):
        session.payment_status = "unpaid"
