"""Each write by itself, under the slice's own role; the view; and what the database refuses whoever writes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from services.identity import store
from services.identity.machine import UserGone, UserSeen
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl
from tests.house.database import SERVICE_ROLES
from tests.identity.conftest import ROLE, People

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
LATER = timedelta(milliseconds=1)
ADA = UserSeen("user_ada", "ada@example.com", "cus_1", NOON, NOON)
BOB = UserSeen("user_bob", None, None, NOON, NOON)


async def test_users_are_written_as_they_were_seen(connect: Connect, owner: Connection) -> None:
    db = await connect(ROLE)
    assert await store.record_seen(db, [ADA, BOB]) == 2
    row = await owner.fetchrow("select * from users where user_id = 'user_ada'")
    assert row is not None
    assert (row["email"], row["stripe_customer_id"]) == ("ada@example.com", "cus_1")
    assert (row["clerk_updated_at"], row["clerk_event_at"]) == (NOON, NOON)
    assert (row["deleted_at"], row["forgotten_at"]) == (None, None)
    assert row["created_at"] == row["updated_at"]
    assert await store.record_seen(db, []) == 0
    assert await store.record_gone(db, []) == 0


LATER_WORDS = {
    "updated later, told earlier": replace(
        ADA, email=None, stripe_customer_id=None, updated_at=NOON + LATER, told_at=NOON - LATER
    ),
    "told later": replace(ADA, email=None, stripe_customer_id=None, told_at=NOON + LATER),
    "the greater address": replace(ADA, email="adb@example.com", stripe_customer_id=None),
    # By code point. Most languages' own order would put the small letter first.
    "the greater address by code point": replace(ADA, email="ada@example.com".replace("ada", "Zoe").lower()),
    "the greater customer": replace(ADA, stripe_customer_id="cus_2"),
}


@pytest.mark.parametrize("later", LATER_WORDS.values(), ids=LATER_WORDS)
async def test_the_later_word_stands_whichever_comes_first(
    connect: Connect, owner: Connection, clock: Clock, later: UserSeen
) -> None:
    assert later.rank > ADA.rank
    db = await connect(ROLE)
    assert await store.record_seen(db, [ADA]) == 1
    await clock.shift(timedelta(hours=1))
    assert await store.record_seen(db, [later]) == 1
    row = await owner.fetchrow("select * from users")
    assert row is not None
    assert row["updated_at"] - row["created_at"] >= timedelta(hours=1)
    assert [await store.record_seen(db, [word]) for word in (ADA, later)] == [0, 0], "late, and a copy"
    stands = await owner.fetchrow("select * from users")
    assert stands == row
    assert (row["email"], row["stripe_customer_id"]) == (later.email, later.stripe_customer_id)
    assert (row["clerk_updated_at"], row["clerk_event_at"]) == (later.updated_at, later.told_at)


async def test_the_database_orders_texts_as_the_code_does(connect: Connect, people: People) -> None:
    db = await connect(ROLE)
    addresses = [None, "B@x", "a@x", "A@x", "ä@x", "\uffee@x", "\U0001f600@x", "a-b@x", "ab@x", "a_b@x"]
    last = max(addresses, key=lambda address: address or "")
    for start in range(len(addresses)):
        rotated = addresses[start:] + addresses[:start]
        for address in rotated:
            await store.record_seen(db, [replace(BOB, user_id=f"user_{start}", email=address)])
        assert (await people())[f"user_{start}"][0] == last


async def test_a_deletion_leaves_a_row_without_a_person(connect: Connect, owner: Connection, clock: Clock) -> None:
    db = await connect(ROLE)
    await store.record_seen(db, [ADA])
    assert await store.record_gone(db, [UserGone("user_ada"), UserGone("user_never_seen")]) == 2
    rows = await owner.fetch("select * from users order by user_id")
    for row in rows:
        assert row["deleted_at"] is not None
        assert {row[name] for name in ("email", "stripe_customer_id", "clerk_updated_at", "clerk_event_at")} == {None}
    await clock.shift(timedelta(hours=1))
    late = [replace(ADA, user_id=row["user_id"], updated_at=NOON + timedelta(days=9)) for row in rows]
    assert await store.record_seen(db, late) == 0
    assert await store.record_gone(db, [UserGone("user_ada")]) == 0
    assert await owner.fetch("select * from users order by user_id") == rows


async def test_a_forgotten_user_may_only_be_deleted(connect: Connect, owner: Connection, people: People) -> None:
    db = await connect(ROLE)
    await store.record_seen(db, [ADA])
    assert await store.forget(db, "user_ada") is True
    assert await store.record_seen(db, [replace(ADA, updated_at=NOON + LATER)]) == 0
    assert await people() == {"user_ada": (None, None, False)}
    assert await store.record_gone(db, [UserGone("user_ada")]) == 1
    assert await people() == {"user_ada": (None, None, True)}


async def test_a_user_is_forgotten_once_and_alone(
    connect: Connect, owner: Connection, people: People, clock: Clock
) -> None:
    db = await connect(ROLE)
    await store.record_seen(db, [ADA, replace(ADA, user_id="user_eve")])
    for user_id, told in (("user_ada", True), ("user_not_told_of", False)):
        assert (await store.find_traces(db, user_id) is not None) is told
        assert await store.is_not_forgotten(db, user_id) is True
        assert await store.forget(db, user_id) is True
        assert await store.is_not_forgotten(db, user_id) is False
        assert await store.find_traces(db, user_id) == store.Traces(None, None)
    rows = await owner.fetch("select * from users order by user_id")
    await clock.shift(timedelta(hours=1))
    assert await store.forget(db, "user_ada") is False
    assert await store.record_seen(db, [replace(ADA, user_id="user_not_told_of")]) == 0
    assert await owner.fetch("select * from users order by user_id") == rows
    assert await people() == {
        "user_ada": (None, None, False),
        "user_eve": ("ada@example.com", "cus_1", False),
        "user_not_told_of": (None, None, False),
    }


async def test_two_batches_over_the_same_users_never_wait_in_a_circle(connect: Connect, owner: Connection) -> None:
    """Given in opposite orders: the statement itself sorts."""
    db, other = await connect(ROLE), await connect(ROLE)
    users = [replace(BOB, user_id=f"user_{n:03}") for n in range(200)]

    async def write(database: store.Tx, batch: Sequence[UserSeen], nth: int) -> int:
        return await store.record_seen(database, [replace(one, updated_at=NOON + nth * LATER) for one in batch])

    for nth in range(10):
        await asyncio.gather(
            write(db, users, 2 * nth),
            write(other, users[::-1], 2 * nth + 1),
            store.record_gone(db, [UserGone(one.user_id) for one in users[:5]]),
        )
    assert await owner.fetchval("select count(*) from users where clerk_updated_at = $1", NOON + 19 * LATER) == 195


# ------------------------------------------------------------------------------------------------------------ the view
async def test_the_other_slices_see_living_people_and_three_columns(
    connect: Connect, owner: Connection, database_url: DatabaseUrl
) -> None:
    db = await connect(ROLE)
    forgotten, gone = replace(BOB, user_id="user_forgotten"), replace(BOB, user_id="user_gone")
    await store.record_seen(db, [ADA, BOB, forgotten, gone])
    await store.record_gone(db, [UserGone("user_gone")])
    await owner.execute("update users set forgotten_at = rowclaim_now() where user_id = 'user_forgotten'")
    for role in SERVICE_ROLES:
        connection = await asyncpg.connect(database_url(role))
        rows = await connection.fetch("select * from identity.people order by user_id")
        assert [dict(row) for row in rows] == [
            {"user_id": "user_ada", "email": "ada@example.com", "stripe_customer_id": "cus_1"},
            {"user_id": "user_bob", "email": None, "stripe_customer_id": None},
        ]
        statements = ["update identity.people set email = null", "delete from identity.people"]
        if role != ROLE:
            statements += ["select user_id from users", "update users set email = null"]
        for statement in statements:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.close()


@pytest.mark.parametrize("role", ["rowclaim_reader", "rowclaim_cdc"])
async def test_no_reader_sees_people(database_url: DatabaseUrl, role: str) -> None:
    connection = await asyncpg.connect(database_url(role))
    for relation in ("identity.people", "users"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch(f"select user_id from {relation}")
    await connection.close()
