"""The claim and its column, on the migrated schema and past our own code."""

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from services.fulfillment import store
from services.fulfillment.flow import invitations
from services.fulfillment.machine import Delivered, FulfillmentState, Invitation
from services.kernel.claim import WORKER
from services.kernel.db import Database
from services.kernel.errors import Retryable
from tests.fixtures.database import Connect, Connection, DatabaseUrl
from tests.fulfillment.conftest import ROLE, Purchases
from tests.house.source import ROOT, modules
from tests.house.test_sql_text import statements
from tests.waiting import wait_until

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
STATEMENTS = [s for s in statements(ROOT) if s.module.name == "services.fulfillment.store"]


@pytest.mark.promise("F3")
async def test_one_claim_takes_the_one_row_that_was_bought_first(
    connect: Connect, purchases: Purchases, owner: Connection
) -> None:
    """Also when the planner believes in a table of one row and may do nothing but loop."""
    young, old, as_old = [await purchases.add(age_s=age_s) for age_s in (10, 60, 60)]
    await owner.execute(
        "update purchases set created_at = (select created_at from purchases where id = $1) where id = $2", old, as_old
    )
    await owner.execute("update pg_class set reltuples = 1, relpages = 1 where oid = 'purchases'::regclass")
    db = await connect(ROLE, size_max=1)
    for plan in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):
        await db.execute(f"set enable_{plan} = off")
    taken = [await store.claim_oldest(db) for _ in range(2)]
    assert [purchase.id for purchase in taken if purchase] == [old, as_old], "of two as old, the lower id"
    assert await purchases.states() == [PENDING, IN_PROGRESS, IN_PROGRESS]
    last = await store.claim_oldest(db)
    assert last is not None
    assert last.id == young
    assert await store.claim_oldest(db) is None


CLAIM_AND_DIE = """
import asyncio, os, signal, sys
from services.fulfillment import store
from services.kernel.db import Database

async def main():
    db = await Database.connect(sys.argv[1])
    assert await store.claim_oldest(db) is not None
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.promise("F4", "F11")
async def test_the_claim_itself_stamps_and_counts(database_url: DatabaseUrl, purchases: Purchases) -> None:
    """The process dies with the claim's answer in its hands: nothing of it was left for a later statement."""
    purchase = await purchases.add(fulfillment_attempts=2)
    before = await purchases.now()
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", CLAIM_AND_DIE, database_url(ROLE), cwd=ROOT)
    assert await dying.wait() == -9
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["fulfillment_attempts"], row["claim_token"]) == (IN_PROGRESS, 3, 1)
    assert before <= row["fulfillment_attempted_at"] <= await purchases.now()


def _indexes(plan: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in plan:
        yield plan["Index Name"]
    for part in plan.get("Plans", ()):
        yield from _indexes(part)


@pytest.mark.promise("F9")
async def test_the_pending_index_serves_the_claim_and_no_column_can_be_renamed_under_it(
    connect: Connect, owner: Connection
) -> None:
    await owner.execute("set session_replication_role = replica")
    await owner.execute(
        "insert into purchases (stripe_session_id, created_at, fulfillment_state, edge, fulfilled_at)"
        " select 'cs_' || n, rowclaim_now(), case when n % 5000 = 0 then 'pending' else 'delivered' end, 'deliver',"
        " rowclaim_now() from generate_series(1, 20000) n"
    )
    await owner.execute("reset session_replication_role")
    await owner.execute("vacuum analyze purchases")
    predicate = await owner.fetchval(
        "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = 'purchases_pending'::regclass"
    )
    assert "pending" in predicate
    plan = json.loads(await owner.fetchval(f"explain (format json) {store.CLAIM_OLDEST}", WORKER))
    assert sorted(_indexes(plan[0]["Plan"])) == ["purchases_pending", "purchases_pkey"]

    db = await connect(ROLE, size_max=1)
    for statement in STATEMENTS:
        await owner.prepare(statement.text)
    for column in ("fulfillment_state", "revoked_at", "created_at", "next_attempt_at"):
        async with owner.transaction():
            await owner.execute(f"alter table purchases rename column {column} to renamed")
            with pytest.raises(asyncpg.UndefinedColumnError):
                async with owner.transaction():
                    await owner.prepare(store.CLAIM_OLDEST)
            await owner.execute(f"alter table purchases rename column renamed to {column}")
    assert await store.claim_oldest(db) is not None


@pytest.mark.promise("F12")
async def test_a_row_to_which_a_child_is_just_being_attached_is_claimed_in_its_turn(
    connect: Connect, purchases: Purchases, owner: Connection
) -> None:
    oldest, _ = await purchases.add(age_s=60), await purchases.add()
    db = await connect(ROLE)
    async with owner.transaction():
        await owner.execute(
            "insert into entitlements (purchase_id, user_id, kind) values ($1, 'user_1', 'course')", oldest
        )
        async with asyncio.timeout(1.5):  # below the role's lock_timeout: waiting would be no better than skipping
            claimed = await store.claim_oldest(db)
    assert claimed is not None
    assert claimed.id == oldest


@pytest.mark.promise("F13")
@pytest.mark.parametrize(
    ("state", "wrong", "refusal"),
    [
        (PENDING, "fulfillment_state = 'delivered', fulfilled_at = rowclaim_now()", "RC001"),
        (PENDING, "fulfillment_state = 'delivered', fulfilled_at = rowclaim_now(), edge = 'deliver'", "RC001"),
        (
            PENDING,
            "fulfillment_state = 'in_progress', fulfillment_attempted_at = rowclaim_now(), edge = 'claim'",
            "RC002",
        ),
        (PENDING, "edge = 'made_up'", "RC001"),
        (IN_PROGRESS, "fulfillment_state = 'pending', edge = 'put_back', outcome_token = claim_token - 1", "RC002"),
        (IN_PROGRESS, "fulfillment_state = 'pending', edge = 'force_in_progress'", "RC002"),
        (FAILED, "fulfillment_state = 'delivered', fulfilled_at = rowclaim_now(), edge = 'deliver'", "RC001"),
        (PENDING, "fulfillment_state = 'lost'", "RC001"),
        (PENDING, "claim_token = 7", "RC001"),
    ],
)
async def test_plain_sql_cannot_move_a_purchase_past_its_edges_or_its_token(
    database_url: DatabaseUrl, purchases: Purchases, state: str, wrong: str, refusal: str
) -> None:
    purchase = await purchases.add(
        fulfillment_state=state,
        edge={PENDING: "put_back", IN_PROGRESS: "claim", FAILED: "refuse"}[state],
        claim_token=3,
        outcome_token=None if state == IN_PROGRESS else 3,
        fulfillment_attempted_at=await purchases.now(),
        fulfillment_last_error="no",
    )
    before = await purchases.row(purchase)
    for role in (ROLE, "postgres"):
        client = await asyncpg.connect(database_url(role))
        with pytest.raises(asyncpg.PostgresError) as refused:
            await client.execute(f"update purchases set {wrong} where id = $1", purchase)
        assert refused.value.sqlstate == refusal
        await client.close()
    assert await purchases.row(purchase) == before


async def test_no_row_is_born_in_another_state_than_pending(database_url: DatabaseUrl) -> None:
    client = await asyncpg.connect(database_url(ROLE))
    with pytest.raises(asyncpg.PostgresError) as refused:
        await client.execute(
            "insert into purchases (stripe_session_id, created_at, fulfillment_state, edge, fulfilled_at)"
            " values ('cs_1', rowclaim_now(), 'delivered', 'record', rowclaim_now())"
        )
    assert refused.value.sqlstate == "RC001"
    await client.close()


async def test_a_purchase_is_recorded_once_and_stays_as_it_was_recorded(connect: Connect, purchases: Purchases) -> None:
    db = await connect(ROLE)
    new = store.NewPurchase("cs_1", "pi_1", "user_1", "a@example.com", "octocat", 7, 4900, "usd")
    later = store.NewPurchase("cs_1", "pi_2", "user_2", "b@example.com", "mallory", 8, 1, "eur")
    assert await store.record_purchase(db, new) is True
    assert await store.record_purchase(db, later) is False
    row = await purchases.row(1)
    assert (row["user_id"], row["email"], row["github_handle"], row["github_account_id"]) == (
        "user_1",
        "a@example.com",
        "octocat",
        7,
    )
    assert (row["amount_minor"], row["currency"], row["fulfillment_attempts"]) == (4900, "usd", 0)


async def test_a_delivery_keeps_what_the_vendor_said_and_clears_what_went_before(
    connect: Connect, purchases: Purchases
) -> None:
    purchase = await purchases.add(
        fulfillment_last_error="timed out",
        fulfillment_last_code="timed_out",
        ask_first=True,
        attention="invitation_quota",
        invitation_id=1,
        invitation_url="https://github.test/old",
    )
    db = await connect(ROLE)
    claimed = await store.claim_oldest(db)
    assert claimed is not None
    assert await store.deliver(db, claimed, Delivered("there", already_had_access=True), None)
    row = await purchases.row(purchase)
    kept = ("fulfillment_last_error", "fulfillment_last_code", "attention", "invitation_id", "invitation_url")
    assert [row[name] for name in kept] == [None] * 5
    assert (row["ask_first"], row["already_had_access"], row["claimed_by"]) == (False, True, None)


@pytest.mark.promise("F1")
async def test_only_the_purchase_row_says_what_is_owed(owner: Connection) -> None:
    """Of all tables the slice may write, one is its own; the rest say when, who was paged, or which event arrived."""
    written = {
        record["relname"]
        for record in await owner.fetch(
            "select c.relname from pg_class c where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace"
            " and (has_table_privilege($1, c.oid, 'insert') or has_table_privilege($1, c.oid, 'update'))",
            ROLE,
        )
    }
    kernels = {"admin_actions", "job_runs", "pages", "vendor_gates", "webhook_deliveries", "webhook_subscriptions"}
    assert written - kernels == {"purchases"}
    named = {table for statement in STATEMENTS for table in written if table in statement.text}
    assert named == {"purchases", "admin_actions"}
    assert not [statement.name for statement in STATEMENTS if "advisory" in statement.text]

    imported = {name for module in modules(ROOT, "services/fulfillment") for _, name in module.imports()}
    assert not {name for name in imported if name.split(".")[0] in ("redis", "valkey", "aiokafka", "faststream")}
    assert not {name for name in imported if name.startswith(("services.kernel.lease", "services.kernel.triggers"))}
    # One thing is scheduled: the daily look at what was delivered long ago, which claims nothing and flushes nothing.
    scheduling = {
        module.name
        for module in modules(ROOT, "services/fulfillment")
        if any(name.startswith("services.kernel.jobs") for _, name in module.imports())
    }
    assert scheduling == {"services.fulfillment.consumer"}
    assert not re.search(r"\.(flush|flushed|claim_\w+)\(", inspect.getsource(invitations))


async def test_failures_in_a_row_are_other_buyers_that_the_vendor_refused(
    connect: Connect, purchases: Purchases
) -> None:
    """What else is failed, or was refused for want of a handle, breaks no row and makes none."""
    db = await connect(ROLE)
    now = await purchases.now()
    refused = {
        "fulfillment_state": "failed",
        "fulfillment_last_error": "no",
        "fulfillment_last_code": "refused",
        "fulfillment_attempted_at": now,
    }
    await purchases.add("Mona", **refused)
    await purchases.add(None, **refused)
    await purchases.add("hubot", **refused | {"fulfillment_last_code": None})
    await purchases.add("pending", **refused | {"fulfillment_state": "pending"})
    ours = await purchases.add("octocat", **refused)
    await purchases.add("next", age_s=60)
    claimed = await store.claim_oldest(db)
    assert claimed is not None
    failed = await store.list_failed_in_a_row(db, replace(claimed, id=ours), limit=10)
    assert [(one.login, one.code) for one in failed] == [("mona", "refused")]


async def test_nothing_is_pending_where_a_claim_could_find_nothing(connect: Connect, purchases: Purchases) -> None:
    db = await connect(ROLE)
    now = await purchases.now()
    await purchases.add("a", fulfillment_state="in_progress", fulfillment_attempted_at=now)
    await purchases.add("b", fulfillment_state="delivered", fulfilled_at=now)
    await purchases.add("c", fulfillment_state="failed", fulfillment_last_error="no")
    await purchases.add("d", revoked_at=now)
    assert await store.anything_pending(db) is False
    await purchases.add("e")
    assert await store.anything_pending(db) is True


# ------------------------------------------------------------------------------------------------------- the outcomes
Outcome = Callable[[Database, store.ClaimedPurchase], Awaitable[bool]]
OUTCOMES: dict[str, Outcome] = {
    "deliver": lambda db, held: store.deliver(db, held, Delivered("there"), None),
    "refuse": lambda db, held: store.refuse(db, held, code="no", reason="no", attention=None),
    "put_back": lambda db, held: store.put_back(db, held, code="no", reason="no"),
}


@pytest.mark.promise("F10")
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_an_outcome_is_written_over_the_row_that_is_held_and_no_other(
    connect: Connect, purchases: Purchases, outcome: Outcome
) -> None:
    first, second = await purchases.add(age_s=60), await purchases.add()
    db = await connect(ROLE)
    held, others = await store.claim_oldest(db), await store.claim_oldest(db)
    assert held is not None
    assert others is not None
    await store.requeue(db, first, force=True)
    assert not await outcome(db, held), "a person has it"
    again = await store.claim_oldest(db)
    assert again is not None
    before = [await purchases.row(row) for row in (first, second)]
    assert not await outcome(db, held), "a later attempt has it"
    assert [await purchases.row(row) for row in (first, second)] == before
    assert await outcome(db, again)
    assert await purchases.row(second) == before[1]
    after = await purchases.row(first)
    assert not await outcome(db, again), "it is written already"
    assert await purchases.row(first) == after


# -------------------------------------------------------------------------------------------------- the desk's reads
async def index_scans(connection: Connection, query: str, *arguments: object) -> set[str]:
    explained = await connection.fetchval(f"explain (format json) {query}", *arguments)
    return set(re.findall(r'"Index Name": "(\w+)"', explained)) | set(re.findall(r'"(Seq Scan)"', explained))


async def test_the_desk_reads_by_its_indexes_among_many_delivered(
    database_url: DatabaseUrl, owner: Connection, purchases: Purchases
) -> None:
    await owner.execute("set session_replication_role = replica")
    await owner.execute(
        "insert into purchases (stripe_session_id, user_id, created_at, fulfilled_at, fulfillment_attempted_at,"
        "                       fulfillment_state, edge, stripe_payment_id)"
        " select 'cs_' || n, 'user_' || n % 5000, rowclaim_now(), rowclaim_now(), rowclaim_now(), 'delivered',"
        "        'deliver', 'pi_' || n from generate_series(1, 20000) n"
    )
    await owner.execute("reset session_replication_role")
    for _ in range(60):
        await purchases.in_state("failed")
    await owner.execute("vacuum analyze purchases")
    client = await asyncpg.connect(database_url(ROLE))
    try:
        assert await index_scans(client, store.ATTENTION, 50) == {"purchases_attention_newest"}
        owned = {"purchases_owner"}
        assert await index_scans(client, store.LIST_OWN, "user_7", timedelta(minutes=10), None, 100) == owned
        assert await index_scans(client, store.STATES_OF_USER, "user_7", None, 100) == owned
        assert await index_scans(client, store.REVOKE_PAID_BY, "pi_7", "refunded") == {"purchases_payment"}
        undecided = {"purchases_undecided"}
        assert await index_scans(client, store.LIST_UNDECIDED, timedelta(days=7), None, 0, 100) == undecided
    finally:
        await client.close()


async def test_entitlements_are_read_and_never_written(connect: Connect, database_url: DatabaseUrl) -> None:
    client = await asyncpg.connect(database_url(ROLE))
    try:
        assert await client.fetch("select id, purchase_id, user_id, kind, granted_at from entitlements") == []
        for written in (
            "insert into entitlements (purchase_id, user_id, kind) values (1, 'user_1', 'course')",
            "update entitlements set kind = 'course'",
            "delete from entitlements",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await client.execute(written)
    finally:
        await client.close()


async def test_a_claim_names_only_an_invitation_that_ran_out(connect: Connect, purchases: Purchases) -> None:
    at = await purchases.now()
    await purchases.add(invitation_id=1)
    await purchases.add(invitation_id=2, invitation_expired_at=at)
    await purchases.add(invitation_id=3, invitation_expired_at=at, next_attempt_at=at + timedelta(hours=1))
    await purchases.add(invitation_id=4, next_attempt_at=at + timedelta(hours=1))
    db = await connect(ROLE)
    claimed = [await claim(db) for claim in (*[store.claim_oldest] * 2, *[store.claim_deferred] * 2)]
    assert [one and one.replaces for one in claimed] == [None, 2, 3, None]


async def test_an_invitation_has_a_week_of_its_own_and_access_is_accepted_already(
    connect: Connect, purchases: Purchases
) -> None:
    at = await purchases.now() - timedelta(days=8)
    old = {"invited_at": at, "invitation_id": 1}
    rows = [
        await purchases.add(**old, invitation_expired_at=at),
        await purchases.add(**old, accepted_at=at),
        await purchases.add(**old, invitation_expired_at=at),
        await purchases.add(),
    ]
    db = await connect(ROLE)
    said = at + timedelta(days=1)
    for delivered in (
        Delivered("", invitation=Invitation(id=2, created_at=said)),
        Delivered("", already_had_access=True),
        Delivered("", already_had_access=True),
        Delivered("", invitation=Invitation(id=2)),
    ):
        claimed = await store.claim_oldest(db)
        assert claimed is not None
        assert await store.deliver(db, claimed, delivered, None)
    found = [await purchases.row(row) for row in rows]
    assert [row["invitation_expired_at"] for row in found] == [None] * 4
    assert [row["invited_at"] for row in found] == [said, None, None, found[3]["fulfilled_at"]]
    assert [row["accepted_at"] for row in found] == [None, at, found[2]["fulfilled_at"], None]


async def test_a_flush_waits_for_no_row_but_one_that_is_due(connect: Connect, purchases: Purchases) -> None:
    db, now = await connect(ROLE), await purchases.now()
    await purchases.in_state("delivered")
    await purchases.add(revoked_at=now)
    await purchases.add(next_attempt_at=now + timedelta(hours=1))
    assert not await store.wait_for_passed_over(db)
    await purchases.add(next_attempt_at=now)
    assert await store.wait_for_passed_over(db)


async def test_what_somebody_is_just_writing_is_waited_for_and_not_passed_over(
    connect: Connect, purchases: Purchases
) -> None:
    db, desk = await connect(ROLE), await connect(ROLE)
    purchase = await purchases.add(user_id=None)
    async with desk.transaction() as tx:
        assert await store.link(tx, purchase, "user_1")
        assert await store.claim_oldest(db) is None
        waiting = asyncio.create_task(store.wait_for_passed_over(db))
        await wait_until(
            lambda: desk.value("select count(*) from pg_locks where not granted"), within_s=10, what="it waits"
        )
    assert await waiting
    claimed = await store.claim_oldest(db)
    assert claimed is not None
    assert claimed.id == purchase


async def test_a_row_held_for_longer_than_a_lock_is_waited_for_is_left(connect: Connect, purchases: Purchases) -> None:
    db, desk = await connect(ROLE), await connect(ROLE)
    purchase = await purchases.add(user_id=None)
    async with desk.transaction() as tx:
        assert await store.link(tx, purchase, "user_1")
        with pytest.raises(Retryable, match="database_busy"):
            await store.wait_for_passed_over(db)


@pytest.mark.parametrize("first", ["accept", "expire"])
@pytest.mark.parametrize("second", ["accept", "expire"])
async def test_what_became_of_an_invitation_is_decided_once(
    connect: Connect, purchases: Purchases, first: str, second: str
) -> None:
    db = await connect(ROLE)
    at = await purchases.now() - timedelta(days=8)
    purchase, another = [await purchases.in_state("delivered", invited_at=at, claim_token=1) for _ in range(2)]

    async def decide(how: str, invitation: store.UndecidedInvitation) -> bool:
        if how == "accept":
            return await store.accept_invitation(db, invitation)
        return await store.expire_invitation(db, invitation, timedelta(days=7))

    read = (await store.list_undecided(db, timedelta(days=7), after=None, limit=10))[0]
    assert read.id == purchase
    assert await decide(first, read)
    decided = await purchases.row(purchase)
    assert not await decide(second, read)
    assert await purchases.row(purchase) == decided
    assert (await purchases.row(another))["accepted_at"] is None
    assert (await purchases.row(another))["invitation_expired_at"] is None
