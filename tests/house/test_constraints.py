"""Every CHECK and every unique of the schema is shown by a row that it refuses.

What the code never writes can still be written: by a hand, a script, the code of tomorrow. The rows are written past
the guard of states, which has tests of its own.
"""

import asyncpg

from tests.fixtures.database import Connection

CONSTRAINTS = """
select k.conname as name
from pg_constraint k join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace
where k.contype in ('c', 'u', 'f', 'x') and k.conparentid = 0 and not c.relispartition
  and n.nspname in ('public', 'law', 'desk')
union all
select i.indexrelid::regclass::text
from pg_index i join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
where i.indisunique and not i.indisprimary and not c.relispartition and n.nspname in ('public', 'law', 'desk')
  and not exists (select from pg_constraint k where k.conindid = i.indexrelid)"""

DELIVERY = """
insert into webhook_deliveries (event_id, consumer, received_at, state, edge, next_attempt_at,
                                lease_until, parked_reason)
values (1, 'fulfillment', rowclaim_now(), {state}, 'arrive', rowclaim_now(), {lease}, {reason})"""
PURCHASE = """
insert into purchases (stripe_session_id, created_at, fulfillment_state, edge, amount_minor)
values ('cs_1', rowclaim_now(), {state}, 'record', {amount})"""
PAGE = "insert into pages (dedup_key, severity, summary, opened_at, seen_at) values ('a', {}, 'x', now(), now())"
EVENT = "insert into event_ids (source, external_id, kind, received_at) values ({source}, {id}, {kind}, now())"
EDGE = "insert into law.state_edges (table_name, edge, source, target, fence) values ('t', {}, {}, 'b', {})"

USER = """
insert into users (user_id, email, stripe_customer_id, clerk_updated_at, clerk_event_at, created_at, updated_at,
                   deleted_at, forgotten_at)
values ('user_1', {email}, {customer}, {body}, {told}, now(), now(), {deleted}, {forgotten})"""

GOOD_PURCHASE = PURCHASE.format(state="'pending'", amount="0")
GRANT = """
insert into entitlements (purchase_id, user_id, kind) select id, 'user_1', 'course' from purchases limit 1"""
# Past the guard, no reference is looked at either.
GRANT_OF_NOTHING = """
set local session_replication_role = origin;
insert into entitlements (purchase_id, user_id, kind) values (9, 'user_1', 'course')"""
GOOD_EVENT = EVENT.format(source="'stripe'", id="'evt_1'", kind="'paid'")

REFUSED: dict[str, tuple[str, ...]] = {
    "admin_actions_reason": (
        "insert into admin_actions (actor, verb, target, reason) values ('ann', 'force', 'purchase 1', '')",
    ),
    "entitlements_once": (GRANT,),
    "entitlements_purchase_id_fkey": (GRANT_OF_NOTHING,),
    "event_ids_external_id": (
        EVENT.format(source="'stripe'", id="''", kind="'paid'"),
        EVENT.format(source="'stripe'", id="repeat('é', 128)", kind="'paid'"),
    ),
    "event_ids_kind": (
        EVENT.format(source="'stripe'", id="'evt_1'", kind="''"),
        EVENT.format(source="'stripe'", id="'evt_1'", kind="repeat('x', 256)"),
    ),
    "event_ids_once": (GOOD_EVENT,),
    "event_ids_source": (
        EVENT.format(source="'Stripe'", id="'evt_1'", kind="'paid'"),
        EVENT.format(source="''", id="'evt_1'", kind="'paid'"),
        EVENT.format(source="'a:b'", id="'evt_1'", kind="'paid'"),
    ),
    "job_runs_state": (
        "insert into job_runs (job, period, state, edge, next_attempt_at) values ('a', 'b', 'lost', 'plan', now())",
    ),
    "law.state_edges_one_name": (EDGE.format("'second'", "'a'", "'token'"),),
    "state_edges_birth": (EDGE.format("'x'", "null", "'claim'"), EDGE.format("'y'", "'a'", "'birth'")),
    "state_edges_fence": (EDGE.format("'x'", "'a'", "'hope'"),),
    "pages_open": (PAGE.format("'error'"),),
    "pages_severity": (PAGE.format("'loud'"),),
    "purchases_amount": (PURCHASE.format(state="'pending'", amount="-1"),),
    "purchases_attempted": (PURCHASE.format(state="'in_progress'", amount="0"),),
    "purchases_decided": ("update purchases set accepted_at = now(), invitation_expired_at = now()",),
    "purchases_delivered": (PURCHASE.format(state="'delivered'", amount="0"),),
    "purchases_fulfillment_state": (PURCHASE.format(state="'lost'", amount="0"),),
    "purchases_once": (GOOD_PURCHASE,),
    "purchases_revoked": ("update purchases set revoked_why = 'refunded'",),
    "purchases_reasoned": (PURCHASE.format(state="'failed'", amount="0"),),
    "users_final": (
        USER.format(email="'a@x'", customer="null", body="null", told="null", deleted="now()", forgotten="null"),
        USER.format(email="null", customer="'cus_1'", body="null", told="null", deleted="null", forgotten="now()"),
    ),
    "users_told": (
        USER.format(email="null", customer="null", body="null", told="now()", deleted="null", forgotten="null"),
        USER.format(email="null", customer="null", body="now()", told="null", deleted="null", forgotten="null"),
    ),
    "vendor_gates_refusals": ("insert into vendor_gates (vendor, refusals) values ('github', -1)",),
    "webhook_deliveries_leased": (
        DELIVERY.format(state="'in_progress'", lease="null", reason="null"),
        DELIVERY.format(state="'pending'", lease="now()", reason="null"),
    ),
    "webhook_deliveries_reasoned": (
        DELIVERY.format(state="'parked'", lease="null", reason="null"),
        DELIVERY.format(state="'done'", lease="null", reason="'thin_event'"),
    ),
    "webhook_deliveries_state": (DELIVERY.format(state="'lost'", lease="null", reason="null"),),
}
"""By constraint: statements that it alone refuses."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "event_ids_once": (GOOD_EVENT, EVENT.format(source="'clerk'", id="'evt_1'", kind="'paid'")),
    "event_ids_external_id": (EVENT.format(source="'stripe'", id="repeat('x', 255)", kind="'paid'"),),
    "law.state_edges_one_name": (EDGE.format("'first'", "'a'", "'token'"), EDGE.format("'person'", "'a'", "'person'")),
    "pages_open": (
        PAGE.format("'error'"),
        "update pages set resolved_at = now()",
        PAGE.format("'error'"),
    ),
    "purchases_decided": (GOOD_PURCHASE,),
    "purchases_once": (GOOD_PURCHASE,),
    "purchases_revoked": (GOOD_PURCHASE,),
    "entitlements_once": (GOOD_PURCHASE, GRANT),
}
"""By constraint: what it must let pass, written before."""


async def test_every_constraint_has_a_row_that_it_refuses(owner: Connection) -> None:
    assert {row["name"] for row in await owner.fetch(CONSTRAINTS)} == set(REFUSED)


async def test_each_constraint_refuses_its_rows(owner: Connection) -> None:
    await owner.execute("set session_replication_role = replica")
    for name, statements in REFUSED.items():
        block = owner.transaction()
        await block.start()
        for statement in ALLOWED.get(name, ()):
            await owner.execute(statement)
        for statement in statements:
            assert await refusing(owner, statement) == name.rpartition(".")[2], statement
        await block.rollback()


async def refusing(owner: Connection, statement: str) -> str | None:
    """The name of the constraint that refuses a statement; None: nobody does."""
    try:
        async with owner.transaction():
            await owner.execute(statement)
    except asyncpg.IntegrityConstraintViolationError as error:
        return error.constraint_name
    return None
