"""What is read of Clerk's events: whole or not at all, and of a person only what is needed."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.clerk import USER_EVENT, User, UserChanged, UserDeleted, instant
from tests.identity.conftest import body, deleted, user

LAST = 253_402_300_799_999


def read(content: bytes) -> Any:
    return USER_EVENT.validate_json(content)


def user_of(**fields: Any) -> User:
    event = read(body("updated", user() | fields))
    assert isinstance(event, UserChanged)
    return event.data


def test_the_type_says_which_event_it_is() -> None:
    assert isinstance(read(body("created", user())), UserChanged)
    assert isinstance(read(body("updated", user())), UserChanged)
    assert isinstance(read(deleted()), UserDeleted)


def test_instants_are_exact_to_the_millisecond() -> None:
    assert instant(1_764_590_400_123).isoformat() == "2025-12-01T12:00:00.123000+00:00"
    assert instant(0).year == 1970
    assert instant(LAST).isoformat() == "9999-12-31T23:59:59.999000+00:00"


# ----------------------------------------------------------------------------------------------------------- addresses
FIRST, SECOND = {"id": "idn_1", "email_address": "first@x"}, {"id": "idn_2", "email_address": "second@x"}


@pytest.mark.parametrize(
    ("addresses", "primary", "email"),
    [
        ([FIRST, SECOND], "idn_2", "second@x"),
        ([FIRST, SECOND], "idn_1", "first@x"),
        ([FIRST], None, None),
        ([FIRST], "idn_9", None),
        ([], "idn_1", None),
        ([], None, None),
        ([{"id": "idn_1", "email_address": ""}], "idn_1", None),
        ([{"id": "idn_1", "email_address": " Ada+shop@Example.COM"}], "idn_1", " Ada+shop@Example.COM"),
    ],
)
def test_the_primary_address_is_the_one_that_is_named(
    addresses: list[dict[str, Any]], primary: str | None, email: str | None
) -> None:
    assert user_of(email_addresses=addresses, primary_email_address_id=primary).email == email


# ------------------------------------------------------------------------------------------------------------ customer
@pytest.mark.parametrize(
    ("private", "public", "customer"),
    [
        ({"stripe_customer_id": "cus_A1"}, {"stripe_customer_id": "cus_B2"}, "cus_A1"),
        ({}, {"stripe_customer_id": "cus_B2"}, "cus_B2"),
        (None, {"stripe_customer_id": "cus_B2"}, "cus_B2"),
        ({"stripe_customer_id": None}, {"stripe_customer_id": "cus_B2"}, "cus_B2"),
        ({"stripe_customer_id": "A1"}, None, None),
        ({"stripe_customer_id": "cus_"}, {}, None),
        ({"stripe_customer_id": "cus_A1 "}, {}, None),
        ({"stripe_customer_id": "cus_A1\n"}, {}, None),
        ({"stripe_customer_id": "cus_A\0"}, {}, None),
        ({"stripe_customer_id": "cus_ä"}, {}, None),
        ({"stripe_customer_id": "cus_" + "a" * 65}, {}, None),
        ({"stripe_customer_id": ["cus_A1"]}, {}, None),
        ({"stripe_customer_id": 7}, {"stripe_customer_id": {"id": "cus_A1"}}, None),
    ],
)
def test_a_customer_is_what_looks_like_one_private_before_public(
    private: Any, public: Any, customer: str | None
) -> None:
    assert user_of(private_metadata=private, public_metadata=public).stripe_customer_id == customer


def test_what_the_browser_may_write_is_not_read() -> None:
    assert user_of(unsafe_metadata={"stripe_customer_id": "cus_A1"}).stripe_customer_id is None


def test_a_body_without_metadata_names_no_customer() -> None:
    content = user()
    del content["private_metadata"], content["public_metadata"]
    event = read(body("created", content))
    assert event.data.stripe_customer_id is None


# ---------------------------------------------------------------------------------------------------------- unreadable
def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in user().items() if key != name}


@pytest.mark.parametrize(
    "data",
    [
        *(without(name) for name in ("id", "object", "updated_at", "email_addresses", "primary_email_address_id")),
        *(user() | {"id": wrong} for wrong in ("", "user a", "user\0", "usér", "x" * 256, 7, None)),
        *(user() | {"updated_at": wrong} for wrong in (-1, LAST + 1, 1.5, "1000", True, None)),
        user() | {"object": "organization"},
        user() | {"email_addresses": None},
        user() | {"email_addresses": [{"id": "idn_1"}]},
        user() | {"email_addresses": [{"id": "idn_1", "email_address": "a\0@x"}]},
        user() | {"email_addresses": [{"id": "idn_1", "email_address": "\ud83d@x"}]},
        user() | {"private_metadata": "cus_A1"},
    ],
)
def test_a_user_that_cannot_be_read_is_not_guessed(data: Any) -> None:
    with pytest.raises(ValidationError):
        read(body("updated", data))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        body("renamed", user()),
        body("deleted", {"object": "user"}),
        body("created", user(), told=-1),
        b'{"type": "user.updated", "timestamp": 1}',
    ],
)
def test_what_is_no_event_of_a_user_is_refused(content: bytes) -> None:
    with pytest.raises(ValidationError):
        read(content)
