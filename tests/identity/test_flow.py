"""From events to rows: what a body says, and that no order of events, and no repetition, ends elsewhere."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from services.identity import store
from services.identity.flow import blank, handle, read, traces
from services.identity.machine import UserGone, UserSeen
from services.kernel.deliveries import Done, Parked, Verdict
from tests.fixtures.database import Connect, Connection
from tests.identity.conftest import ROLE, USER, People, Person, body, deleted, delivery, user


async def handled(db: store.Tx, *bodies: bytes | None) -> list[Verdict]:
    verdicts = await handle(db, [delivery(nth, content) for nth, content in enumerate(bodies)])
    assert list(verdicts) == list(range(len(bodies)))
    return list(verdicts.values())


def seen(content: bytes) -> UserSeen:
    word = read(content)
    assert isinstance(word, UserSeen)
    return word


# ------------------------------------------------------------------------------------------------ what one event says
async def test_a_new_user_is_a_row(connect: Connect, owner: Connection) -> None:
    db = await connect(ROLE)
    verdicts = await handled(db, body("created", user("Ada@Example.COM", at=1_764_590_400_123, customer="cus_A1")))
    assert verdicts == [Done()]
    row = await owner.fetchrow("select *, extract(epoch from clerk_updated_at) * 1000 as ms from users")
    assert row is not None
    assert (row["user_id"], row["email"], row["stripe_customer_id"]) == (USER, "Ada@Example.COM", "cus_A1")
    assert row["ms"] == 1_764_590_400_123


async def test_what_cannot_be_read_is_parked_and_its_neighbours_are_not(connect: Connect, people: People) -> None:
    db = await connect(ROLE)
    verdicts = await handled(db, b"[]", body("created", user()), None, deleted("user_gone"))
    assert verdicts == [Parked("unreadable_body"), Done(), Parked("unreadable_body"), Done()]
    assert await people() == {USER: ("ada@example.com", None, False), "user_gone": (None, None, True)}


def test_a_deletion_needs_nothing_but_the_id() -> None:
    assert read(deleted()) == UserGone(USER)
    assert read(json.dumps({"type": "user.deleted", "data": {"id": USER}}).encode()) == UserGone(USER)


# ------------------------------------------------------------------------------------------------------ every order
CREATED = body("created", user("first@example.com", at=1000), told=1000)
UPDATED = body("updated", user("second@example.com", at=2000, customer="cus_2"), told=2000)
UPDATED_AGAIN = body("updated", user(None, at=3000, customer="cus_3"), told=3000)
TIED = body("updated", user("tied@example.com", at=1000), told=1000)
RETOLD = body("updated", user("retold@example.com", at=1000), told=1500)
GONE: Person = (None, None, True)
ENDS: dict[str, tuple[Sequence[bytes], Person]] = {
    "created": ([CREATED], ("first@example.com", None, False)),
    "created, updated": ([CREATED, UPDATED], ("second@example.com", "cus_2", False)),
    "created, updated twice": ([CREATED, UPDATED, UPDATED_AGAIN], (None, "cus_3", False)),
    "two bodies of one millisecond": ([CREATED, TIED], ("tied@example.com", None, False)),
    "one clock, told later": ([CREATED, TIED, RETOLD], ("retold@example.com", None, False)),
    "created, updated, deleted": ([CREATED, UPDATED, deleted(told=9000)], GONE),
    "deleted before its last update": ([CREATED, deleted(told=1500), UPDATED], GONE),
    "deleted alone": ([deleted()], GONE),
}
"""By what Clerk told: the events, and the row they end in, written by hand."""


@pytest.mark.parametrize(("told", "end"), ENDS.values(), ids=ENDS)
async def test_every_order_of_events_told_twice_ends_in_one_row(
    connect: Connect, owner: Connection, people: People, told: Sequence[bytes], end: Person
) -> None:
    """Each order of all events and one more of each, one at a time, as batches of two, and at once."""
    db = await connect(ROLE)
    orders = sorted(set(itertools.permutations([*told, *told])))
    rows = set()
    for order in random.Random(len(orders)).sample(orders, min(len(orders), 120)):
        for size in (1, 2, len(order)):
            await owner.execute("delete from users")
            for start in range(0, len(order), size):
                assert set(await handled(db, *order[start : start + size])) == {Done()}
            assert await people() == {USER: end}
            rows.add(tuple(await owner.fetchrow("select clerk_updated_at, clerk_event_at from users") or ()))
    assert len(rows) == 1, "what the row remembers of Clerk's clock is the same, too"


@pytest.mark.parametrize("told", [[CREATED, UPDATED, deleted()], [CREATED, UPDATED, UPDATED_AGAIN]])
async def test_all_permutations_of_three_events_end_alike(connect: Connect, people: People, told: list[bytes]) -> None:
    db = await connect(ROLE)
    wanted: dict[str, Person] = {}
    for nth, order in enumerate(itertools.permutations(told)):
        for content in order:
            await handled(db, content.replace(USER.encode(), f"user_{nth}".encode()))
        wanted[f"user_{nth}"] = (None, None, True) if deleted() in told else (None, "cus_3", False)
    assert len(wanted) == 6
    assert await people() == wanted


def modelled(events: Sequence[tuple[str, dict[str, Any], int]]) -> Person:
    """What a user's events must end in, whatever their order: written without a look at the code."""
    if any(kind == "deleted" for kind, _, _ in events):
        return GONE
    bodies = [
        (
            data["updated_at"],
            told,
            data["email_addresses"][-1]["email_address"] if data["primary_email_address_id"] else "",
            data["private_metadata"].get("stripe_customer_id", ""),
        )
        for _, data, told in events
    ]
    *_, email, customer = max(bodies)
    return email or None, customer or None, False


@pytest.mark.parametrize("seed", range(8))
async def test_random_histories_end_as_the_model_says(connect: Connect, people: People, seed: int) -> None:
    """Many users at once, few instants (so that ties abound), shuffled, doubled, in batches of any size."""
    dice = random.Random(seed)
    histories: Mapping[str, list[tuple[str, dict[str, Any], int]]] = {
        f"user_{nth}": [
            (
                dice.choice(["created", "updated", "updated"]),
                user(
                    dice.choice([None, "a@example.com", "b@example.com"]),
                    at=dice.randrange(3),
                    user_id=f"user_{nth}",
                    customer=dice.choice([None, "cus_1", "cus_2"]),
                ),
                dice.randrange(3),
            )
            for _ in range(dice.randrange(1, 6))
        ]
        + ([("deleted", {"id": f"user_{nth}"}, 9)] if dice.random() < 0.2 else [])
        for nth in range(40)
    }
    told = [body(kind, data, told=at) for history in histories.values() for kind, data, at in history]
    told += dice.sample(told, len(told) // 2)
    dice.shuffle(told)
    db = await connect(ROLE)
    while told:
        size = dice.choice([1, 3, 20, 100])
        assert set(await handled(db, *told[:size])) == {Done()}
        del told[:size]
    assert await people() == {user_id: modelled(history) for user_id, history in histories.items()}


# ------------------------------------------------------------------------------------------------- what is kept of it
async def test_nothing_else_of_a_person_reaches_row_or_log(
    connect: Connect, owner: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = "Planted"
    content = user(
        None,
        username=f"{planted}-name",
        first_name=planted,
        last_name=planted,
        phone_numbers=[{"phone_number": planted}],
        external_accounts=[{"username": planted}],
        unsafe_metadata={"stripe_customer_id": f"cus_{planted}"},
    )
    await handled(await connect(ROLE), body("created", content), body("created", user(planted * 2, at=1, user_id="u")))
    printed = "".join(capfd.readouterr())
    assert "identity.recorded" in printed
    assert planted not in printed
    rows = await owner.fetch("select u::text from users u where user_id = $1", USER)
    assert planted not in str(rows)


def test_a_body_is_read_as_its_schema_says() -> None:
    word = seen(body("updated", user("a@example.com", at=5, customer="cus_9"), told=7))
    assert (word.user_id, word.email, word.stripe_customer_id) == (USER, "a@example.com", "cus_9")
    assert (word.updated_at.timestamp(), word.told_at.timestamp()) == (0.005, 0.007)


# ------------------------------------------------------------------------------------------------------ being forgotten
async def test_a_user_is_known_by_what_the_row_holds_and_forgotten_for_good(connect: Connect, people: People) -> None:
    db = await connect(ROLE)
    await handled(db, CREATED, UPDATED, body("created", user(None, user_id="user_bob")), deleted("user_gone"))
    assert await traces(db, USER) == {USER, "second@example.com", "cus_2"}
    assert await traces(db, "user_bob") == {"user_bob"}
    assert await traces(db, "user_gone") == {"user_gone"}
    assert await traces(db, "user_nobody") == frozenset()

    before = await people()
    assert await blank(db, USER, dry_run=True) == {"users": 1}
    assert await people() == before
    assert await blank(db, USER, dry_run=False) == {"users": 1}
    assert [await blank(db, USER, dry_run=dry_run) for dry_run in (True, False)] == [{"users": 0}] * 2
    assert await traces(db, USER) == {USER}, "a second run still knows them"
    await handled(db, UPDATED_AGAIN, body("updated", user(at=9000)))
    assert await people() == {**before, USER: (None, None, False)}
