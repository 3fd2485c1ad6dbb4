"""Names, addresses and usernames go in at every door, and come out at none that is not theirs.

Each planted word bears one mark, so that it is found however it was cut, escaped or encoded on the way. What is
searched: every log line at debug level, the metrics, every record for a topic, reports and pages, every problem
document, and all that operators read of rows. What a person has a right to read, or a vendor must be told, is not: a
buyer's own list, the mail, the purchase itself, an operator's reason where it is kept.
"""

import asyncio
import base64
import io
import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, redirect_stderr
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote_plus

import httpx
import pytest

from services.fulfillment.consumer import SERVICE as FULFILLMENT
from services.identity.consumer import SERVICE as IDENTITY
from services.ingress.consumer import SERVICE as INGRESS
from services.kernel.triggers import Publisher
from services.kernel.worker import Worker
from services.operations import web
from services.operations.consuming import begin
from services.operations.environment import load
from services.operations.jobs import run_job
from services.operations.logs import configure_logging
from services.operations.paging import LogSender, send_unsent
from services.operations.process import Process
from services.operations.serving import readiness, routes_of
from services.sandbox.embedded.mail import MailFault
from services.sandbox.faults import Act, Fault, Reply
from services.sandbox.log import Vendor
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.stripe.resources.charges import refund
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.world import Urls
from tests.fixtures.database import Connection
from tests.fixtures.fulfillment import House, session_params
from tests.fixtures.logs import logging_restored
from tests.fixtures.tokens import ISSUER, PublishedKeys, bearer, private_key, token
from tests.fulfillment.conftest import Purchases
from tests.ingress.signing import CLERK_NEW, NEW, clerk_headers, stripe_headers
from tests.waiting import wait_until

MARK: Final = "qzxplant"
NAME: Final = "Qzxplant Nomen"
MAIL: Final = "qzxplant.mail@qzxplant.example"
LOGIN: Final = "qzxplant-login"
STRANGER: Final = "qzxplant-stranger"
SERVICES: Final = (FULFILLMENT, IDENTITY, INGRESS)
VENDORS_OWN: Final = ("mail.log", "services.sandbox.", "uvicorn")
"""Loggers of the outside world, which lives in this process and may know whom it serves."""

Records = list[tuple[str, bytes]]


@dataclass(slots=True)
class Said:
    """All that came out."""

    problems: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    records: Records = field(default_factory=list)
    events: "itertools.count[int]" = field(default_factory=itertools.count)
    """Numbers for what is told."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Every slice in one process, its routes served and its workers at work."""

    house: House
    process: Process
    http: httpx.AsyncClient
    owner: Connection
    said: Said

    async def ask(self, method: str, path: str, *, status: int | None = None, **request: Any) -> httpx.Response:
        """A request; whatever is refused is a problem document, and kept."""
        answer = await self.http.request(method, path, **request)
        assert status is None or answer.status_code == status, answer.text
        if answer.status_code >= 400:
            self.said.problems.append(f"{dict(answer.headers)} {answer.text}")
        return answer

    async def stripe(self, kind: str, about: Mapping[str, Any], **event: Any) -> None:
        """An event of Stripe's at the door, properly signed."""
        whole = {"id": f"evt_{next(self.said.events)}", "object": "event", "type": kind}
        body = json.dumps(whole | {"data": {"object": about}} | event).encode()
        await self.ask("POST", "/webhooks/stripe", status=202, content=body, headers=dict_of(stripe_headers(body)))

    async def clerk(self, kind: str, user: Mapping[str, Any]) -> None:
        body = json.dumps({"object": "event", "type": kind, "data": user, "timestamp": 1}).encode()
        headers = dict_of(clerk_headers(body, message_id=f"msg_{next(self.said.events)}"))
        await self.ask("POST", "/webhooks/clerk", status=202, content=body, headers=headers)

    async def at_rest(self) -> None:
        """Every event was handled, or put off."""

        async def handled() -> bool:
            busy = "state = 'in_progress' or (state = 'pending' and next_attempt_at <= rowclaim_now())"
            return not await self.owner.fetchval(f"select count(*) from webhook_deliveries where {busy}")

        await wait_until(handled, within_s=60, what="every delivery handled or put off")


def dict_of(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


@asynccontextmanager
async def installed(
    house: House, owner: Connection, monkeypatch: pytest.MonkeyPatch, price: str
) -> AsyncIterator[Installation]:
    """Served and consumed as `rowclaim serve` and `rowclaim consume` do, in this process."""
    said = Said()

    async def publish(self: Publisher, topic: str, value: bytes | None, **more: Any) -> None:
        said.records.append((topic, (value or b"") + repr(more).encode()))

    async def sender(process: Process) -> LogSender:
        return LogSender()

    async def keys(process: Process) -> PublishedKeys:
        return PublishedKeys()

    async def never(error: BaseException) -> None:
        raise AssertionError(error)

    monkeypatch.setattr(Publisher, "publish", publish)
    settings = {
        "ROWCLAIM_AUTH_ISSUER": ISSUER,
        "ROWCLAIM_INGRESS_STRIPE_SECRETS": NEW,
        "ROWCLAIM_INGRESS_CLERK_SECRETS": CLERK_NEW,
        "ROWCLAIM_FULFILLMENT_CHECKOUT_PRICE": price,
        "ROWCLAIM_FULFILLMENT_CHECKOUT_SUCCESS_URL": "https://acme-school.example/thanks",
        "ROWCLAIM_FULFILLMENT_CHECKOUT_CANCEL_URL": "https://acme-school.example/checkout",
    }
    loaded = load(SERVICES, SERVICES, {**house.environ, **settings})
    async with Process.open("tests", SERVICES, loaded, sender) as process:
        app = web.make_app(await routes_of(process, SERVICES, keys), await readiness(process, SERVICES), never)
        slices = await begin(process, SERVICES)
        workers: list[Worker] = [worker for one in slices for worker in one.consumption.workers]
        runs = [worker.run(process.stopping) for worker in workers] + [process.doorbell.run(process.stopping)]
        running = [asyncio.create_task(run) for run in runs]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
            yield Installation(house, process, http, owner, said)
        for one in slices:
            for job in one.consumption.jobs:
                stop = asyncio.Event()
                running.append(asyncio.create_task(run_job(job, await process.database(one.service.role), stop)))
                await wait_until(
                    lambda name=job.name: owner.fetchval(  # type: ignore[misc]  # a coroutine of the driver's
                        "select count(*) from job_runs where job = $1 and state = 'done'", name
                    ),
                    within_s=30,
                    what=f"{job.name} done",
                )
                stop.set()
        said.reports += [str(r["report"]) for r in await owner.fetch("select report from job_runs")]
        said.reports.append(str(await send_unsent(await process.database(process.own_role), process.page_sender)))
        process.stopping.set()
        await asyncio.gather(*running)


# ---------------------------------------------------------------------------------------------------------- the search
READ_BY_OPERATORS: Final = {
    "pages": "select dedup_key || ' ' || summary from pages",
    "gates": "select reason || ' ' || closed_by from vendor_gates where closed_by <> 'admin_1'",
    "parked": "select coalesce(parked_reason, '') || coalesce(claimed_by, '') from webhook_deliveries",
    "desk": "select row_to_json(a)::text from desk.fulfillment_attention a",
    "acts": "select concat_ws(' ', actor, verb, target, before - 'reason', after - 'reason') from admin_actions",
    "jobs": "select coalesce(report::text, '') from job_runs",
    "codes": "select coalesce(fulfillment_last_code, '') || coalesce(attention, '') from purchases",
}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}")


def leaks(text: str) -> list[str]:
    """What of the planted stands in a text: as it is, percent-encoded, escaped, or in base64."""
    forms = [text, unquote_plus(text)]
    for word in _BASE64.findall(text):
        whole = word.replace("+", "-").replace("/", "_")[: len(word) // 4 * 4]
        forms.append(base64.urlsafe_b64decode(whole).decode("utf-8", "replace"))
    return [form[max(0, at.start() - 80) : at.end() + 80] for form in forms for at in re.finditer(MARK, form, re.I)]


def lines_of_ours(written: str) -> list[str]:
    """Log lines but those of the vendors, who live in this process too."""
    lines = written.splitlines()
    return [line for line in lines if not str(_logger(line)).startswith(VENDORS_OWN)]


def _logger(line: str) -> object:
    try:
        return json.loads(line).get("logger")
    except ValueError:
        return None


@pytest.fixture
def purchases(owner: Connection) -> Purchases:
    return Purchases(owner)


@pytest.fixture
async def shop(
    house: House,
    urls: Urls,
    owner: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Installation]:
    """An installation at work; when the test is done, all that came out of it is searched."""
    house.world.github.add_account(LOGIN, name=NAME)
    price = {"currency": "usd", "unit_amount": "4900", "product_data[name]": "Course materials"}
    async with httpx.AsyncClient() as http:
        made = await http.post(f"{urls.stripe}/v1/prices", data=price, headers=bearer(DEFAULT_KEY))
    logged = io.StringIO()
    with logging_restored():
        with redirect_stderr(logged):  # what the log's handler writes to from here on
            configure_logging("debug", process="tests", run=None)
        async with installed(house, owner, monkeypatch, made.json()["id"]) as installation:
            yield installation
            await installation.at_rest()
            metrics = (await installation.ask("GET", "/metrics")).text
    lines = lines_of_ours(logged.getvalue())
    assert any('"level": "debug"' in line or '"level": "info"' in line for line in lines), "the log was listened to"
    came_out = {
        "log": lines,
        "metrics": metrics.splitlines(),
        "records": [f"{topic} {value.decode()}" for topic, value in installation.said.records],
        "reports": installation.said.reports,
        "problems": installation.said.problems,
    }
    for name, query in READ_BY_OPERATORS.items():
        came_out[name] = [str(row[0]) for row in await owner.fetch(query)]
    found = [f"{name}: {leak}" for name, texts in came_out.items() for text in texts for leak in leaks(text)]
    assert found == [], "\n".join(found[:20])


def buyer(**claims: Any) -> dict[str, str]:
    """A buyer's token; an issuer may well put people into it."""
    return bearer(token("user_1", **({"name": NAME, "email": MAIL, "username": LOGIN} | claims)))


def admin() -> dict[str, str]:
    return bearer(token("admin_1", role="admin", name=NAME, email=MAIL))


PLANTED_HEADERS: Final = {
    "user-agent": f"Mozilla ({MAIL})",
    "x-forwarded-for": f"{MARK}.example",
    "referer": f"https://shop.example/?name={NAME}",
    "cookie": f"session={MARK}",
    "traceparent": f"00-{MARK}-{MARK}-01",
    "x-request-id": MAIL,
}


# ------------------------------------------------------------------------------------------------------------ the tests
async def test_whoever_calls_the_api(shop: Installation, purchases: Purchases) -> None:
    headers = buyer() | PLANTED_HEADERS
    query = f"?email={MAIL}&name={NAME}"

    async def buys(status: int, **request: Any) -> None:
        extra = request.pop("headers", {})
        await shop.ask("POST", f"/checkout/session{query}", status=status, headers=headers | extra, **request)

    await buys(201, json={"githubUsername": LOGIN}, headers={"idempotency-key": f"{MARK}-1"})
    await buys(409, json={"githubUsername": None}, headers={"idempotency-key": f"{MARK}-1"})
    await buys(400, json={"githubUsername": STRANGER})
    await buys(400, json={"githubUsername": LOGIN}, headers={"idempotency-key": MARK * 30})
    await buys(422, json={"githubUsername": MARK * 20})
    await buys(422, json={"githubUsername": {"name": NAME}})
    await buys(422, json={"githubUsername": LOGIN, "email": MAIL})
    await buys(422, json={MARK: MARK})
    await buys(422, json={"githubUsername": f"{MARK}\0"})
    await buys(422, json=[NAME])
    for content in (f'{{"{NAME}'.encode(), f'"{MAIL}'.encode(), b"\xff" + MARK.encode()):
        answer = await shop.ask("POST", "/checkout/session", headers=headers, content=content)
        assert answer.status_code in (400, 422)
    await buys(413, content=MARK.encode() * 20_000)

    mine = {"user_id": "user_1", "email": MAIL, "fulfillment_last_error": f"HTTP 404: {LOGIN}"}
    before = await purchases.now() - timedelta(minutes=11)
    failed = await purchases.in_state("failed", LOGIN, fulfillment_attempted_at=before, **mine)
    delivered = await purchases.in_state("delivered", LOGIN, user_id="user_1", email=MAIL)
    assert LOGIN in (await shop.ask("GET", f"/fulfillment{query}", status=200, headers=headers)).text

    async def corrects(status: int, purchase: object, username: object) -> None:
        body = {"purchaseId": purchase, "githubUsername": username}
        await shop.ask("POST", f"/fulfillment/requeue{query}", status=status, headers=headers, json=body)

    await corrects(409, failed, LOGIN.upper())
    await corrects(400, failed, STRANGER)
    await corrects(409, delivered, STRANGER)
    await corrects(404, 999_999, LOGIN)
    await corrects(422, MAIL, LOGIN)
    await corrects(422, failed, MARK * 20)
    shop.house.world.github.add_account(f"{MARK}-right")
    await corrects(200, failed, f"{MARK}-right")
    assert shop.house.invited() == [f"{MARK}-right"]

    for path in (f"/{MARK}/{MAIL}", f"/admin/users/{MAIL}", f"/fulfillment/{MAIL}"):
        await shop.ask("GET", path, status=404, headers=headers)
    await shop.ask("DELETE", f"/fulfillment{query}", status=405, headers=headers)


async def test_whoever_acts_at_the_desk(shop: Installation, purchases: Purchases, owner: Connection) -> None:
    delivered = await purchases.in_state("delivered", LOGIN, user_id="user_1", email=MAIL)
    nobodys = await purchases.in_state("failed", LOGIN, email=MAIL, fulfillment_last_error=f"HTTP 422: {NAME}")
    send = "/admin/users/user_1/fulfillment/retrigger"
    await shop.ask("POST", send, status=403, headers=buyer(), json={})
    await shop.ask("POST", send, status=409, headers=admin(), json={"reason": NAME})
    await shop.ask("POST", send, status=400, headers=admin(), json={"force": True})
    await shop.ask("POST", send, status=422, headers=admin(), json={"purchaseId": MAIL, "reason": {"name": NAME}})
    answer = await shop.ask("POST", send, status=200, headers=admin(), json={"force": True, "reason": f"{NAME} asked"})
    assert answer.json()["purchases"][0]["id"] == delivered
    shop.said.reports.append(answer.text)
    await shop.ask("POST", f"/admin/users/{MAIL}/fulfillment/retrigger", status=404, headers=admin(), json={})
    link = f"/admin/purchases/{nobodys}/link"
    await shop.ask("POST", link, status=200, headers=admin(), json={"userId": "user_1", "reason": f"{MAIL} wrote"})
    await shop.ask("POST", link, status=409, headers=admin(), json={"userId": "user_2", "reason": MAIL})
    await shop.ask("POST", f"/admin/purchases/{MARK}/link", status=422, headers=admin(), json={"userId": "user_1"})
    assert NAME in (await shop.ask("GET", "/admin/fulfillments/attention", status=200, headers=admin())).text
    gate = "/admin/vendors/github/gate"
    await shop.ask("POST", f"{gate}/close", status=200, headers=admin(), json={"reason": f"{NAME} said so"})
    await shop.ask("POST", f"{gate}/close", status=422, headers=admin(), json={"reason": NAME, "minutes": MAIL})
    await shop.ask("POST", f"{gate}/open", status=200, headers=admin(), json={"reason": MAIL})
    kept = await owner.fetchval("select count(*) from admin_actions where reason ilike '%' || $1 || '%'", MARK)
    assert kept == 4, "why somebody acted is kept, and nowhere else"


async def test_whoever_shows_a_token(shop: Installation) -> None:
    stranger = private_key("stranger")
    await shop.ask("GET", "/fulfillment", status=200, headers=buyer())
    await shop.ask("GET", "/admin/fulfillments/attention", status=403, headers=buyer(role=NAME))
    refused = [
        {"authorization": f"Bearer {MAIL}"},
        {"authorization": f"Basic {base64.b64encode(MAIL.encode()).decode()}"},
        {"authorization": MARK},
        buyer(iss=f"https://{MARK}.example"),
        buyer(exp=1),
        bearer(token("user_1", headers={"kid": MARK}, name=NAME)),
        bearer(token("user_1", key=stranger, email=MAIL)),
        bearer(token("user_1", key=MARK.encode() * 8, algorithm="HS256", email=MAIL)),
        buyer(sub=None),
        buyer(sub={"name": NAME}),
    ]
    for headers in refused:
        await shop.ask("GET", "/fulfillment", status=401, headers=headers)


def session_of(shop: Installation, **more: Any) -> str:
    """A Session that a planted buyer completed at Stripe."""
    params = session_params(LOGIN, customer_email=MAIL) | more
    session = open_session(shop.house.world.books, params)
    shop.house.world.buyer.complete(str(session["id"]), email=MAIL, name=NAME)
    return str(session["id"])


async def test_whatever_stripe_and_clerk_tell(shop: Installation, owner: Connection) -> None:
    details = {"customer_details": {"name": NAME, "email": MAIL}, "metadata": {"github_username": LOGIN}}
    session = {"object": "checkout.session", "id": session_of(shop)} | details
    await shop.stripe("checkout.session.completed", session)
    await shop.at_rest()
    assert await owner.fetchval("select github_handle from purchases") == LOGIN
    assert [mail.recipients for mail in shop.house.sink.messages] == [(MAIL,)]

    for about in (
        session | {"id": f"cs_{MARK}"},
        session | {"id": f"../{MAIL}"},
        {"object": MARK, "id": NAME},
        {"object": "checkout.session", "id": session_of(shop, metadata={"who": NAME}), **details},
        {"object": "checkout.session", "id": session_of(shop, metadata={"rowclaim_slice": MARK})},
        {
            "object": "checkout.session",
            "id": session_of(shop, metadata={"rowclaim_slice": "fulfillment", "github_account_id": MARK}),
        },
    ):
        await shop.stripe("checkout.session.completed", about)
    billing = {"billing_details": {"name": NAME, "email": MAIL}, "receipt_email": MAIL}
    charge = refund(shop.house.world.books, session["id"])
    await shop.stripe("charge.refunded", {"object": "charge", "id": charge["id"], **billing})
    await shop.stripe("charge.refunded", {"object": "charge", "id": f"ch_{MARK}", **billing})
    evidence = {"evidence": {"customer_name": NAME, "customer_email_address": MAIL}}
    await shop.stripe("charge.dispute.created", {"object": "dispute", "id": "du_1", "charge": charge["id"], **evidence})
    await shop.stripe("charge.dispute.created", {"object": "dispute", "id": "du_2", "charge": {"name": NAME}})

    user = {
        "object": "user",
        "id": "user_1",
        "first_name": NAME,
        "username": LOGIN,
        "updated_at": 1,
        "primary_email_address_id": "idn_1",
        "email_addresses": [{"id": "idn_1", "email_address": MAIL}],
        "external_accounts": [{"provider": "oauth_github", "username": LOGIN}],
        "private_metadata": {"stripe_customer_id": "cus_1", "note": NAME},
    }
    await shop.clerk("user.created", user)
    await shop.clerk("user.updated", user | {"updated_at": NAME})
    await shop.clerk("user.updated", user | {"email_addresses": MAIL})
    await shop.clerk("user.updated", user | {"primary_email_address_id": MAIL, "private_metadata": MARK})
    await shop.clerk("user.deleted", {"object": "user", "id": "user_1", "deleted": True, "email": MAIL})
    await shop.at_rest()
    assert await owner.fetchval("select count(*) from purchases where revoked_at is not null") == 1


async def test_whoever_is_no_sender(shop: Installation) -> None:
    body = json.dumps({"id": f"evt_{MARK}", "type": MARK, "data": {"object": {"name": NAME, "email": MAIL}}}).encode()
    for source, headers in (
        ("stripe", {"stripe-signature": f"t=1,v1={MARK}"}),
        ("stripe", {"stripe-signature": MAIL}),
        ("stripe", dict_of(stripe_headers(body, "whsec_another"))),
        ("stripe", {}),
        ("clerk", {"svix-id": MAIL, "svix-timestamp": MARK, "svix-signature": f"v1,{MARK}"}),
        ("clerk", dict_of(clerk_headers(body, message_id=MAIL, offset_s=-400))),
    ):
        await shop.ask("POST", f"/webhooks/{source}?{MARK}={MAIL}", status=400, content=body, headers=headers)
    for garbage in (f'{{"{NAME}'.encode(), f'["{MAIL}"]'.encode(), MARK.encode(), b"\xff" + MARK.encode()):
        for source, headers in (
            ("stripe", dict_of(stripe_headers(garbage))),
            ("clerk", dict_of(clerk_headers(garbage, message_id="msg_1"))),
        ):
            await shop.ask("POST", f"/webhooks/{source}", status=400, content=garbage, headers=headers)
    await shop.ask("POST", f"/webhooks/{MARK}", status=404, content=body)
    await shop.ask("POST", "/webhooks/stripe", status=413, content=MARK.encode() * 200_000)


WORDS: Final = json.dumps({"message": f"{LOGIN} ({NAME}, {MAIL}) may not", "errors": [{"message": f"{MAIL} is bad"}]})
GITHUB_SAYS: Final = {
    "no such account": Reply(404, body=WORDS),
    "bad token": Reply(401, body=WORDS),
    "no right": Reply(403, body=WORDS),
    "too fast": Reply(429, {"retry-after": MAIL}, body=WORDS),
    "too fast in words": Reply(403, body=WORDS.replace("may not", "hit a secondary rate limit")),
    "no reason": Reply(422, body=WORDS),
    "a quota": Reply(422, body=WORDS.replace("may not", "reached the limit of invitations per day")),
    "a page": Reply(502, body=f"<html>{NAME} {MAIL}</html>"),
    "moved": Reply(301, {"location": f"https://{MARK}.example/{LOGIN}"}),
    "nothing readable": Reply(201, body=f"{{{NAME}"),
    "an unknown status": Reply(418, body=WORDS),
}


@pytest.mark.promise("F54")
async def test_whatever_github_says(shop: Installation, purchases: Purchases, owner: Connection) -> None:
    """To an invitation, and to a check."""
    github = shop.house.world.log
    for reply in GITHUB_SAYS.values():
        await purchases.add(LOGIN, email=MAIL)
        shop.house.world.faults.clear()
        shop.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=reply, times=None))
        asked = len(github.entries(Vendor.GITHUB))
        await shop.clerk("user.updated", {"object": "user", "id": "user_9"})
        await shop.at_rest()
        await owner.execute("delete from vendor_gates")
        invited = len(github.entries(Vendor.GITHUB))
        await shop.ask("POST", "/checkout/session", headers=buyer(), json={"githubUsername": LOGIN})
        await owner.execute("delete from vendor_gates")
        assert asked < invited < len(github.entries(Vendor.GITHUB))


@pytest.mark.parametrize("says", ["bad token", "too fast", "a page", "nothing readable"])
async def test_whatever_github_says_of_an_old_invitation(shop: Installation, purchases: Purchases, says: str) -> None:
    """The daily look is run at the end of each of these tests."""
    for _ in range(3):
        before = await purchases.now() - timedelta(days=8)
        await purchases.in_state("delivered", LOGIN, email=MAIL, invited_at=before)
    shop.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=GITHUB_SAYS[says], times=None))


STRIPE_ERROR: Final = {"message": f"No such {NAME}: '{MAIL}'", "code": "resource_missing", "param": "customer_email"}
STRIPE_SAYS: Final = {
    "bad key": Reply(401, body=json.dumps({"error": STRIPE_ERROR | {"type": "invalid_request_error"}})),
    "unknown": Reply(404, body=json.dumps({"error": STRIPE_ERROR | {"type": "invalid_request_error"}})),
    "bad request": Reply(400, body=json.dumps({"error": STRIPE_ERROR | {"type": "invalid_request_error"}})),
    "declined": Reply(402, body=json.dumps({"error": STRIPE_ERROR | {"type": "card_error"}})),
    "broken": Reply(500, body=json.dumps({"error": STRIPE_ERROR | {"type": "api_error"}})),
    "a page": Reply(502, body=f"<html>{NAME} {MAIL}</html>"),
    "another thing": Reply(200, body=json.dumps({"object": MARK, "id": MAIL, "name": NAME})),
    "no JSON": Reply(200, body=f"{{{NAME}"),
}


async def test_whatever_stripe_says(shop: Installation, owner: Connection) -> None:
    """To a checkout, to a Session fetched, to a charge fetched."""
    sessions = {says: session_of(shop) for says in STRIPE_SAYS}
    for says, reply in STRIPE_SAYS.items():
        shop.house.world.faults.clear()
        shop.house.world.faults.add(Fault(Vendor.STRIPE, Act.ANSWER, reply=reply, times=None))
        await shop.ask("POST", "/checkout/session", status=503, headers=buyer(), json={"githubUsername": LOGIN})
        await shop.stripe("checkout.session.completed", {"object": "checkout.session", "id": sessions[says]})
        await shop.at_rest()
        await owner.execute("delete from vendor_gates")
        await shop.stripe("charge.refunded", {"object": "charge", "id": "ch_1", "billing_details": {"name": NAME}})
        await shop.at_rest()
        await owner.execute("delete from vendor_gates")
    assert await owner.fetchval("select count(*) from purchases") == 0


@pytest.mark.parametrize("fault", MailFault)
async def test_whatever_the_mail_server_says(shop: Installation, purchases: Purchases, fault: MailFault) -> None:
    await purchases.add(LOGIN, email=MAIL)
    await purchases.add(LOGIN, email=f"{MARK} no address")
    shop.house.sink.fail(fault)
    await shop.clerk("user.updated", {"object": "user", "id": "user_9"})
    await shop.at_rest()
    assert await purchases.states() == ["delivered", "delivered"]


@pytest.mark.parametrize(
    "text",
    [
        f"to {MAIL}",
        MARK.upper(),
        f"%71zxplant {'%71%7A%78plant'}",
        json.dumps({"a": [NAME]}),
        f"Bearer {base64.urlsafe_b64encode(json.dumps({'email': MAIL}).encode()).decode()}",
    ],
)
def test_the_search_finds_what_is_there(text: str) -> None:
    assert leaks(text)
    assert not leaks(re.sub("(?i)qzx|%71|[A-Za-z0-9+/_-]{16,}", "", text))
