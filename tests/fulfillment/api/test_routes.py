"""The six routes: what is taken, what is answered, what is refused and then not written."""

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, get_args
from urllib.parse import unquote

import asyncpg
import httpx
import pytest
import structlog

from schemas import fulfillment as wire
from schemas import publish
from services.__main__ import discover
from services.fulfillment.consumer import SERVICE
from services.fulfillment.flow.flush import Stopped
from services.fulfillment.machine import FulfillmentState
from services.kernel.errors import Invariant
from services.operations import openapi
from services.operations.access import undetermined
from services.sandbox.faults import Act, Fault, Reply
from services.sandbox.github.shapes import AccountType
from services.sandbox.log import LoggedRequest, Vendor
from tests.fixtures.database import ROOT, Clock, Connection
from tests.fixtures.fulfillment import REPOSITORY, House
from tests.fixtures.shop import BODY_BYTES_MAX, Shop
from tests.fulfillment.api.conftest import Open
from tests.fulfillment.conftest import Purchases
from tests.waiting import wait_until

README = ROOT / "services/fulfillment/README.md"
PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)


def code_of(answer: httpx.Response, status: int) -> str:
    """The code of a problem document."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    return str(answer.json()["code"])


def sessions_opened(house: House) -> list[LoggedRequest]:
    return house.world.log.entries(Vendor.STRIPE, method="POST", path_contains="/checkout/sessions")


def looked_up(house: House) -> list[str]:
    return [entry.path for entry in house.world.log.entries(Vendor.GITHUB)]


async def failed(purchases: Purchases, handle: str | None = "typo", **columns: Any) -> int:
    """Attempted longer ago than the cooldown."""
    at = await purchases.now() - timedelta(minutes=11)
    given = {"user_id": "user_1", "fulfillment_attempted_at": at, "fulfillment_last_error": "HTTP 404: secret words"}
    return await purchases.in_state(FAILED, handle, **(given | columns))


# ------------------------------------------------------------------------------------------------------ the checkout
@pytest.mark.promise("F55")
async def test_a_checkout_carries_the_username_and_asks_stripes_page_for_nothing(shop: Shop) -> None:
    account = shop.house.world.github.add_account("Mona-L")
    answer = await shop.buys("mona-l", user="user_7")
    assert answer.status_code == 201
    opened_at = answer.json()
    assert opened_at.keys() == {"id", "url"}
    assert opened_at["url"].startswith("http")
    (asked,) = sessions_opened(shop.house)
    assert not [name for name in asked.body if "custom" in name and "customer" not in name]
    session = shop.house.world.books.get("checkout.session", opened_at["id"])
    assert session["client_reference_id"] == "user_7"
    assert session["metadata"] == {
        "rowclaim_slice": "fulfillment",
        "github_username": "Mona-L",
        "github_account_id": str(account.id),
    }
    assert looked_up(shop.house) == ["/users/mona-l"]


@pytest.mark.promise("F57")
@pytest.mark.parametrize("account", [None, AccountType.ORGANIZATION, AccountType.BOT])
async def test_whom_github_denies_nothing_is_sold_to(shop: Shop, account: AccountType | None) -> None:
    if account is not None:
        shop.house.world.github.add_account("acme", account)
    answer = await shop.buys("acme")
    assert code_of(answer, 400) == "github_handle_unknown"
    assert shop.house.world.log.entries(Vendor.STRIPE, method="POST", path_contains="/checkout") == []


@pytest.mark.promise("F58")
@pytest.mark.parametrize("username", ["a/b", "..", "-lead", "🐙", "a b?c#d%2F", "x" * 100])
async def test_any_string_is_githubs_to_judge_as_one_name(shop: Shop, username: str) -> None:
    assert code_of(await shop.buys(username), 400) == "github_handle_unknown"
    (path,) = looked_up(shop.house)
    assert path.count("/") == 2
    assert unquote(path) == f"/users/{username}"


@pytest.mark.promise("F58")
@pytest.mark.parametrize("body", [{"githubUsername": "x" * 101}, {"githubUsername": ""}, {}, {"githubUsername": 1}, []])
async def test_what_is_no_username_is_refused_before_anybody_is_asked(shop: Shop, body: object) -> None:
    assert code_of(await shop.post("/checkout/session", body), 422) == "request_invalid"
    assert (looked_up(shop.house), sessions_opened(shop.house)) == ([], [])


@pytest.mark.promise("F59")
@pytest.mark.parametrize("token", [True, False])
async def test_the_check_is_made_with_the_token_or_not_at_all(house: House, opened: Open, token: bool) -> None:
    async with opened({} if token else {"ROWCLAIM_FULFILLMENT_GITHUB_TOKEN": None}) as shop:
        with structlog.testing.capture_logs() as logs:
            assert (await shop.buys("octocat")).status_code == 201
    lines = [line for line in logs if line["event"] == "fulfillment.handle.unverified"]
    if token:
        (asked,) = house.world.log.entries(Vendor.GITHUB)
        assert asked.headers["authorization"].startswith("Bearer")
        assert lines == []
    else:
        assert (looked_up(house), [line["code"] for line in lines]) == ([], ["token_missing"])


TROUBLE: Mapping[str, Reply] = {
    "rate cap": Reply(429, {"retry-after": "30"}, '{"message": "slow down"}'),
    "5xx": Reply(503, {}, "<html>"),
    "our token": Reply(401, {}, '{"message": "Bad credentials"}'),
    "unexplained": Reply(403, {}, '{"message": "Forbidden"}'),
    "unreadable": Reply(200, {}, "not JSON"),
}


@pytest.mark.promise("F60")
@pytest.mark.parametrize("trouble", TROUBLE)
async def test_whatever_github_cannot_say_stops_no_sale(shop: Shop, owner: Connection, trouble: str) -> None:
    shop.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=TROUBLE[trouble]))
    with structlog.testing.capture_logs() as logs:
        answer = await shop.buys("octocat")
    assert answer.status_code == 201
    assert len([line for line in logs if line["event"] == "fulfillment.handle.unverified"]) == 1
    metadata = shop.house.world.books.get("checkout.session", answer.json()["id"])["metadata"]
    assert metadata == {"rowclaim_slice": "fulfillment", "github_username": "octocat"}
    paged = await owner.fetchval("select count(*) from pages where dedup_key = 'fulfillment:handle_check'")
    assert paged == (trouble == "our token")
    closed = await owner.fetchval("select closed_until > rowclaim_now() from vendor_gates where vendor = 'github'")
    assert bool(closed) == (trouble == "rate cap")


@pytest.mark.promise("F61")
async def test_who_has_no_account_yet_says_so_and_pays(shop: Shop) -> None:
    answer = await shop.buys(None)
    assert answer.status_code == 201
    assert looked_up(shop.house) == []
    session = shop.house.world.books.get("checkout.session", answer.json()["id"])
    assert session["metadata"] == {"rowclaim_slice": "fulfillment"}


async def test_a_repeated_checkout_is_the_same_session(shop: Shop) -> None:
    shop.house.world.github.add_account("hubot")
    first, again = [await shop.buys("octocat", idempotency_key="a key") for _ in range(2)]
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    other = await shop.buys("hubot", idempotency_key="a key")
    assert code_of(other, 409) == "idempotency_key_reused"
    theirs = await shop.buys("octocat", idempotency_key="a key", user="user_2")
    assert (theirs.status_code, theirs.json() != first.json()) == (201, True)
    assert code_of(await shop.buys("octocat", idempotency_key="x" * 201), 400) == "idempotency_key_invalid"


async def test_where_nothing_is_sold_a_checkout_says_so(opened: Open) -> None:
    what = ("PRICE", "SUCCESS_URL", "CANCEL_URL")
    async with opened({f"ROWCLAIM_FULFILLMENT_CHECKOUT_{name}": None for name in what}) as shop:
        assert code_of(await shop.buys("octocat"), 503) == "checkout_unconfigured"


async def test_a_stripe_that_is_down_is_worth_another_try(shop: Shop) -> None:
    shop.house.world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=Reply(401), times=None))
    answer = await shop.buys("octocat")
    assert code_of(answer, 503) == "checkout_unavailable"
    assert "retry-after" in answer.headers


# -------------------------------------------------------------------------------------------------------- the buyer
@pytest.mark.promise("F67")
async def test_a_buyer_reads_their_own_and_no_reason_an_admin_reads_it(shop: Shop, purchases: Purchases) -> None:
    mine = await failed(purchases)
    await failed(purchases, user_id="user_2")
    answer = await shop.get("/fulfillment")
    (listed,) = answer.json()["purchases"]
    assert (listed["id"], listed["state"], listed["githubUsername"]) == (mine, FAILED, "typo")
    assert "secret words" not in answer.text
    assert {word.lower() for name in listed for word in (name,)} & {"lasterror", "fulfillmentlasterror"} == set()
    assert {one["lastError"] for one in await shop.attention()} == {"HTTP 404: secret words"}


async def test_a_purchase_is_told_in_instants_of_utc_and_nulls(shop: Shop, purchases: Purchases) -> None:
    at = await purchases.now()
    sent = {"invited_at": at, "invitation_url": "https://github.test/accept"}
    past = {"fulfilled_at": at, "accepted_at": None}
    await purchases.in_state(FAILED, "e", user_id="user_1", **(sent | past))
    await purchases.in_state(DELIVERED, "d", user_id="user_1", accepted_at=at)
    await purchases.in_state(DELIVERED, "c", user_id="user_1", **sent, invitation_expired_at=at)
    await purchases.in_state(DELIVERED, "b", user_id="user_1")
    await purchases.in_state(PENDING, None, user_id="user_1", revoked_at=at)
    listed = (await shop.get("/fulfillment")).json()["purchases"]
    instant = at.isoformat().replace("+00:00", "Z")
    nothing = {"url": None, "sentAt": None, "acceptedAt": None, "expiredAt": None}
    assert [one["invitation"] for one in listed] == [
        None,
        None,
        nothing | {"url": "https://github.test/accept", "sentAt": instant, "expiredAt": instant},
        nothing | {"acceptedAt": instant},
        None,  # it failed since: whether something stands is told by the state alone
    ]
    assert [one["revokedAt"] for one in listed] == [instant, *[None] * 4]
    assert [one["githubUsername"] for one in listed] == [None, "b", "c", "d", "e"]
    assert listed[0].keys() == {
        *("id", "state", "githubUsername", "createdAt", "fulfilledAt", "attemptedAt", "cooldownUntil"),
        *("invitation", "revokedAt"),
    }
    assert all(datetime.fromisoformat(one["createdAt"]).utcoffset() == timedelta(0) for one in listed)


@pytest.mark.promise("F68")
async def test_anothers_purchase_answers_as_one_that_is_not_there(shop: Shop, purchases: Purchases) -> None:
    theirs = await failed(purchases, user_id="user_2")
    before = await purchases.row(theirs)
    answers = [await shop.corrects(purchase, "octocat") for purchase in (theirs, 999_999)]
    assert [code_of(answer, 404) for answer in answers] == ["fulfillment_purchase_unknown"] * 2
    assert answers[0].content == answers[1].content
    assert await purchases.row(theirs) == before
    assert looked_up(shop.house) == []


@pytest.mark.promise("F78", "F76")
async def test_a_correction_answers_with_what_came_of_it(shop: Shop, purchases: Purchases) -> None:
    purchase, other = await failed(purchases), await failed(purchases, "also-wrong", age_s=60)
    answer = await shop.corrects(purchase, "OctoCat")
    assert answer.status_code == 200
    listed = {one["id"]: one for one in answer.json()["purchases"]}
    assert list(listed) == [purchase, other]
    assert (listed[purchase]["state"], listed[purchase]["githubUsername"]) == (DELIVERED, "octocat")
    assert listed[purchase]["invitation"]["url"]
    assert listed[other]["state"] == FAILED
    assert shop.house.invited() == ["octocat"]
    assert (await shop.get("/fulfillment")).json() == answer.json()


@pytest.mark.promise("F70", "F74")
async def test_a_cooldown_says_until_when(shop: Shop, purchases: Purchases, clock: Clock) -> None:
    purchase = await failed(purchases, fulfillment_attempted_at=await purchases.now())
    (listed,) = (await shop.get("/fulfillment")).json()["purchases"]
    answer = await shop.corrects(purchase, "octocat")
    assert code_of(answer, 429) == "fulfillment_cooldown"
    assert answer.json()["cooldownUntil"] == listed["cooldownUntil"]
    until = datetime.fromisoformat(listed["cooldownUntil"])
    assert until == (await purchases.row(purchase))["fulfillment_attempted_at"] + timedelta(minutes=10)
    assert 590 <= int(answer.headers["retry-after"]) <= 600
    await clock.shift(timedelta(seconds=int(answer.headers["retry-after"])))
    assert (await shop.corrects(purchase, "octocat")).json()["purchases"][0]["state"] == DELIVERED


@pytest.mark.promise("F71")
@pytest.mark.parametrize("state", [PENDING, IN_PROGRESS, DELIVERED])
async def test_a_buyer_has_no_force(shop: Shop, purchases: Purchases, state: str) -> None:
    purchase = await purchases.in_state(state, "typo", user_id="user_1")
    before = await purchases.row(purchase)
    assert code_of(await shop.corrects(purchase, "octocat"), 409) == "fulfillment_not_failed"
    forced = {"purchaseId": purchase, "githubUsername": "octocat", "force": True, "reason": "please"}
    assert code_of(await shop.post("/fulfillment/requeue", forced), 422) == "request_invalid"
    assert await purchases.row(purchase) == before
    assert looked_up(shop.house) == []


@pytest.mark.promise("F75", "F69")
async def test_a_correction_is_checked_as_a_checkout_is(shop: Shop, purchases: Purchases) -> None:
    purchase = await failed(purchases)
    assert code_of(await shop.corrects(purchase, "TYPO"), 409) == "github_handle_unchanged"
    assert code_of(await shop.corrects(purchase, "nobody"), 400) == "github_handle_unknown"
    assert (await purchases.row(purchase))["github_handle"] == "typo"
    shop.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, method="GET", reply=TROUBLE["5xx"]))
    with structlog.testing.capture_logs() as logs:
        answer = await shop.corrects(purchase, "octocat")
    assert answer.json()["purchases"][0]["state"] == DELIVERED
    assert [line["event"] for line in logs].count("fulfillment.handle.unverified") == 1


@pytest.mark.promise("F84")
@pytest.mark.parametrize("by", ["buyer", "operator"])
async def test_an_invitation_that_ran_out_is_removed_and_issued_anew(
    shop: Shop, purchases: Purchases, owner: Connection, by: str
) -> None:
    purchase = await failed(purchases)
    await shop.corrects(purchase, "octocat")
    old = (await purchases.row(purchase))["invitation_id"]
    await owner.execute("update purchases set invitation_expired_at = rowclaim_now() where id = $1", purchase)
    (listed,) = await shop.attention()
    assert (listed["why"], listed["canResend"]) == ("invitation_expired", True)
    if by == "buyer":
        answer = await shop.corrects(purchase, "octocat")
    else:
        answer = await shop.sends_again("user_1", purchaseId=purchase, force=True, reason="ran out")
    assert (answer.status_code, answer.json()["purchases"][0]["state"]) == (200, DELIVERED)
    changes = [
        (entry.method, unquote(entry.path).rsplit("/", 1)[-1])
        for entry in shop.house.world.log.entries(Vendor.GITHUB)
        if entry.method != "GET"
    ]
    assert changes == [("PUT", "octocat"), ("DELETE", str(old)), ("PUT", "octocat")]
    row = await purchases.row(purchase)
    assert (row["invitation_expired_at"], row["invitation_id"] != old) == (None, True)
    assert list(shop.house.world.github.repository(REPOSITORY).invitations) == [row["invitation_id"]]
    assert await shop.attention() == []


# ------------------------------------------------------------------------------------------------------ the operator
@pytest.mark.promise("F34")
async def test_only_an_admin_repairs_and_what_they_do_is_kept(
    shop: Shop, purchases: Purchases, owner: Connection
) -> None:
    purchase = await failed(purchases, "octocat", user_id=None)
    before = await purchases.row(purchase)
    for method, path in (
        ("GET", "/admin/fulfillments/attention"),
        ("POST", "/admin/users/user_1/fulfillment/retrigger"),
        ("POST", f"/admin/purchases/{purchase}/link"),
    ):
        for role in (None, "member"):
            call = shop.get(path, role=role) if method == "GET" else shop.post(path, {"userId": "user_1"}, role=role)
            assert code_of(await call, 403) == "role_missing"
    assert await purchases.row(purchase) == before
    assert await owner.fetchval("select count(*) from admin_actions") == 0
    assert looked_up(shop.house) == []

    assert (await shop.links(purchase, userId="user_1", reason="wrote to us")).status_code == 200
    assert (await shop.sends_again("user_1", reason="asked to")).status_code == 200
    kept = await owner.fetch("select actor, verb, target, reason from admin_actions order by id")
    assert [tuple(row) for row in kept] == [
        ("admin_1", "fulfillment.link", f"purchase:{purchase}", "wrote to us"),
        ("admin_1", "fulfillment.retrigger", f"purchase:{purchase}", "asked to"),
    ]


@pytest.mark.promise("F25")
async def test_a_retrigger_tells_what_it_moved_and_what_the_flush_did(shop: Shop, purchases: Purchases) -> None:
    purchase = await failed(purchases, "octocat")
    running = await purchases.in_state(IN_PROGRESS, "octocat", user_id="user_1")
    answer = await shop.sends_again("user_1")
    assert answer.status_code == 200
    assert answer.json() == {
        "purchases": [{"id": purchase, "before": FAILED, "state": DELIVERED}],
        "flush": {
            "stopped": "drained",
            "closedUntil": None,
            "attempted": 1,
            "delivered": 1,
            "failed": 0,
            "putBack": 0,
            "mailsSent": 1,
            "mailsNotSent": 0,
        },
    }
    answer = await shop.sends_again("user_1", purchaseId=running)
    assert code_of(answer, 409) == "fulfillment_not_requeueable"
    assert code_of(await shop.sends_again("user_1", force=True), 400) == "fulfillment_reason_missing"
    assert code_of(await shop.sends_again("user_9"), 404) == "fulfillment_user_unknown"
    assert code_of(await shop.sends_again("user_1", purchaseId=999_999), 404) == "fulfillment_purchase_unknown"


@pytest.mark.promise("F82", "F80")
async def test_the_list_says_who_can_be_sent_to_and_since_when(shop: Shop, purchases: Purchases) -> None:
    purchase = await failed(purchases, "octocat", user_id=None)
    (listed,) = await shop.attention()
    assert listed == {
        "id": purchase,
        "userId": None,
        "githubUsername": "octocat",
        "state": FAILED,
        "why": "no",
        "lastError": "HTTP 404: secret words",
        "attempts": 1,
        "attemptedAt": (await purchases.row(purchase))["fulfillment_attempted_at"].isoformat().replace("+00:00", "Z"),
        "fulfilledAt": None,
        "expiredAt": None,
        "revokedAt": None,
        "nextAttemptAt": None,
        "canResend": False,
    }
    linked = await shop.links(purchase, userId="user_1")
    assert linked.json() == listed | {"userId": "user_1", "canResend": True}
    assert (await shop.sends_again("user_1")).json()["purchases"][0]["state"] == DELIVERED


@pytest.mark.promise("F81")
async def test_a_link_is_for_a_user_and_once(shop: Shop, purchases: Purchases) -> None:
    purchase = await failed(purchases, user_id=None)
    for body in ({"userId": ""}, {"userId": "two words"}, {"userId": "x" * 256}, {}, {"userId": "user_1", "force": 1}):
        assert code_of(await shop.links(purchase, **body), 422) == "request_invalid"
    assert code_of(await shop.links(999_999, userId="user_1"), 404) == "fulfillment_purchase_unknown"
    assert code_of(await shop.links(2**63, userId="user_1"), 422) == "request_invalid"
    for written in (f"{purchase}.0", f"{purchase}_0", f"0_{purchase}", f"+{purchase}", f"%20{purchase}"):
        answer = await shop.post(f"/admin/purchases/{written}/link", {"userId": "user_1"}, user="a", role="admin")
        assert code_of(answer, 422) == "request_invalid", written
    assert (await purchases.row(purchase))["user_id"] is None
    for _ in range(2):
        assert (await shop.links(purchase, userId="user_1")).status_code == 200
    assert code_of(await shop.links(purchase, userId="user_2"), 409) == "purchase_owned"
    assert (await purchases.row(purchase))["user_id"] == "user_1"


@pytest.mark.promise("F54")
async def test_githubs_trouble_fails_neither_route_and_names_nobody(shop: Shop, purchases: Purchases) -> None:
    purchase = await failed(purchases, "planted-typo", email="planted@example.com")
    shop.house.world.github.add_account("planted-login")
    shop.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, times=None, reply=TROUBLE["5xx"]))
    with structlog.testing.capture_logs() as logs:
        corrected = await shop.corrects(purchase, "planted-login")
        again = await shop.sends_again("user_1")
    assert (corrected.status_code, corrected.json()["purchases"][0]["state"]) == (200, PENDING)
    assert (again.status_code, again.json()["purchases"][0]["state"]) == (200, PENDING)
    assert (again.json()["flush"]["stopped"], again.json()["flush"]["putBack"]) == ("transient", 1)
    assert "planted" not in again.text
    assert {line["event"] for line in logs} >= {"fulfillment.flushed", "fulfillment.put_back"}
    assert "planted" not in json.dumps(logs, default=str)


# -------------------------------------------------------------------------------------------------- the border itself
@pytest.mark.promise("F2")
async def test_the_states_are_the_same_four_in_code_check_wire_and_picture(owner: Connection) -> None:
    states = {state.value for state in FulfillmentState}
    assert set(get_args(wire.State)) == states
    schemas = openapi.document(discover())["components"]["schemas"]
    schemas |= {"published": json.loads(publish.read()["fulfillment.link.response.json"])}
    for name in ("Purchase", "PurchaseInSight", "Retriggered", "published"):
        assert set(schemas[name]["properties"]["state"]["enum"]) == states
    check = await owner.fetchval(
        "select pg_get_constraintdef(oid) from pg_constraint where conname = 'purchases_fulfillment_state'"
    )
    assert set(re.findall(r"'(\w+)'::text", check)) == states
    picture = re.search(r"```mermaid\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert picture is not None
    assert {one for pair in re.findall(r"(\w+)? ?--> (\w+):", picture[1]) for one in pair if one} == states
    with pytest.raises(asyncpg.CheckViolationError):
        await owner.execute(
            "set session_replication_role = replica; insert into purchases (stripe_session_id, created_at,"
            " fulfillment_state, edge) values ('cs_1', now(), 'lost', 'record')"
        )


def test_the_wire_knows_why_a_flush_ends() -> None:
    assert set(get_args(wire.Flush.model_fields["stopped"].annotation)) == {why.value for why in Stopped}


async def test_a_body_too_large_or_no_json_is_refused(shop: Shop) -> None:
    assert code_of(await shop.buys("x" * BODY_BYTES_MAX), 413) == "request_too_large"
    assert code_of(await shop.corrects(1, "\0"), 422) == "request_invalid"
    assert looked_up(shop.house) == []


@pytest.mark.parametrize(
    "body",
    [
        {"purchaseId": "1", "githubUsername": "a"},
        {"purchaseId": 0, "githubUsername": "a"},
        {"purchaseId": 2**63, "githubUsername": "a"},
        {"purchaseId": 1, "githubUsername": None},
        {"purchase_id": 1, "github_username": "a", "githubUsername": "b"},
    ],
)
async def test_a_correction_that_is_not_as_described_is_refused(shop: Shop, body: object) -> None:
    assert code_of(await shop.post("/fulfillment/requeue", body), 422) == "request_invalid"


async def test_a_process_that_stops_waits_for_the_attempt_in_hand(
    house: House, opened: Open, purchases: Purchases
) -> None:
    """Its caller is gone, its clients and pools are not."""
    purchase = await failed(purchases)
    house.world.faults.add(Fault(Vendor.GITHUB, Act.LATE, method="PUT", delay_ms=1000))
    async with opened({}) as shop:
        asked = asyncio.create_task(shop.corrects(purchase, "octocat"))
        await wait_until(lambda: house.calls(), within_s=20, what="the invitation is under way")
        asked.cancel()
        await asyncio.wait({asked})
    assert (await purchases.row(purchase))["fulfillment_state"] == DELIVERED


async def test_what_is_only_described_is_not_called() -> None:
    assert SERVICE.describe is not None
    described = {(method, route.path) for route in SERVICE.describe(undetermined()) for method in route.methods}
    assert described == {
        ("POST", "/checkout/session"),
        ("GET", "/fulfillment"),
        ("POST", "/fulfillment/requeue"),
        ("GET", "/admin/fulfillments/attention"),
        ("POST", "/admin/users/{user_id}/fulfillment/retrigger"),
        ("POST", "/admin/purchases/{purchase_id}/link"),
    }
    endpoints = {route.name: route.endpoint for route in SERVICE.describe(undetermined())}
    with pytest.raises(Invariant, match="route_unwired"):
        await endpoints["list_attention"](None)
