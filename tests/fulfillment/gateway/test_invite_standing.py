"""What became of an invitation: accepted, open, run out; and that trouble is never taken for the last."""

from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.fulfillment.gateway.invite import GitHubInviter, InviteSettings
from services.fulfillment.machine import (
    Accepted,
    Config,
    Delivered,
    Expired,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    Open,
    Transient,
)
from services.kernel.gate import Gates
from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN, GitHubWorld
from services.sandbox.log import Vendor
from services.sandbox.world import Urls, World
from services.vendors.http import http_client
from tests.fulfillment.gateway.test_invite import (
    ACCESS,
    ACCOUNT,
    INVITATIONS,
    NOT_FOUND,
    REPO,
    SECONDARY,
    GitHub,
    OpenGates,
    Reply,
    account,
    github,
    invitation,
    limited,
    meant,
    says,
)
from tests.fulfillment.gateway.test_invite import _paged as paged
from tests.sandbox.github.description import Description

BY_NAME = InvitationQuery("octocat", None, 9)
BY_ID = InvitationQuery("octocat", 583231, 9)
WEEK_S = 7 * 24 * 3600


def without_words(standing: InvitationStanding) -> InvitationStanding:
    return meant(standing) if isinstance(standing, Transient | Config) else standing


async def standing(world: GitHub, query: InvitationQuery = BY_NAME) -> InvitationStanding:
    return without_words(await world.inviter().standing(query))


async def test_who_has_access_accepted() -> None:
    world = github(access=httpx.Response(204))
    assert await standing(world) == Accepted()
    assert world.asked() == [ACCESS]


@pytest.mark.parametrize(
    ("pages", "query"),
    [
        ([[invitation()]], BY_NAME),
        ([[invitation(login="OctoCat")]], InvitationQuery("octocat", None, None)),
        ([[invitation(login="renamed")]], InvitationQuery("octocat", 583231, None)),
        ([[invitation(login="renamed", account_id=7)]], BY_NAME),
        ([[invitation(invitee=None)]], BY_NAME),
        ([[invitation(id=8, login="other", account_id=7)], [invitation()]], BY_NAME),
        ([[invitation(expired=True), invitation(id=10)]], BY_NAME),
        ([[{"id": "odd"}, 7, invitation(created_at="2026-11-23T12:00:01Z")]], BY_NAME),
    ],
)
async def test_what_is_listed_and_young_is_open(pages: list[list[Any]], query: InvitationQuery) -> None:
    world = github(account=account(), access=NOT_FOUND, invitations=paged(pages))
    assert await standing(world, query) == Open()
    assert world.asked()[-1] == INVITATIONS


@pytest.mark.parametrize(
    ("pages", "query"),
    [
        ([[]], BY_NAME),
        ([[invitation(expired=True)]], BY_NAME),
        ([[invitation(expired=True)]], InvitationQuery("octocat", None, None)),
        ([[invitation(created_at="2026-11-23T12:00:00Z")]], BY_NAME),
        ([[invitation(id=8, account_id=7)]], BY_ID),
        ([[invitation(id=8, login="other", account_id=583231)]], BY_NAME),
        ([[invitation(id=8, login="other")], [invitation(id=7, login="third")]], BY_NAME),
    ],
)
async def test_what_is_old_or_gone_without_access_ran_out(pages: list[list[Any]], query: InvitationQuery) -> None:
    world = github(account=account(), access=[NOT_FOUND, NOT_FOUND], invitations=paged(pages))
    assert await standing(world, query) == Expired()
    assert world.asked()[-1] == ACCESS


async def test_what_is_accepted_between_the_questions_is_accepted() -> None:
    world = github(access=[NOT_FOUND, httpx.Response(204)], invitations=paged([[]]))
    assert await standing(world) == Accepted()
    assert world.asked() == [ACCESS, INVITATIONS, ACCESS]


async def test_a_list_without_end_is_read_to_a_bound_and_a_week_is_a_week() -> None:
    endless: list[Reply] = [
        httpx.Response(200, json=[], headers={"link": f'<{REPO}/invitations?page={n}>; rel="next"'}) for n in range(30)
    ]
    world = github(access=[NOT_FOUND, NOT_FOUND], invitations=endless)
    assert await standing(world) == Expired()
    assert world.asked() == [ACCESS, *[INVITATIONS] * 20, ACCESS]


# ------------------------------------------------------------------------------------------ trouble is never "ran out"
TROUBLES: list[tuple[Reply, InvitationStanding]] = [
    (says(401, "Bad credentials"), Config("http_401", "")),
    (says(403, SECONDARY, retry_after="30"), limited(30)),
    (says(403, SECONDARY), limited(None)),
    (httpx.Response(429), limited(None)),
    (says(500), Transient("vendor_trouble", "")),
    (httpx.Response(502, html="<title>Unicorn!</title>"), Transient("vendor_trouble", "")),
    (httpx.Response(202), Transient("vendor_trouble", "")),
    (httpx.ReadTimeout, Transient("timed_out", "", timed_out=True)),
    (httpx.ReadError, Transient("cut_off", "")),
    (httpx.ConnectError, Transient("unreachable", "")),
    (httpx.Response(301, headers={"location": "https://evil.test/"}), Config("http_301", "")),
]


@pytest.mark.parametrize(("answer", "meant"), [*TROUBLES, (says(403, "no"), Config("http_403", ""))], ids=str)
@pytest.mark.parametrize("question", ["access", "invitations", "access once more"])
async def test_trouble_decides_nothing(question: str, answer: Reply, meant: InvitationStanding) -> None:
    match question:
        case "access":
            world = github(access=answer)
        case "invitations":
            world = github(access=NOT_FOUND, invitations=answer)
        case _:
            world = github(access=[NOT_FOUND, answer], invitations=paged([[]]))
    assert await standing(world) == meant


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (NOT_FOUND, Config("http_404", "")),  # the repository is out of sight: nobody lost an invitation
        (httpx.Response(200, json={"not": "a list"}), Transient("vendor_trouble", "")),
        (httpx.Response(200, content=b"["), Transient("vendor_trouble", "")),
    ],
)
async def test_a_list_that_cannot_be_read_decides_nothing(answer: Reply, meant: InvitationStanding) -> None:
    assert await standing(github(access=NOT_FOUND, invitations=answer)) == meant


async def test_a_closed_gate_decides_nothing() -> None:
    world = github()
    world.database.down_after = 0
    assert await standing(world) == Transient("gate_closed", "")
    assert world.requests == []


# --------------------------------------------------------------------------------------------------------- who it is
async def test_somebody_who_was_renamed_is_asked_about_by_todays_name() -> None:
    world = github(account=httpx.Response(200, json={"id": 583231, "login": "octo/cat", "type": "User"}))
    world.script["GET /repos/acme-school/course-materials/collaborators/octo/cat"] = deque([httpx.Response(204)])
    assert await standing(world, BY_ID) == Accepted()
    assert world.asked()[0] == ACCOUNT
    assert world.requests[1].url.raw_path.endswith(b"/collaborators/octo%2Fcat")


@pytest.mark.parametrize("answer", [NOT_FOUND, says(403, "no reason")], ids=["404", "403"])
async def test_of_an_account_that_cannot_be_found_the_name_is_left(answer: Reply) -> None:
    world = github(account=answer, access=httpx.Response(204))
    assert await standing(world, BY_ID) == Accepted()
    assert world.asked() == [ACCOUNT, ACCESS]


@pytest.mark.parametrize(
    ("answer", "meant"), [*TROUBLES, (httpx.Response(200, content=b"{"), Transient("vendor_trouble", ""))], ids=str
)
async def test_while_nobody_can_tell_who_it_is_nothing_is_decided(answer: Reply, meant: InvitationStanding) -> None:
    world = github(account=answer)
    assert await standing(world, BY_ID) == meant
    assert world.asked() == [ACCOUNT]


# -------------------------------------------------------------------------------------------------------- the vendor
def _nothing(github: GitHubWorld) -> None: ...


def _accept(github: GitHubWorld) -> None:
    github.accept(DEFAULT_REPOSITORY, "octocat")


def _accept_and_rename(github: GitHubWorld) -> None:
    """And a stranger takes the name."""
    _accept(github)
    github.rename_account("octocat", "octocat-2")
    github.add_account("octocat")


def _rename(github: GitHubWorld) -> None:
    """Not accepted; and the stranger who takes the name has access."""
    github.rename_account("octocat", "octocat-2")
    github.add_account("octocat")
    github.add_collaborator(DEFAULT_REPOSITORY, "octocat")


def _decline(github: GitHubWorld) -> None:
    github.decline(DEFAULT_REPOSITORY, "octocat")


def _delete(github: GitHubWorld) -> None:
    github.delete_account("octocat")


@pytest.mark.parametrize(
    ("happens", "after_s", "stands"),
    [
        (_nothing, 0, Open()),
        (_nothing, WEEK_S - 60, Open()),
        (_nothing, WEEK_S, Expired()),
        (_accept, WEEK_S, Accepted()),
        (_accept_and_rename, WEEK_S, Accepted()),
        (_rename, WEEK_S - 60, Open()),
        (_rename, WEEK_S, Expired()),
        (_decline, 60, Expired()),
        (_delete, 60, Expired()),
    ],
)
async def test_at_github(
    world: World,
    urls: Urls,
    github_description: Description,
    happens: Callable[[GitHubWorld], None],
    after_s: float,
    stands: InvitationStanding,
) -> None:
    settings = InviteSettings(
        github_api_url=urls.github, github_token=SecretStr(DEFAULT_TOKEN), github_repository=DEFAULT_REPOSITORY
    )
    async with http_client() as http:
        inviter = GitHubInviter(settings, http, Gates(OpenGates()))
        sent = await inviter.invite(InviteRequest(1, "octocat", None, ask_first=False))
        assert isinstance(sent, Delivered)
        happens(world.github)
        world.clock.advance(after_s)
        query = InvitationQuery("octocat", sent.invitation.account_id, sent.invitation.id)
        assert await inviter.standing(query) == stands
    for entry in world.log.entries(Vendor.GITHUB)[1:]:
        assert (entry.method, entry.effect) == ("GET", None)
        github_description.check_logged(entry)
