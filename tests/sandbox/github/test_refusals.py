"""Every shape in which GitHub is known to refuse can be put on the wire, exactly."""

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx
import pytest

from services.sandbox.faults import Act, Fault, Moment, Reply
from services.sandbox.github import refusals
from services.sandbox.github.world import DEFAULT_REPOSITORY
from services.sandbox.log import Vendor
from services.sandbox.world import World
from tests.sandbox.github.description import Description

PUT = f"/repos/{DEFAULT_REPOSITORY}/collaborators/octocat"


async def played(world: World, github: httpx.AsyncClient, reply: Reply, at: Moment = Moment.BEFORE) -> httpx.Response:
    world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, at, reply, method="PUT"))
    return await github.put(PUT, json={"permission": "pull"})


@pytest.mark.parametrize("status", [403, 429])
async def test_a_secondary_limit_in_seconds(world: World, github: httpx.AsyncClient, status: int) -> None:
    response = await played(world, github, refusals.secondary_limit(17, status=status))
    assert (response.status_code, response.headers["retry-after"]) == (status, "17")
    assert "secondary rate limit" in response.json()["message"]
    assert "x-ratelimit-remaining" not in response.headers


@pytest.mark.parametrize("status", [403, 429])
async def test_a_secondary_limit_as_a_date_on_the_vendors_clock(
    world: World, github: httpx.AsyncClient, status: int
) -> None:
    world.clock.advance(3600)
    response = await played(world, github, refusals.secondary_limit_until_date(90, status=status))
    assert response.status_code == status
    wait = parsedate_to_datetime(response.headers["retry-after"]) - parsedate_to_datetime(response.headers["date"])
    assert timedelta(seconds=88) <= wait <= timedelta(seconds=92)


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize("clock_skew_s", [0, -7200, 7200])
async def test_a_primary_limit_is_only_right_by_its_own_date(
    world: World, github: httpx.AsyncClient, status: int, clock_skew_s: float
) -> None:
    response = await played(world, github, refusals.primary_limit(30, status=status, clock_skew_s=clock_skew_s))
    assert response.status_code == status
    assert response.headers["x-ratelimit-remaining"] == "0"
    date = parsedate_to_datetime(response.headers["date"])
    reset = datetime.fromtimestamp(int(response.headers["x-ratelimit-reset"]), date.tzinfo)
    assert timedelta(seconds=28) <= reset - date <= timedelta(seconds=32)
    assert abs((date - world.clock.now()).total_seconds() - clock_skew_s) < 30


async def test_a_limit_in_words_only_carries_no_budget(world: World, github: httpx.AsyncClient) -> None:
    bare = await played(world, github, refusals.secondary_limit_in_words())
    assert bare.status_code == 403
    assert not {"retry-after", "x-ratelimit-remaining"} & bare.headers.keys()
    plenty = await played(world, github, refusals.secondary_limit_in_words(status=429, remaining=4987))
    assert (plenty.status_code, plenty.headers["x-ratelimit-remaining"]) == (429, "4987")
    abuse = await played(world, github, refusals.abuse_limit())
    assert (abuse.status_code, "abuse" in abuse.json()["message"]) == (403, True)


async def test_a_bare_429_has_nothing_to_read(world: World, github: httpx.AsyncClient) -> None:
    response = await played(world, github, refusals.bare_429())
    assert (response.status_code, response.content) == (429, b"")
    assert not {"retry-after", "x-ratelimit-remaining"} & response.headers.keys()


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (refusals.bad_credentials(), 401, "Bad credentials"),
        (refusals.requires_authentication(), 401, "Requires authentication"),
        (refusals.not_accessible(), 403, "Resource not accessible"),
        (refusals.must_have_admin_rights(), 403, "Must have admin rights"),
        (refusals.outside_collaborators_restricted(), 403, "organization owners"),
        (refusals.not_found(), 404, "Not Found"),
        (refusals.problems_parsing_json(), 400, "Problems parsing JSON"),
        (refusals.body_not_an_object(), 400, "Body should be a JSON object"),
        (refusals.unsupported_api_version("2030-01-01"), 400, "2030-01-01 is not a supported version"),
        (refusals.conflict(), 409, "Conflict"),
        (refusals.request_timeout(), 408, "Request Timeout"),
        (refusals.permission_on_personal_repository(), 422, "only update permissions on organization-owned"),
        (refusals.member_role_is_higher("octocat", "read"), 422, "Cannot assign octocat permission of read"),
        (refusals.owner_cannot_be_collaborator(), 422, "owner cannot be a collaborator"),
        (refusals.invitation_quota(), 422, "limit of 50 invitations"),
        (refusals.unknown_validation_failure(), 422, "could not be added"),
    ],
)
async def test_refusals_in_json_follow_the_published_error_shape(
    world: World, github: httpx.AsyncClient, github_description: Description, reply: Reply, status: int, words: str
) -> None:
    response = await played(world, github, reply)
    assert response.status_code == status
    assert words in response.text
    github_description.validate("validation-error" if status == 422 else "basic-error", response.json())


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_page_from_the_load_balancer(world: World, github: httpx.AsyncClient, status: int) -> None:
    response = await played(world, github, refusals.html_error(status))
    assert (response.status_code, response.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert response.text.startswith("<!DOCTYPE html>")


async def test_no_user_agent_is_refused_in_plain_text(world: World, github: httpx.AsyncClient) -> None:
    response = await played(world, github, refusals.missing_user_agent())
    assert (response.status_code, response.headers["content-type"]) == (403, "text/html; charset=utf-8")


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_moved(world: World, github: httpx.AsyncClient, status: int) -> None:
    response = await played(world, github, refusals.moved("http://127.0.0.1:1/elsewhere", status=status))
    assert (response.status_code, response.headers["location"]) == (status, "http://127.0.0.1:1/elsewhere")
    assert response.json()["url"] == "http://127.0.0.1:1/elsewhere"


async def test_an_unreadable_201_did_invite(world: World, github: httpx.AsyncClient) -> None:
    response = await played(world, github, refusals.unreadable_body(), at=Moment.AFTER)
    assert response.status_code == 201
    with pytest.raises(ValueError, match=r"^(Expecting|Unterminated)"):
        response.json()
    assert len(world.github.repository(DEFAULT_REPOSITORY).invitations) == 1
    assert world.log.entries()[0].effect == "invitation_created"


async def test_a_look_up_can_go_in_circles_or_answer_nonsense(world: World, github: httpx.AsyncClient) -> None:
    here = f"{github.base_url}users/octocat"
    circle = world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.moved(here), path="^/users/", times=None))
    with pytest.raises(httpx.TooManyRedirects):
        await github.get("/users/octocat", follow_redirects=True)
    world.faults.clear(circle)
    stranger = Reply(body='{"login": "somebody-else", "id": 1, "type": "Mannequin"}')
    for reply in (refusals.unreadable_body(), stranger):
        world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, Moment.AFTER, reply, path="^/users/"))
    unreadable, strange = [await github.get("/users/octocat") for _ in range(2)]
    assert (unreadable.status_code, unreadable.content[-6:]) == (200, b'"repos')
    assert (strange.status_code, strange.json()["type"]) == (200, "Mannequin")
