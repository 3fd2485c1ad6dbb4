"""Purchases keep the law of claims: those that are due, and those that were put off."""

from dataclasses import replace
from datetime import UTC, datetime

from services.fulfillment import store
from services.fulfillment.machine import PURCHASES, Delivered
from services.fulfillment.store import ClaimedPurchase
from services.kernel.claim import WORKER
from services.kernel.db import Tx
from tests.conformance.claims import Claims
from tests.conformance.kind import Held, Kind


async def claim_oldest(tx: Tx, limit: int) -> list[Held]:
    return _held(await store.claim_oldest(tx))


async def claim_deferred(tx: Tx, limit: int) -> list[Held]:
    return _held(await store.claim_deferred(tx))


def _held(purchase: ClaimedPurchase | None) -> list[Held]:
    return [] if purchase is None else [Held((purchase.id,), purchase.claim_token)]


def claimed(held: Held) -> ClaimedPurchase:
    (purchase_id,) = held.key
    assert isinstance(purchase_id, int)
    return ClaimedPurchase(
        id=purchase_id,
        claim_token=held.token,
        attempt=1,
        attempted_at=datetime.now(UTC),
        email="buyer@example.com",
        github_handle="octocat",
        github_account_id=None,
        ask_first=False,
        timeouts_in_row=0,
        timeout_starts=[],
        deferrals=0,
        replaces=None,
    )


async def deliver(tx: Tx, held: Held) -> bool:
    return await store.deliver(tx, claimed(held), Delivered("look into your mail"), None)


async def refuse(tx: Tx, held: Held) -> bool:
    return await store.refuse(tx, claimed(held), code="no_handle", reason="no such account", attention=None)


async def put_back(tx: Tx, held: Held) -> bool:
    return await store.put_back(tx, claimed(held), code="timed_out", reason="no answer")


SEED = """
insert into purchases (stripe_session_id, created_at, fulfillment_state, edge, next_attempt_at)
select 'cs_' || (select count(*) from purchases) || '_' || n, rowclaim_now() - interval '1 day' + n * interval '1 s',
       'pending', 'record', {next_attempt_at}
from generate_series($1::int, 1, -1) n"""
REVOKED = "revoked_at = rowclaim_now()"

DUE = Kind(
    machine=PURCHASES,
    role="rowclaim_fulfillment",
    key=("id",),
    seed=SEED.format(next_attempt_at="case when n % 2 = 0 then rowclaim_now() end"),
    ages="created_at, id",
    claim=claim_oldest,
    claim_query=store.CLAIM_OLDEST,
    claim_arguments=(WORKER,),
    claim_index="purchases_pending",
    lease=None,
    outcomes={"deliver": deliver, "refuse": refuse, "put_back": put_back},
    columns={
        "in_progress": "fulfillment_attempted_at = rowclaim_now()",
        "delivered": "fulfilled_at = rowclaim_now()",
        "failed": "fulfillment_last_error = 'no such account'",
    },
    withheld={"put off": "next_attempt_at = rowclaim_now() + interval '1 minute'", "revoked": REVOKED},
)
PUT_OFF = replace(
    DUE,
    seed=SEED.format(next_attempt_at="rowclaim_now() + interval '1 hour' - n * interval '1 s'"),
    claim=claim_deferred,
    claim_query=store.CLAIM_DEFERRED,
    withheld={"due": "next_attempt_at = rowclaim_now()", "never put off": "next_attempt_at = null", "revoked": REVOKED},
)


class TestDuePurchases(Claims):
    kind = DUE


class TestPurchasesPutOff(Claims):
    kind = PUT_OFF
