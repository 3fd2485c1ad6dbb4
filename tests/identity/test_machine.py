"""Of everything that is said about a user, one word is left: the last."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from services.identity.machine import LastWords, UserGone, UserSeen, last_words

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
ADA = UserSeen("user_ada", "ada@example.com", "cus_1", NOON, NOON)
LATER = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "second",
    [
        replace(ADA, updated_at=NOON + LATER, told_at=NOON - LATER, email=None, stripe_customer_id=None),
        replace(ADA, told_at=NOON + LATER, email=None, stripe_customer_id=None),
        replace(ADA, email="adb@example.com", stripe_customer_id=None),
        replace(ADA, email="\U0001f600@example.com"),
        replace(ADA, stripe_customer_id="cus_2"),
    ],
    ids=["updated later", "told later", "address", "address beyond the basic plane", "customer"],
)
def test_the_last_word_is_the_last_whoever_speaks_first(second: UserSeen) -> None:
    for words in itertools.permutations([ADA, second, ADA]):
        assert last_words(words) == LastWords((second,), ())


def test_something_is_preferred_to_nothing() -> None:
    for less in (replace(ADA, email=None), replace(ADA, stripe_customer_id=None)):
        assert last_words([ADA, less]) == last_words([less, ADA]) == LastWords((ADA,), ())


def test_a_deletion_outweighs_whatever_else_is_said() -> None:
    late = replace(ADA, updated_at=NOON + timedelta(days=1))
    for words in itertools.permutations([ADA, UserGone("user_ada"), late, UserGone("user_ada")]):
        assert last_words(words) == LastWords((), (UserGone("user_ada"),))


def test_users_stand_in_one_order() -> None:
    said = [replace(ADA, user_id=f"user_{name}") for name in "cab"] + [UserGone(f"user_{name}") for name in "zxy"]
    words = last_words(said)
    assert [one.user_id for one in words.seen] == ["user_a", "user_b", "user_c"]
    assert [one.user_id for one in words.gone] == ["user_x", "user_y", "user_z"]
    assert last_words([]) == LastWords((), ())
