"""GitHub's answers, one by one: what each means, and that none of them is anything but an outcome."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.gateway.invite import GATE, GitHubInviter, InviteSettings, open_inviter, paces
from services.fulfillment.machine import (
    Config,
    Delivered,
    HandleAnswer,
    HandleUnverified,
    Invitation,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    Outcome,
    Pause,
    Terminal,
    Transient,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN
from services.sandbox.log import Vendor
from services.sandbox.world import Urls, World
from services.vendors.http import http_client
from tests.house.source import ROOT, modules
from tests.sandbox.github.description import Description

API: Final = "https://api.github.test"
REPO: Final = f"{API}/repos/acme-school/course-materials"
PUT: Final = "PUT /repos/acme-school/course-materials/collaborators/octocat"
ACCESS: Final = "GET /repos/acme-school/course-materials/collaborators/octocat"
USER: Final = "GET /users/octocat"
ACCOUNT: Final = "GET /user/583231"
OLD: Final = "DELETE /repos/acme-school/course-materials/invitations/9"
INVITATIONS: Final = "GET /repos/acme-school/course-materials/invitations"
DATE: Final = "Mon, 30 Nov 2026 12:00:00 GMT"

Reply = httpx.Response | Exception | type[Exception]


class OpenGates:
    """A database in which no gate was ever closed."""

    def __init__(self) -> None:
        self.down_after: int | None = None

    async def value(self, query: str, *args: object) -> Any:
        if self.down_after is not None:
            self.down_after -= 1
            if self.down_after < 0:
                return datetime(2026, 12, 1, tzinfo=UTC)
        return None

    async def row(self, shape: object, query: str, *args: object) -> Any:
        return None

    async def execute(self, query: str, *args: object) -> int:
        return 0

    rows = value


@dataclass
class GitHub:
    """Answers by method and path, each from its own script; what nobody wrote down fails the test."""

    script: dict[str, deque[Reply]]
    requests: list[httpx.Request] = field(default_factory=list)
    database: OpenGates = field(default_factory=OpenGates)
    otherwise: Callable[[], Reply] | None = None

    def asked(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        call = f"{request.method} {request.url.path}"
        reply = self.otherwise() if self.otherwise and call not in self.script else self.script[call].popleft()
        if isinstance(reply, type):
            raise reply("planted")
        if isinstance(reply, Exception):
            raise reply
        return reply

    def inviter(self, **settings: Any) -> GitHubInviter:
        given = {
            "github_api_url": API,
            "github_token": SecretStr("github_pat_x"),
            "github_repository": "acme-school/course-materials",
        }
        http = http_client(httpx.MockTransport(self.answer))
        return GitHubInviter(InviteSettings(**(given | settings)), http, Gates(self.database))

    async def invite(
        self,
        handle: str = "octocat",
        *,
        account_id: int | None = None,
        ask_first: bool = False,
        replaces: int | None = None,
    ) -> Outcome:
        return await self.inviter().invite(InviteRequest(1, handle, account_id, ask_first, replaces))


def github(**by_call: Reply | list[Reply]) -> GitHub:
    """`put=`, `old=`, `user=`, `account=`, `access=`, `invitations=`: one answer, or several in order."""
    names = {
        "put": PUT,
        "old": OLD,
        "user": USER,
        "account": ACCOUNT,
        "access": ACCESS,
        "invitations": INVITATIONS,
    }
    return GitHub(
        {names[name]: deque(replies if isinstance(replies, list) else [replies]) for name, replies in by_call.items()}
    )


def says(status: int, message: str = "", /, *errors: Any, **headers: str) -> httpx.Response:
    """GitHub's usual error body; header names with underscores for hyphens."""
    body: dict[str, Any] = {"message": message, "documentation_url": "https://docs.github.test"}
    if errors:
        body["errors"] = list(errors)
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def custom(message: str) -> httpx.Response:
    return says(422, "Validation Failed", {"resource": "Repository", "code": "custom", "message": message})


def account(kind: str = "User", account_id: int = 583231) -> httpx.Response:
    return httpx.Response(200, json={"login": "octocat", "id": account_id, "type": kind, "more": {"of": "it"}})


def invitation(*, login: str = "octocat", account_id: int = 583231, **more: Any) -> dict[str, Any]:
    return {
        "id": 9,
        "invitee": {"login": login, "id": account_id, "type": "User"},
        "created_at": "2026-11-30T12:00:00Z",
        "html_url": "https://github.com/acme-school/course-materials/invitations",
        "permissions": "read",
    } | more


def meant(outcome: Outcome) -> Outcome:
    """The outcome without its words, which are for people."""
    match outcome:
        case Delivered(_, already, invitation):
            return Delivered("", already, invitation)
        case Terminal(code, reason, unexplained):
            assert reason
            return Terminal(code, "", unexplained)
        case Transient(code, reason, ask_first, timed_out, pause, attention):
            assert reason
            return Transient(code, "", ask_first, timed_out, pause, attention)
        case Config(code, reason, wait):
            assert reason
            return Config(code, "", wait)


ACCEPT = "https://github.com/acme-school/course-materials/invitations"
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
INVITED = Delivered("", invitation=Invitation(9, ACCEPT, 583231, NOON))
ALMOST_A_WEEK_AGO = Delivered("", invitation=Invitation(9, ACCEPT, 583231, NOON - timedelta(days=7, seconds=-1)))
TO_NOBODY_NAMED = Delivered("", invitation=Invitation(9, ACCEPT, None, NOON))
HAD_ACCESS = Delivered("", already_had_access=True)
TROUBLE = Transient("vendor_trouble", "", ask_first=True)
UNEXPLAINED = Terminal("unexplained_refusal", "", unexplained=True)
QUOTA = Transient("invitation_quota", "", pause=Pause(timedelta(hours=2)), attention="invitation_quota")
PERSONAL = "You can only update permissions on organization-owned repositories and their forks"
SECONDARY = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
NOT_FOUND = says(404, "Not Found")


def limited(seconds: float | None) -> Transient:
    return Transient("rate_limited", "", pause=Pause(None if seconds is None else timedelta(seconds=seconds)))


# ----------------------------------------------------------------------------------------------- one answer each to PUT
@pytest.mark.promise("F47")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (httpx.Response(201, json=invitation()), INVITED),
        (httpx.Response(201, json=invitation(invitee=None)), TO_NOBODY_NAMED),
        (httpx.Response(201, content=b'{"id": 42, "repos'), Delivered("")),
        (httpx.Response(201, content=b""), Delivered("")),
        (httpx.Response(201, json=[]), Delivered("")),
        (httpx.Response(201, json=invitation(id=2**63)), Delivered("")),
        (httpx.Response(201, json=invitation(html_url="https://github.test/\0")), Delivered("")),
        (httpx.Response(204), HAD_ACCESS),
        (says(400, "Problems parsing JSON"), Config("http_400", "")),
        (says(400, "2031-01-01 is not a supported version."), Config("http_400", "")),
        (says(401, "Bad credentials"), Config("http_401", "")),
        (says(403, "Resource not accessible by personal access token"), Config("http_403", "")),
        (says(403, "Must have admin rights to Repository."), Config("http_403", "")),
        (says(403, "Only organization owners can add outside collaborators"), Config("http_403", "")),
        (httpx.Response(403, text="Request forbidden by administrative rules."), Config("http_403", "")),
        (
            custom("You can only update permissions on organization-owned repositories and their forks"),
            Config("personal_repository", ""),
        ),
        (
            custom("You have exceeded the limit of 50 invitations per repository in a 24-hour period."),
            Transient("invitation_quota", "", pause=Pause(timedelta(hours=2)), attention="invitation_quota"),
        ),
        (custom("User could not be added"), UNEXPLAINED),
        (says(422, "Validation Failed", "a string", 7, None), UNEXPLAINED),
        (httpx.Response(422), UNEXPLAINED),
        (says(409, "Conflict"), Transient("conflict", "")),
        (says(408, "Request Timeout"), TROUBLE),
        (says(500), TROUBLE),
        (httpx.Response(502, html="<title>Unicorn!</title>"), TROUBLE),
        (says(503), TROUBLE),
        (says(504), TROUBLE),
        (httpx.Response(200), TROUBLE),
        (httpx.Response(202), TROUBLE),
        (httpx.Response(303, headers={"location": REPO}), Config("http_303", "")),
        (httpx.Response(301), Config("http_301", "")),
        (says(405), Config("http_405", "")),
        (says(410), Config("http_410", "")),
        (says(451, "Repository access blocked"), Config("http_451", "")),
        (httpx.ConnectError, Transient("unreachable", "")),
        (httpx.ConnectTimeout, Transient("unreachable", "")),
        (httpx.PoolTimeout, Transient("unreachable", "")),
        (httpx.ReadTimeout, Transient("timed_out", "", ask_first=True, timed_out=True)),
        (httpx.WriteTimeout, Transient("timed_out", "", ask_first=True, timed_out=True)),
        (TimeoutError, Transient("timed_out", "", ask_first=True, timed_out=True)),
        (httpx.ReadError, Transient("cut_off", "", ask_first=True)),
        (httpx.WriteError, Transient("cut_off", "", ask_first=True)),
        (httpx.RemoteProtocolError, Transient("cut_off", "", ask_first=True)),
        (httpx.DecodingError, Transient("cut_off", "", ask_first=True)),
    ],
    ids=lambda value: str(
        getattr(value, "status_code", getattr(value, "code", getattr(value, "__name__", type(value).__name__)))
    ),
)
async def test_every_answer_is_of_one_class(answer: Reply, outcome: Outcome) -> None:
    world = github(put=answer)
    assert meant(await world.invite()) == outcome
    assert world.asked() == [PUT]


@pytest.mark.promise("F43")
@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        # in seconds
        ({"retry-after": "30"}, SECONDARY, 30),
        ({"retry-after": "0"}, SECONDARY, 1),
        ({"retry-after": "86400"}, SECONDARY, 3600),
        ({"retry-after": "9" * 400}, "", 3600),
        ({"retry-after": "120", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"}, "", 120),
        # as a date, by the clock of the answer: this machine's plays no part
        ({"retry-after": "Mon, 30 Nov 2026 12:02:00 GMT", "date": DATE}, SECONDARY, 120),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": DATE}, SECONDARY, 1),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:00 GMT", "date": DATE}, SECONDARY, 3600),
        ({"retry-after": "Mon, 30 Nov 2026 12:02:00 GMT"}, SECONDARY, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:02:00 GMT", "date": "yesterday"}, SECONDARY, None),
        ({"retry-after": "in a while", "date": DATE}, SECONDARY, None),
        ({"retry-after": "-5", "date": DATE}, SECONDARY, None),
        # the quota is used up
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1796040090", "date": DATE},
            "API rate limit exceeded",
            90,
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1796039000", "date": DATE}, "", 1),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9" * 30, "date": DATE}, "", None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon", "date": DATE}, "", None),
        ({"x-ratelimit-remaining": "0", "date": DATE}, "", None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1796040090"}, "", None),
        # in words alone
        ({}, SECONDARY, None),
        ({"x-ratelimit-remaining": "4987"}, SECONDARY, None),
        ({}, "You have triggered an abuse detection mechanism.", None),
        ({}, "API rate limit exceeded for user ID 1.", None),
    ],
)
async def test_a_rate_refusal_is_known_by_header_date_quota_or_words(
    status: int, headers: dict[str, str], body: str, seconds: float | None
) -> None:
    world = github(put=httpx.Response(status, json={"message": body}, headers=headers))
    assert meant(await world.invite()) == limited(seconds)


async def test_a_429_with_nothing_in_it_is_a_rate_refusal() -> None:
    assert meant(await github(put=httpx.Response(429)).invite()) == limited(None)


# -------------------------------------------------------------------------------------------- the question that decides
@pytest.mark.promise("F36", "F37")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (says(404), Terminal("no_such_account", "")),
        (account("User"), Config("repository_out_of_sight", "")),
        (account("Organization"), Terminal("not_a_person", "")),
        (account("Bot"), Terminal("not_a_person", "")),
        (account("Mannequin"), Terminal("not_a_person", "")),
        (says(401), Transient("lookup_inconclusive", "")),
        (says(403, "no reason"), Transient("lookup_inconclusive", "")),
        (says(403, SECONDARY, retry_after="30"), limited(30)),
        (says(429), limited(None)),
        (says(500), Transient("vendor_trouble", "")),
        (httpx.Response(502, html="<title>Unicorn!</title>"), Transient("vendor_trouble", "")),
        (httpx.Response(200, content=b"{"), Transient("vendor_trouble", "")),
        (httpx.Response(200, json={"id": 1, "login": "octocat"}), Transient("vendor_trouble", "")),
        (
            httpx.Response(301, headers={"location": "https://elsewhere.test/users/octocat"}),
            Transient("lookup_inconclusive", ""),
        ),
        (httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
        (httpx.ConnectError, Transient("unreachable", "")),
        (httpx.ReadError, Transient("cut_off", "")),
    ],
    ids=str,
)
async def test_a_404_is_a_typo_only_if_the_account_is_unknown_too(answer: Reply, outcome: Outcome) -> None:
    world = github(put=NOT_FOUND, user=answer)
    assert meant(await world.invite()) == outcome
    assert world.asked() == [PUT, USER]


@pytest.mark.parametrize(
    ("refusal", "access", "outcome"),
    [
        ("Cannot assign octocat permission of read", httpx.Response(204), HAD_ACCESS),
        ("Cannot assign octocat permission of read", says(404), Config("role_is_higher", "")),
        ("Repository owner cannot be a collaborator", httpx.Response(204), HAD_ACCESS),
        ("Repository owner cannot be a collaborator", says(404), UNEXPLAINED),
        ("You cannot invite yourself", httpx.Response(204), HAD_ACCESS),
        ("octocat is already a collaborator", httpx.Response(204), HAD_ACCESS),
        ("Repository owner cannot be a collaborator", says(503), Transient("vendor_trouble", "")),
        ("Repository owner cannot be a collaborator", says(401), Config("http_401", "")),
        ("Repository owner cannot be a collaborator", httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
    ],
)
async def test_somebody_who_is_more_than_a_guest_has_access(refusal: str, access: Reply, outcome: Outcome) -> None:
    world = github(put=custom(refusal), access=access)
    assert meant(await world.invite()) == outcome
    assert world.asked() == [PUT, ACCESS]


# ------------------------------------------------------------------------------------------------------- it has moved
MOVED: Final = "/repositories/500/collaborators/octocat"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("location", [f"{API}{MOVED}", MOVED])
async def test_a_repository_that_moved_is_followed_once_with_the_same_request(status: int, location: str) -> None:
    world = github(put=httpx.Response(status, headers={"location": location}))
    world.script[f"PUT {MOVED}"] = deque([httpx.Response(201, json=invitation())])
    assert meant(await world.invite()) == INVITED
    first, second = world.requests
    assert second.method == "PUT"
    assert (second.content, second.headers["authorization"]) == (first.content, first.headers["authorization"])


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.test/x",
        "http://api.github.test/x",
        "https://api.github.test:444/x",
        "https://[bad",
        "//evil.test/x",
    ],
)
async def test_the_token_follows_nowhere_else(location: str) -> None:
    world = github(put=httpx.Response(301, headers={"location": location}))
    assert meant(await world.invite()) == Config("moved", "")
    assert world.asked() == [PUT]


async def test_a_repository_that_moved_twice_is_ours_to_correct() -> None:
    world = github(put=httpx.Response(301, headers={"location": MOVED}))
    world.script[f"PUT {MOVED}"] = deque([httpx.Response(301, headers={"location": f"{MOVED}2"})])
    assert meant(await world.invite()) == Config("moved", "")


async def test_look_ups_follow_the_repository_too() -> None:
    world = github(put=httpx.Response(204), access=httpx.Response(301, headers={"location": MOVED}))
    world.script[f"GET {MOVED}"] = deque([httpx.Response(204)])
    assert meant(await world.invite(ask_first=True)) == HAD_ACCESS


# --------------------------------------------------------------------------------------- after an answer that was lost
@pytest.mark.promise("F45")
@pytest.mark.parametrize(
    ("access", "pages", "account_id", "outcome"),
    [
        (httpx.Response(204), [], None, HAD_ACCESS),
        (says(404), [[invitation(login="OctoCat")]], None, INVITED),
        (says(404), [[invitation(created_at="2026-11-23T12:00:01Z")]], None, ALMOST_A_WEEK_AGO),
        (says(404), [[invitation(login="renamed")]], 583231, INVITED),
        (says(404), [[{"id": "odd"}, invitation(login="other", account_id=7)], [invitation()]], None, INVITED),
    ],
)
async def test_what_arrived_is_found_and_not_sent_again(
    access: httpx.Response, pages: list[list[Any]], account_id: int | None, outcome: Outcome
) -> None:
    world = github(access=access, invitations=_paged(pages), user=account())
    assert meant(await world.invite(account_id=account_id, ask_first=True)) == outcome
    assert PUT not in world.asked()


def _paged(pages: list[list[Any]]) -> list[Reply]:
    following = f'<{REPO}/invitations?per_page=100&page=2>; rel="next"'
    return [
        httpx.Response(200, json=page, headers={"date": DATE} | ({"link": following} if nth < len(pages) - 1 else {}))
        for nth, page in enumerate(pages)
    ]


@pytest.mark.parametrize(
    ("pages", "account_id"),
    [
        ([[]], None),
        ([[invitation(login="other", account_id=7)], [invitation(login="third", account_id=8)]], None),
        ([[invitation(expired=True)]], None),
        ([[invitation(created_at="2026-11-23T12:00:00Z")]], None),
        ([[invitation(account_id=7)]], 583231),
        ([[invitation(invitee=None)]], None),
    ],
)
async def test_what_did_not_arrive_is_sent(pages: list[list[Any]], account_id: int | None) -> None:
    world = github(
        access=NOT_FOUND, invitations=_paged(pages), user=account(), put=httpx.Response(201, json=invitation())
    )
    assert meant(await world.invite(account_id=account_id, ask_first=True)) == INVITED
    assert world.asked()[-1] == PUT


async def test_a_list_without_end_is_not_read_to_the_end() -> None:
    endless = [
        httpx.Response(200, json=[], headers={"link": f'<{REPO}/invitations?page={n}>; rel="next"'}) for n in range(9)
    ]
    world = github(access=NOT_FOUND, invitations=endless, put=httpx.Response(201, json=invitation()))
    assert meant(await world.invite(ask_first=True)) == INVITED
    assert world.asked() == [ACCESS, *[INVITATIONS] * 5, PUT]


async def test_the_next_page_is_asked_for_with_the_token_only_where_the_first_was() -> None:
    elsewhere = httpx.Response(200, json=[], headers={"link": '<https://evil.test/invitations>; rel="next"'})
    world = github(access=NOT_FOUND, invitations=elsewhere, put=httpx.Response(201, json=invitation()))
    assert meant(await world.invite(ask_first=True)) == INVITED
    assert {request.url.host for request in world.requests} == {"api.github.test"}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (says(404), Config("http_404", "")),  # both 404: the token no longer sees the repository
        (says(401), Config("http_401", "")),
        (says(403, "Resource not accessible"), Config("http_403", "")),
        (says(429), limited(None)),
        (says(502), Transient("vendor_trouble", "")),
        (httpx.Response(200, json={"not": "a list"}), Transient("vendor_trouble", "")),
        (httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
    ],
)
async def test_while_nobody_can_tell_whether_it_arrived_nothing_is_sent(answer: Reply, outcome: Outcome) -> None:
    world = github(access=NOT_FOUND, invitations=answer)
    assert meant(await world.invite(ask_first=True)) == outcome
    assert PUT not in world.asked()


# ------------------------------------------------------------------------------------- an invitation that ran out
NEW: Final = {"id": 10, "created_at": "2026-11-30T12:00:00Z"}
INVITED_ANEW = Delivered("", invitation=Invitation(10, ACCEPT, 583231, NOON))


@pytest.mark.parametrize("gone", [httpx.Response(204), NOT_FOUND], ids=["204", "404"])
async def test_what_ran_out_is_removed_before_a_new_one_is_sent(gone: httpx.Response) -> None:
    world = github(old=gone, put=httpx.Response(201, json=invitation(**NEW)))
    assert meant(await world.invite(replaces=9)) == INVITED_ANEW
    assert world.asked() == [OLD, PUT]
    assert world.requests[0].headers["authorization"] == "Bearer github_pat_x"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (says(401, "Bad credentials"), Config("http_401", "")),
        (says(403, "Must have admin rights to Repository."), Config("http_403", "")),
        (says(403, SECONDARY, retry_after="30"), limited(30)),
        (says(429), limited(None)),
        (says(422), Config("http_422", "")),
        (says(409), Transient("conflict", "")),
        (httpx.Response(502, html="<title>Unicorn!</title>"), Transient("vendor_trouble", "")),
        (httpx.Response(200), Transient("vendor_trouble", "")),
        (httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
        (httpx.ReadError, Transient("cut_off", "")),
        (httpx.ConnectError, Transient("unreachable", "")),
    ],
    ids=str,
)
async def test_while_it_may_still_be_there_nothing_is_sent(answer: Reply, outcome: Outcome) -> None:
    world = github(old=answer)
    assert meant(await world.invite(replaces=9)) == outcome
    assert world.asked() == [OLD]


async def test_killed_between_the_removal_and_the_new_one_both_are_made_up_for() -> None:
    removed = github(access=NOT_FOUND, invitations=_paged([[]])[0], old=NOT_FOUND)
    removed.script[PUT] = deque([httpx.Response(201, json=invitation(**NEW))])
    assert meant(await removed.invite(ask_first=True, replaces=9)) == INVITED_ANEW
    assert removed.asked() == [ACCESS, INVITATIONS, OLD, PUT]
    sent = github(access=NOT_FOUND, invitations=_paged([[invitation(**NEW)]])[0])
    assert meant(await sent.invite(ask_first=True, replaces=9)) == INVITED_ANEW
    assert sent.asked() == [ACCESS, INVITATIONS]


@pytest.mark.parametrize(
    "shown", [{"expired": True}, {"created_at": "2026-11-23T12:00:00Z"}, {"created_at": "2026-11-23T12:00:00"}]
)
async def test_one_that_ran_out_and_is_shown_instead_of_a_new_one_is_removed_too(shown: dict[str, Any]) -> None:
    headers = {"date": DATE}
    world = github(
        put=[
            httpx.Response(201, json=invitation(**shown), headers=headers),
            httpx.Response(201, json=invitation(**NEW), headers=headers),
        ],
        old=httpx.Response(204),
    )
    assert meant(await world.invite()) == INVITED_ANEW
    assert world.asked() == [PUT, OLD, PUT]


async def test_while_it_is_in_the_way_nobody_is_told_to_accept_it() -> None:
    world = github(put=httpx.Response(201, json=invitation(expired=True)), old=says(503))
    assert meant(await world.invite()) == Transient("vendor_trouble", "")
    assert world.asked() == [PUT, OLD]


@pytest.mark.parametrize("by_name", [True, False], ids=["named", "found"])
async def test_at_github_the_dead_invitation_goes_and_a_living_one_comes(
    world: World, urls: Urls, github_description: Description, by_name: bool
) -> None:
    settings = InviteSettings(
        github_api_url=urls.github, github_token=SecretStr(DEFAULT_TOKEN), github_repository=DEFAULT_REPOSITORY
    )
    async with http_client() as http:
        inviter = GitHubInviter(settings, http, Gates(OpenGates()))
        first = await inviter.invite(InviteRequest(1, "octocat", 583231, ask_first=False))
        assert isinstance(first, Delivered)
        world.clock.advance(8 * 24 * 3600)
        replaces = first.invitation.id if by_name else None
        again = await inviter.invite(InviteRequest(1, "octocat", 583231, ask_first=False, replaces=replaces))
    assert isinstance(again, Delivered)
    assert again.invitation.id != first.invitation.id
    (open_one,) = world.github.repository(DEFAULT_REPOSITORY).invitations.values()
    assert (open_one.id, open_one.expired(world.clock.now())) == (again.invitation.id, False)
    effects = [entry.effect for entry in world.log.entries(Vendor.GITHUB) if entry.effect]
    assert effects == ["invitation_created", "invitation_deleted", "invitation_created"]
    for entry in world.log.entries(Vendor.GITHUB):
        github_description.check_logged(entry)


# ---------------------------------------------------------------------------------------------------- without a token
@pytest.mark.parametrize("token", [None, SecretStr("")])
async def test_without_a_token_nobody_is_called(token: SecretStr | None) -> None:
    world = github()
    inviter = world.inviter(github_token=token)
    request = InviteRequest(1, "octocat", 583231, ask_first=True, replaces=9)
    assert meant(await inviter.invite(request)) == Config("token_missing", "")
    assert await inviter.check("octocat") == HandleUnverified("token_missing")
    standing = await inviter.standing(InvitationQuery("octocat", 583231, 9))
    assert isinstance(standing, Config)
    assert standing.code == "token_missing"
    assert world.requests == []


# ------------------------------------------------------------------------------------------------- whose login it is
async def test_a_login_that_changed_hands_is_not_invited() -> None:
    world = github(user=account(account_id=666))
    assert meant(await world.invite(account_id=583231)) == Terminal("login_changed_hands", "")
    assert world.asked() == [USER]


@pytest.mark.parametrize(
    "answer",
    [account(), says(404), says(403, "no reason"), httpx.Response(200, content=b"{")],
    ids=["same", "404", "403", "unreadable"],
)
async def test_a_login_that_did_not_is_invited(answer: httpx.Response) -> None:
    world = github(user=answer, put=httpx.Response(201, json=invitation()))
    assert meant(await world.invite(account_id=583231)) == INVITED
    assert world.asked() == [USER, PUT]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (says(401), Config("http_401", "")),
        (says(403, SECONDARY), limited(None)),
        (says(500), Transient("vendor_trouble", "")),
        (httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
    ],
)
async def test_while_nobody_can_tell_whose_login_it_is_nobody_is_invited(answer: Reply, outcome: Outcome) -> None:
    assert meant(await github(user=answer).invite(account_id=583231)) == outcome


# -------------------------------------------------------------------------------------------------------- the request
async def test_the_request_is_as_github_wants_it() -> None:
    world = github(put=httpx.Response(204))
    await world.invite()
    (request,) = world.requests
    assert request.headers["user-agent"] == "rowclaim"
    assert request.headers["x-github-api-version"] == "2026-03-10"
    assert request.headers["accept"] == "application/vnd.github+json"
    assert request.headers["authorization"] == "Bearer github_pat_x"
    assert request.content == b'{"permission":"pull"}'


async def test_for_a_personal_repository_no_permission_is_sent() -> None:
    world = github(put=httpx.Response(204))
    await world.inviter(github_permission="").invite(InviteRequest(1, "octocat", None, False))
    (request,) = world.requests
    assert (request.content, request.headers["content-length"]) == (b"", "0")


@pytest.mark.parametrize(
    "login",
    [
        *(
            "a/b",
            "..",
            ".",
            "...",
            "%2e%2e",
            "%2F",
            "octocat/",
            " octocat ",
            "@octocat",
            "-dash",
            "a?b=c",
            "a#b",
            "a;b",
        ),
        *("https://github.com/octocat", "x" * 300, "🐙", "dependabot[bot]", "a\\b", "a\nb"),
    ],
)
async def test_a_login_is_one_segment_of_the_path_whatever_it_holds(login: str) -> None:
    seen: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(204)

    world = github()
    inviter = world.inviter()
    inviter._http = http_client(httpx.MockTransport(answer))
    assert meant(await inviter.invite(InviteRequest(1, login, None, False))) == HAD_ACCESS
    *before, segment = seen[0].decode("ascii").split("/")
    assert before == ["", "repos", "acme-school", "course-materials", "collaborators"]
    assert unquote(segment) == login
    assert segment not in (".", "..")


# ------------------------------------------------------------------------------------------------------------- the seam
@pytest.mark.promise("F86")
async def test_nothing_but_the_four_outcomes_crosses_the_seam() -> None:
    """Seeded noise in every part of every answer, and every failure the library knows."""
    noise = random.Random(20261130)
    failures = [one for one in vars(httpx).values() if isinstance(one, type) and issubclass(one, httpx.TransportError)]
    assert len(failures) > 10
    plan: list[Callable[[], Reply]] = [lambda one=one: one("planted") for one in failures]
    plan += [lambda: _noise(noise)] * 600
    seen: set[type] = set()
    for make in plan:
        replies = {name: [make() for _ in range(9)] for name in ("put", "user", "access", "invitations")}
        world = github(**replies)
        world.otherwise = make
        number = noise.choice([None, 7])
        outcome = await world.invite(account_id=number, ask_first=noise.random() < 0.5, replaces=number)
        assert isinstance(outcome, Outcome)
        seen.add(type(outcome))
        assert isinstance(await world.inviter().check("octocat"), HandleAnswer)
        standing = await world.inviter().standing(InvitationQuery("octocat", number, noise.choice([None, 9])))
        assert isinstance(standing, InvitationStanding)
    assert seen == {Delivered, Terminal, Transient, Config}

    importers = {
        module.place
        for module in modules(ROOT, "services/fulfillment")
        for _, name in module.imports()
        if name.split(".")[0] in ("httpx", "stripe", "aiosmtplib") or name.startswith("services.vendors")
    }
    assert importers == {f"services/fulfillment/gateway/{name}.py" for name in ("invite", "checkout", "mail")}


def _noise(noise: random.Random) -> httpx.Response:
    odd: list[Any] = [None, 0, -1, 2**70, "", "\0", "\ud800", [], {}, [{}], True, "2026-13-45", "User", {"login": 3}]
    body = {
        key: noise.choice(odd)
        for key in ("id", "invitee", "created_at", "html_url", "expired", "type", "login", "message", "errors")
        if noise.random() < 0.7
    }
    content = noise.choice(
        [b"", b"\xff\xfe", b"[" * 5000, b"null", b"{}"]
        + [httpx.Response(200, json={k: v for k, v in body.items() if v != "\ud800"}).content] * 6
    )
    names = ("retry-after", "x-ratelimit-remaining", "x-ratelimit-reset", "date", "location", "link", "content-type")
    values = ("0", "", "-1", "soon", "9" * 40, DATE, "<>;rel=next", "https://[", "text/html; charset=nope", "Mon, 99")
    headers = {name: noise.choice(values) for name in names if noise.random() < 0.3}
    status = noise.choice([200, 201, 204, 301, 307, 400, 401, 403, 404, 409, 418, 422, 429, 500, 502, 503, 599])
    return httpx.Response(status, content=content, headers=headers)


async def test_a_gate_that_closes_on_the_way_or_a_lost_database_is_no_exception() -> None:
    world = github(put=NOT_FOUND)
    world.database.down_after = 1
    assert meant(await world.invite()) == Transient("gate_closed", "")
    assert world.asked() == [PUT]

    class Lost(OpenGates):
        async def value(self, query: str, *args: object) -> Any:
            raise Retryable("database_unavailable")

    lost = GitHub({}, database=Lost())
    assert meant(await lost.invite()) == Transient("database_unavailable", "")


async def test_what_github_says_is_kept_for_operators_in_one_storable_line() -> None:
    outcome = await github(put=custom("line\none\0 " + "x" * 900)).invite()
    assert isinstance(outcome, Terminal)
    assert outcome.reason.startswith("HTTP 422: Validation Failed: line one x")
    assert len(outcome.reason) < 520
    assert "\n" not in outcome.reason
    assert "\0" not in outcome.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(201, json=invitation(html_url="https://github.test/accept")), "https://github.test/accept"),
        (httpx.Response(201, content=b""), "https://github.com/acme-school/course-materials/invitations"),
        (httpx.Response(204), "https://github.com/acme-school/course-materials"),
    ],
)
async def test_the_buyer_is_told_what_to_do(answer: httpx.Response, words: str) -> None:
    outcome = await github(put=answer).invite()
    assert isinstance(outcome, Delivered)
    assert outcome.instructions.endswith(words)
    assert "octocat" in outcome.instructions


@pytest.mark.promise("F87")
def test_only_the_card_can_reach_the_invite() -> None:
    importers = {
        module.place
        for module in modules(ROOT, "services")
        for _, name in module.imports()
        if name.startswith("services.fulfillment.gateway")
    }
    assert importers == {"services/fulfillment/consumer.py"}
    for package in ("services/fulfillment/__init__.py", "services/fulfillment/gateway/__init__.py"):
        (module,) = [one for one in modules(ROOT, "services/fulfillment") if one.place == package]
        assert list(module.imports()) == []
    card = (ROOT / "services/fulfillment/consumer.py").read_text(encoding="utf-8")
    assert ".invite(" not in card
    callers = [one.place for one in modules(ROOT, "services/fulfillment") if ".invite(" in one.text]
    assert callers == ["services/fulfillment/flow/flush.py"]


@pytest.mark.promise("F42")
async def test_the_card_opens_it_at_its_pace_and_closes_it_with_the_process() -> None:
    settings = InviteSettings(
        github_token=SecretStr("x"), github_repository="acme-school/course-materials", github_pace_s=2.5
    )
    closing: list[Callable[[], Any]] = []
    inviter = open_inviter(settings, Gates(OpenGates()), closing.append)
    assert (paces(settings), inviter.gate) == ({GATE: 2.5}, GATE)
    unasked = InviteSettings(github_token=SecretStr("x"), github_repository="acme-school/course-materials")
    assert paces(unasked) == {GATE: 1.0}
    for close in closing:
        await close()
    assert inviter._http.is_closed


@pytest.mark.parametrize("name", ["course-materials", "a/b/c", "a b/c", "", "../x", "a/b?c"])
def test_a_repository_is_owner_and_name(name: str) -> None:
    with pytest.raises(ValueError, match="github_repository"):
        InviteSettings(github_token=SecretStr("x"), github_repository=name)
