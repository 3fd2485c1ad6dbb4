"""A username before the money moves: only a clear no refuses a sale, and nothing makes a buyer wait."""

import asyncio
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.gateway import invite as module
from services.fulfillment.gateway.invite import GATE, GitHubInviter, InviteSettings
from services.fulfillment.machine import (
    HandleAnswer,
    HandleKnown,
    HandleUnknown,
    HandleUnverified,
    Pause,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.control import SandboxControl
from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN
from services.sandbox.log import Vendor
from services.sandbox.wire import AddAccount
from services.sandbox.world import Urls, World
from services.vendors.http import http_client
from tests.fulfillment.gateway.test_invite import (
    API,
    NOT_FOUND,
    SECONDARY,
    USER,
    GitHub,
    OpenGates,
    Reply,
    account,
    github,
    says,
)
from tests.sandbox.github.description import Description

PLANTED = "<title>Unicorn!</title>"


def busy(seconds: float | None = None) -> HandleUnverified:
    return HandleUnverified("rate_limited", pause=Pause(None if seconds is None else timedelta(seconds=seconds)))


def user(**fields: Any) -> httpx.Response:
    return httpx.Response(200, json={"login": "octocat", "id": 583231, "type": "User"} | fields)


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (user(), HandleKnown("octocat", 583231)),
        (user(login="OctoCat"), HandleKnown("OctoCat", 583231)),
        (account("Organization"), HandleUnknown("not_a_person")),
        (account("Bot"), HandleUnknown("not_a_person")),
        (NOT_FOUND, HandleUnknown("no_such_account")),
        # an answer about somebody else, whoever that is
        (user(login="octocat-2"), HandleUnverified("login_differs")),
        (user(login="octo", type="Organization"), HandleUnverified("login_differs")),
        # kinds of account that nobody told us of
        (account("Mannequin"), HandleUnverified("account_type")),
        (user(type=None), HandleUnverified("account_type")),
        # a body that cannot be read
        (httpx.Response(200, content=b"{"), HandleUnverified("vendor_trouble")),
        (httpx.Response(200, json=[]), HandleUnverified("vendor_trouble")),
        (user(id="583231x"), HandleUnverified("vendor_trouble")),
        (user(id=2**63), HandleUnverified("vendor_trouble")),
        (user(login=None), HandleUnverified("vendor_trouble")),
        # our token
        (says(401, "Bad credentials"), HandleUnverified("http_401", our_fault=True)),
        # refused, and not said why
        (says(403, "no reason"), HandleUnverified("http_403")),
        (httpx.Response(403), HandleUnverified("http_403")),
        (says(400), HandleUnverified("http_400")),
        (says(410), HandleUnverified("http_410")),
        (says(451), HandleUnverified("http_451")),
        # everybody is refused: whoever asked must tell the others
        (says(403, SECONDARY), busy()),
        (says(403, SECONDARY, retry_after="30"), busy(30)),
        (says(403, "API rate limit exceeded", x_ratelimit_remaining="0"), busy()),
        (httpx.Response(429), busy()),
        (says(429, retry_after="120"), busy(120)),
        # trouble of theirs
        (says(408), HandleUnverified("vendor_trouble")),
        (says(409), HandleUnverified("conflict")),
        (says(500), HandleUnverified("vendor_trouble")),
        (httpx.Response(502, html=PLANTED), HandleUnverified("vendor_trouble")),
        (says(503), HandleUnverified("vendor_trouble")),
        (httpx.Response(204), HandleUnverified("vendor_trouble")),
        (httpx.Response(301, headers={"location": "https://evil.test/users/octocat"}), HandleUnverified("http_301")),
        (httpx.Response(302), HandleUnverified("http_302")),
        # no answer
        (httpx.ConnectError, HandleUnverified("unreachable")),
        (httpx.PoolTimeout, HandleUnverified("unreachable")),
        (httpx.ReadTimeout, HandleUnverified("timed_out")),
        (TimeoutError, HandleUnverified("timed_out")),
        (httpx.ReadError, HandleUnverified("cut_off")),
        (httpx.RemoteProtocolError, HandleUnverified("cut_off")),
        (httpx.DecodingError, HandleUnverified("cut_off")),
    ],
    ids=lambda value: str(getattr(value, "status_code", getattr(value, "code", getattr(value, "__name__", "known")))),
)
async def test_only_a_clear_no_is_one(answer: Reply, meant: HandleAnswer) -> None:
    world = github(user=answer)
    assert await world.inviter().check("octocat") == meant
    assert world.asked() == [USER]


@pytest.mark.parametrize("asked_for", ["OCTOCAT", "OctoCat"])
async def test_letter_case_is_githubs_to_know(asked_for: str) -> None:
    world = GitHub({f"GET /users/{asked_for}": github(user=user()).script[USER]})
    assert await world.inviter().check(asked_for) == HandleKnown("octocat", 583231)


async def test_a_redirect_is_followed_once_and_no_loop_is() -> None:
    moved = httpx.Response(301, headers={"location": f"{API}/user/583231"})
    world = github(user=moved, account=user())
    assert await world.inviter().check("octocat") == HandleKnown("octocat", 583231)
    loop = github(user=[httpx.Response(301, headers={"location": f"{API}/users/octocat"}) for _ in range(3)])
    assert await loop.inviter().check("octocat") == HandleUnverified("http_301")
    assert loop.asked() == [USER, USER]


async def test_the_question_carries_the_token_and_what_github_wants() -> None:
    world = github(user=user())
    await world.inviter().check("octocat")
    (request,) = world.requests
    assert request.headers["authorization"] == "Bearer github_pat_x"
    assert request.headers["user-agent"] == "rowclaim"
    assert request.headers["x-github-api-version"] == "2026-03-10"
    assert request.content == b""


@pytest.mark.parametrize(
    "login",
    [
        *("a/b", "..", ".", "%2e%2e", "%2F", "octocat/", " octocat ", "@octocat", "-dash", "a?b=c", "a#b", "a;b"),
        *(
            "https://github.com/octocat",
            "x" * 300,
            "🐙",
            "dependabot[bot]",
            "a\\b",
            "a\nb",
            "a\0b",
            "é",
            "user/../orgs",
        ),
    ],
)
async def test_whatever_it_holds_exactly_that_login_is_asked_about_once(login: str) -> None:
    seen: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return NOT_FOUND

    inviter = github().inviter()
    inviter._http = http_client(httpx.MockTransport(answer))
    assert await inviter.check(login) == HandleUnknown("no_such_account")
    (path,) = seen
    *before, segment = path.decode("ascii").split("/")
    assert before == ["", "users"]
    assert unquote(segment) == login
    assert segment not in (".", "..")
    assert "?" not in segment


async def test_what_is_no_unicode_is_githubs_to_judge_too_and_nothing_is_nobody() -> None:
    seen: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return says(400)

    inviter = github().inviter()
    inviter._http = http_client(httpx.MockTransport(answer))
    assert await inviter.check("\ud800") == HandleUnverified("http_400")
    assert await inviter.check("") == HandleUnknown("no_such_account")
    assert seen == [b"/users/%ED%A0%80"]


# ------------------------------------------------------------------------------------------------------ nobody waits
async def test_the_whole_of_it_is_bounded_and_the_wait_for_the_pace_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHECK_BOUND_S", 0.05)

    class Queue(OpenGates):
        async def value(self, query: str, *args: object) -> Any:
            return 3600.0 if "next_start_at" in query else None

    world = github()
    inviter = world.inviter()
    inviter.gates = Gates(Queue(), pace_s={GATE: 1})
    async with asyncio.timeout(5):
        assert await inviter.check("octocat") == HandleUnverified("timed_out")
    assert world.requests == []


async def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_BOUND_S", 0.05)

    async def silent(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    inviter = github().inviter()
    inviter._http = http_client(httpx.MockTransport(silent))
    async with asyncio.timeout(5):
        assert await inviter.check("octocat") == HandleUnverified("timed_out")


async def test_a_rush_of_buyers_takes_no_turn_from_the_invitations() -> None:
    """No turn within its patience: the database, asked for one with that bound, gives none."""
    bounds: list[object] = []

    class Rush(OpenGates):
        async def value(self, query: str, *args: object) -> Any:
            bounds.extend(args[2:])
            return None

    world = github()
    inviter = world.inviter()
    inviter.gates = Gates(Rush(), pace_s={GATE: 1})
    assert await inviter.check("octocat") == HandleUnverified("vendor_busy")
    assert world.requests == []
    assert bounds == [timedelta(seconds=module.CHECK_PATIENCE_S)]
    assert module.CHECK_PATIENCE_S < module.CHECK_BOUND_S <= 5


async def test_a_closed_gate_or_a_lost_database_lets_the_sale_go_on() -> None:
    world = github()
    world.database.down_after = 0
    assert await world.inviter().check("octocat") == HandleUnverified("gate_closed")

    class Lost(OpenGates):
        async def value(self, query: str, *args: object) -> Any:
            raise Retryable("database_unavailable")

    assert await GitHub({}, database=Lost()).inviter().check("octocat") == HandleUnverified("database_unavailable")
    assert world.requests == []


# ------------------------------------------------------------------------------------------------------- the vendor
async def test_github_is_asked_in_its_own_words(
    world: World, urls: Urls, control: SandboxControl, github_description: Description
) -> None:
    person = await control.do(AddAccount("Ada-Lovelace"))
    settings = InviteSettings(
        github_api_url=urls.github, github_token=SecretStr(DEFAULT_TOKEN), github_repository=DEFAULT_REPOSITORY
    )
    async with http_client() as http:
        inviter = GitHubInviter(settings, http, Gates(OpenGates()))
        asked = ("ada-lovelace", "github", "dependabot[bot]", "nobody-at-all", "..", "a/b")
        answers = [await inviter.check(login) for login in asked]
        world.github.revoke_token(DEFAULT_TOKEN)
        answers.append(await inviter.check("octocat"))
    assert answers == [
        HandleKnown("Ada-Lovelace", person.id),
        HandleUnknown("not_a_person"),
        HandleUnknown("not_a_person"),
        HandleUnknown("no_such_account"),
        HandleUnknown("no_such_account"),
        HandleUnknown("no_such_account"),
        HandleUnverified("http_401", our_fault=True),
    ]
    entries = world.log.entries(Vendor.GITHUB)
    assert len(entries) == 7
    for entry in entries:
        assert (entry.method, entry.effect) == ("GET", None)
        github_description.check_logged(entry)
