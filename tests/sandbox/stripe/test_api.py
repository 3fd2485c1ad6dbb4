"""Through the door: credentials, versions, idempotency as Stripe documents it, and every scripted trouble."""

import asyncio
from base64 import b64encode
from typing import Any

import httpx
import pytest
import stripe

from services.sandbox.faults import Act, Fault, Moment
from services.sandbox.log import Ending, Vendor
from services.sandbox.stripe import refusals
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain
from tests.sandbox.stripe.conftest import SESSION
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

DAY_S = 24 * 3600
KEY = {"idempotency_key": "purchase:1"}


async def create(client: stripe.StripeClient, key: str = "purchase:1", **changes: Any) -> Any:
    return await client.v1.checkout.sessions.create_async(SESSION | changes, {"idempotency_key": key})


def sessions(world: World) -> int:
    return len(world.books.table("checkout.session"))


# ------------------------------------------------------------------------------------------- credentials and manners


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        ("", "You did not provide an API key"),
        ("Bearer", "You did not provide an API key"),
        ("Basic !!!", "You did not provide an API key"),
        ("Bearer sk_test_somebody_elses_1234", "Invalid API Key provided: sk_test_"),
    ],
)
async def test_without_a_good_key_nothing_happens(urls: Urls, authorization: str, words: str) -> None:
    async with plain(base_url=urls.stripe) as http:
        response = await http.get("/v1/events", headers={"authorization": authorization})
    assert response.status_code == 401
    assert words in response.json()["error"]["message"]
    assert "elses_1234" not in response.text


async def test_the_key_may_come_as_a_user_name(urls: Urls) -> None:
    async with plain(base_url=urls.stripe) as http:
        credential = b64encode(f"{DEFAULT_KEY}:".encode()).decode()
        assert (await http.get("/v1/events", headers={"authorization": f"Basic {credential}"})).status_code == 200


async def test_a_wrong_key_is_an_authentication_error_for_the_library(client: stripe.StripeClient) -> None:
    with pytest.raises(stripe.AuthenticationError):
        await client.v1.events.list_async({}, {"api_key": "sk_test_wrong"})


@pytest.mark.parametrize("version", ["2031-01-01.future", "yesterday"])
async def test_a_version_stripe_does_not_have_is_refused(raw: httpx.AsyncClient, version: str) -> None:
    response = await raw.get("/v1/events", headers={"stripe-version": version})
    assert (response.status_code, "Invalid Stripe API version" in response.text) == (400, True)


async def test_an_answer_follows_the_version_it_is_asked_in(raw: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/checkout/sessions/{session_id}"
    old = (await raw.get(path, headers={"stripe-version": "2020-08-27"})).json()
    new = (await raw.get(path)).json()
    assert (old["ui_mode"], new["ui_mode"]) == ("hosted", "hosted_page")
    assert "shipping" in old
    assert "shipping" not in new


async def test_a_json_body_is_refused(raw: httpx.AsyncClient, world: World) -> None:
    response = await raw.post("/v1/checkout/sessions", json=SESSION)
    assert (response.status_code, "Yours is application/json." in response.text) == (400, True)
    unnamed = await raw.post("/v1/checkout/sessions", content=b"mode=payment")
    assert "Yours is missing." in unnamed.text
    assert sessions(world) == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/coupons"), ("PUT", "/v1/events"), ("GET", "/v1/events/")])
async def test_an_unknown_url_is_404(raw: httpx.AsyncClient, method: str, path: str) -> None:
    response = await raw.request(method, path)
    assert (response.status_code, "Unrecognized request URL" in response.text) == (404, True)


async def test_a_connected_account_is_not_played_silently(raw: httpx.AsyncClient) -> None:
    response = await raw.get("/v1/events", headers={"stripe-account": "acct_1"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "sandbox_not_played")


async def test_every_answer_names_its_request(raw: httpx.AsyncClient) -> None:
    first, second = [(await raw.get("/v1/events")).headers for _ in range(2)]
    assert first["request-id"].startswith("req_")
    assert first["request-id"] != second["request-id"]
    assert first["stripe-version"] == "2026-10-28.endive"


async def test_a_body_that_is_no_text_is_refused(raw: httpx.AsyncClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = await raw.post("/v1/customers", content=b"email=\xff\xfe", headers=form)
    assert (response.status_code, "UTF-8" in response.text) == (400, True)


# ------------------------------------------------------------------------------------------------------ idempotency


async def test_the_same_key_gives_the_same_answer_and_one_object(client: stripe.StripeClient, world: World) -> None:
    first, second = await create(client), await create(client)
    assert second.id == first.id
    assert sessions(world) == 1
    replay = second.last_response.headers
    assert replay["idempotent-replayed"] == "true"
    assert replay["original-request"] == first.last_response.headers["request-id"]
    assert replay["request-id"] != first.last_response.headers["request-id"]
    assert "idempotent-replayed" not in first.last_response.headers
    assert [entry.effect for entry in world.log.entries()] == ["checkout_session_created", None]


async def test_the_order_and_spelling_of_parameters_do_not_matter(raw: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "k", "content-type": "application/x-www-form-urlencoded"}
    bodies = ["email=a%40b.c&name=Ada", "name=Ada&email=a@b.c"]
    first, second = [await raw.post("/v1/customers", content=body, headers=headers) for body in bodies]
    assert first.json()["id"] == second.json()["id"]


async def test_a_key_is_bound_to_its_parameters(client: stripe.StripeClient, world: World) -> None:
    await create(client)
    with pytest.raises(stripe.IdempotencyError, match="same parameters") as refused:
        await create(client, client_reference_id="user_2")
    assert refused.value.http_status == 400
    assert sessions(world) == 1


async def test_a_key_is_bound_to_its_endpoint(client: stripe.StripeClient) -> None:
    await client.v1.customers.create_async({}, {"idempotency_key": "k"})
    with pytest.raises(stripe.IdempotencyError, match="same endpoint"):
        await create(client, "k")


async def test_a_key_is_forgotten_after_a_day_and_not_before(client: stripe.StripeClient, world: World) -> None:
    first = await create(client)
    world.clock.advance(DAY_S - 60)
    assert (await create(client)).id == first.id
    world.clock.advance(61)
    assert (await create(client)).id != first.id
    assert sessions(world) == 2


async def test_a_key_can_be_255_long(client: stripe.StripeClient) -> None:
    await create(client, "k" * 255)
    with pytest.raises(stripe.InvalidRequestError, match="at most 255"):
        await create(client, "k" * 256)


async def test_refused_parameters_leave_the_key_free(client: stripe.StripeClient, world: World) -> None:
    for changes in ({"mode": "barter"}, {"coupon": "c"}, {"success_url": ""}):
        with pytest.raises(stripe.InvalidRequestError):
            await create(client, **changes)
    await create(client)
    assert sessions(world) == 1


async def test_a_refusal_by_the_executing_endpoint_is_kept(client: stripe.StripeClient, world: World) -> None:
    with pytest.raises(stripe.InvalidRequestError, match="No such customer"):
        await create(client, customer="cus_1", customer_email=None)
    world.books.table("customer")["cus_1"] = {"id": "cus_1", "object": "customer", "email": None}
    with pytest.raises(stripe.InvalidRequestError, match="No such customer") as repeated:
        await create(client, customer="cus_1", customer_email=None)
    assert repeated.value.headers is not None
    assert repeated.value.headers["idempotent-replayed"] == "true"


async def test_reads_take_no_part(raw: httpx.AsyncClient, world: World) -> None:
    for _ in range(2):
        response = await raw.get("/v1/events", headers={"idempotency-key": "k"})
        assert "idempotent-replayed" not in response.headers
    assert world.stripe_api.idempotency.slots == {}


async def test_a_key_in_use_is_a_conflict(client: stripe.StripeClient, world: World) -> None:
    fault = world.faults.add(Fault(Vendor.STRIPE, Act.HANG))
    hanging = asyncio.ensure_future(create(client))
    await wait_until(lambda: bool(world.stripe_api.idempotency.slots), within_s=5, what="the key is held")
    with pytest.raises(stripe.APIError) as refused:
        await create(client)
    assert refused.value.http_status == 409
    assert refused.value.error is not None
    assert refused.value.error.code == "idempotency_key_in_use"
    world.faults.clear(fault)
    with pytest.raises(stripe.APIConnectionError):
        await hanging
    assert sessions(world) == 0
    await create(client)
    assert sessions(world) == 1, "nothing had begun, so the key was free"


async def test_sixteen_at_once_make_one_object(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.LATE, delay_ms=50, times=None))
    results = await asyncio.gather(*(create(client) for _ in range(16)), return_exceptions=True)
    assert sessions(world) == 1
    conflicts = [one for one in results if isinstance(one, stripe.APIError)]
    assert {one.http_status for one in conflicts} == {409}
    assert len(conflicts) == 15
    winner = next(entry for entry in world.log.entries() if entry.status == 200)
    assert all(winner.seq in entry.overlaps for entry in world.log.entries() if entry.seq > winner.seq)


# ----------------------------------------------------------------------------------------------------------- faults


async def test_a_500_before_the_commit_is_kept_for_a_day(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.server_error()))
    for number in range(2):
        with pytest.raises(stripe.APIError) as failed:
            await create(client)
        assert failed.value.http_status == 500
        assert failed.value.headers is not None
        assert failed.value.headers["stripe-should-retry"] == "false"
        assert ("idempotent-replayed" in failed.value.headers) == (number == 1)
    assert sessions(world) == 0
    world.clock.advance(DAY_S)
    await create(client)
    assert sessions(world) == 1


async def test_a_500_after_the_commit_hides_the_object(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, Moment.AFTER, refusals.server_error()))
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            await create(client)
    assert sessions(world) == 1
    listed = await client.v1.checkout.sessions.list_async({})
    assert listed.data[0].client_reference_id == "user_1", "only looking finds it"


async def test_a_500_that_is_not_kept_leaves_the_key_free(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.server_error(should_retry=True, saved=False)))
    with pytest.raises(stripe.APIError):
        await create(client)
    await create(client)
    assert sessions(world) == 1


async def test_the_library_does_not_retry_a_500_that_says_so(urls: Urls, world: World) -> None:
    http = stripe.HTTPXClient(timeout=30, allow_sync_methods=False, verify_ssl_certs=False)
    client = stripe.StripeClient(
        DEFAULT_KEY, base_addresses={"api": urls.stripe}, http_client=http, max_network_retries=2
    )
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.server_error()))
    with pytest.raises(stripe.APIError):
        await create(client)
    assert len(world.log.entries()) == 1
    await http.close_async()


async def test_a_drop_after_the_commit_is_answered_by_the_same_key(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.DROP, Moment.AFTER))
    with pytest.raises(stripe.APIConnectionError):
        await create(client)
    assert sessions(world) == 1
    assert (await create(client)).last_response.headers["idempotent-replayed"] == "true"
    assert sessions(world) == 1
    dropped, replayed = world.log.entries()
    assert (dropped.ending, dropped.status, dropped.effect) == (Ending.DROPPED, None, "checkout_session_created")
    assert (replayed.ending, replayed.status, replayed.effect) == (Ending.ANSWERED, 200, None)


async def test_a_drop_before_the_commit_did_nothing(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.DROP))
    with pytest.raises(stripe.APIConnectionError):
        await create(client)
    assert sessions(world) == 0
    assert world.log.entries()[0].effect is None


async def test_a_cut_answer_was_carried_out_too(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.CUT))
    with pytest.raises(stripe.APIConnectionError):
        await create(client)
    assert (sessions(world), world.log.entries()[0].ending) == (1, Ending.CUT)


async def test_the_network_can_fail_a_replay_too_but_the_endpoint_cannot(
    client: stripe.StripeClient, world: World
) -> None:
    await create(client)
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.server_error()))
    assert (await create(client)).last_response.headers["idempotent-replayed"] == "true"
    world.faults.clear()
    for trouble in (
        Fault(Vendor.STRIPE, Act.DROP),
        Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.rate_limited()),
        Fault(Vendor.STRIPE, Act.ANSWER, reply=refusals.bad_gateway()),
    ):
        world.faults.add(trouble)
        with pytest.raises(stripe.StripeError):
            await create(client)
    assert (await create(client)).last_response.headers["idempotent-replayed"] == "true"
    assert sessions(world) == 1


@pytest.mark.parametrize(
    ("reply", "kind", "status", "code"),
    [
        (refusals.rate_limited(), stripe.RateLimitError, 429, "rate_limit"),
        (refusals.rate_limited(lock_timeout=True), stripe.RateLimitError, 429, "lock_timeout"),
        (refusals.key_in_use_reply(), stripe.APIError, 409, "idempotency_key_in_use"),
        (refusals.bad_gateway(), stripe.APIError, 502, None),
        (
            refusals.error_reply(402, "Your card was declined.", kind="card_error", code="card_declined"),
            stripe.CardError,
            402,
            "card_declined",
        ),
        (refusals.error_reply(403, "This key may not."), stripe.PermissionError, 403, None),
    ],
)
async def test_refusals_reach_the_library_as_what_they_are(
    client: stripe.StripeClient, world: World, reply: Any, kind: type[stripe.StripeError], status: int, code: str | None
) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=reply))
    with pytest.raises(kind) as refused:
        await create(client)
    assert type(refused.value) is kind
    assert refused.value.http_status == status
    assert (refused.value.error and refused.value.error.code) == code
    kept = status == 402
    assert bool(world.stripe_api.idempotency.slots) == kept, "only what an executing endpoint said is kept"


async def test_a_fault_waits_for_a_request_that_reached_the_endpoint(client: stripe.StripeClient, world: World) -> None:
    world.faults.add(Fault(Vendor.STRIPE, Act.DROP))
    with pytest.raises(stripe.AuthenticationError):
        await client.v1.events.list_async({}, {"api_key": "sk_test_wrong"})
    assert world.faults.listing()[0].fired == 0
