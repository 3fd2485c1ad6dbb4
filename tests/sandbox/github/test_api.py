"""The routes: what they answer, held against GitHub's published description, and what they change."""

from urllib.parse import quote

import httpx
import pytest

from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain
from tests.sandbox.github.conftest import HEADERS
from tests.sandbox.github.description import Description

REPOS = f"/repos/{DEFAULT_REPOSITORY}"
WEEK_S = 7 * 24 * 3600


def invite(login: str, repository: str = DEFAULT_REPOSITORY) -> str:
    return f"/repos/{repository}/collaborators/{quote(login, safe='')}"


def described(description: Description, response: httpx.Response) -> bool:
    """Hold one exchange, request and answer, against the description."""
    request = response.request
    path = request.url.raw_path.decode().split("?")[0].removeprefix("/github")
    description.check_request(request.method, path, request.content)
    return description.check_answer(request.method, path, response.status_code, response.content)


# ----------------------------------------------------------------------------------------------------------- invite


async def test_an_invitation_is_whole_and_says_whom_it_invites(
    github: httpx.AsyncClient, github_description: Description, world: World
) -> None:
    response = await github.put(invite("OctoCat"), json={"permission": "pull"})
    assert response.status_code == 201
    assert described(github_description, response)
    body = response.json()
    assert body["invitee"]["login"] == "octocat"
    assert body["invitee"]["id"] == 583231
    assert body["permissions"] == "read"
    assert body["expired"] is False
    assert body["html_url"] == f"https://github.com/{DEFAULT_REPOSITORY}/invitations"
    assert world.log.entries()[0].effect == "invitation_created"


async def test_an_invitation_holds_no_property_the_description_does_not_know(
    github: httpx.AsyncClient, github_description: Description
) -> None:
    body = (await github.put(invite("octocat"))).json()
    schemas = github_description.document["components"]["schemas"]
    assert body.keys() <= schemas["repository-invitation"]["properties"].keys()
    assert body["repository"].keys() <= schemas["minimal-repository"]["properties"].keys()
    assert "has_downloads" not in body["repository"], "removed in version 2026-03-10"
    assert body["invitee"].keys() <= schemas["simple-user"]["properties"].keys()


async def test_without_a_body_the_documented_default_is_push(github: httpx.AsyncClient) -> None:
    response = await github.put(invite("octocat"))
    assert (response.status_code, response.json()["permissions"]) == (201, "write")


async def test_a_repeated_invitation_keeps_its_id_and_notifies_again(github: httpx.AsyncClient, world: World) -> None:
    first = await github.put(invite("octocat"), json={"permission": "pull"})
    second = await github.put(invite("octocat"), json={"permission": "triage"})
    assert second.json()["id"] == first.json()["id"]
    assert second.json()["permissions"] == "triage"
    (invitation,) = world.github.repository(DEFAULT_REPOSITORY).invitations.values()
    assert invitation.notified == 2
    assert [entry.effect for entry in world.log.entries()] == ["invitation_created", "invitation_repeated"]


async def test_a_collaborator_is_not_invited_again(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    await github.put(invite("octocat"))
    world.github.accept(DEFAULT_REPOSITORY, "octocat")
    response = await github.put(invite("octocat"), json={"permission": "pull"})
    assert (response.status_code, response.content) == (204, b"")
    assert described(github_description, response)
    assert world.log.entries()[-1].effect == "access_kept"
    assert list(world.github.repository(DEFAULT_REPOSITORY).collaborators.values()) == ["read"], "was write"


async def test_an_expired_invitation_stays_until_it_is_deleted(github: httpx.AsyncClient, world: World) -> None:
    first = (await github.put(invite("octocat"))).json()
    world.clock.advance(WEEK_S)
    again = (await github.put(invite("octocat"))).json()
    assert (again["id"], again["expired"]) == (first["id"], True)
    await github.delete(f"{REPOS}/invitations/{first['id']}")
    fresh = (await github.put(invite("octocat"))).json()
    assert fresh["id"] != first["id"]
    assert fresh["expired"] is False


@pytest.mark.parametrize(
    "login",
    [
        "nobody-at-all",
        "github",
        "dependabot[bot]",
        "a/b",
        "..",
        "%2e%2e",
        "octocat/",
        " octocat ",
        "@octocat",
        "é😀",
        "https://github.com/octocat",
        "x" * 300,
        "",
    ],
)
async def test_what_is_no_person_is_not_found(github: httpx.AsyncClient, world: World, login: str) -> None:
    response = await github.put(invite(login), json={"permission": "pull"})
    assert response.status_code == 404
    assert response.json()["message"] == "Not Found"
    assert world.github.repository(DEFAULT_REPOSITORY).invitations == {}


async def test_an_escaped_slash_stays_inside_the_login(github: httpx.AsyncClient, world: World) -> None:
    world.github.add_account("a/b")
    assert (await github.get("/users/a%2Fb")).json()["login"] == "a/b"
    assert (await github.get("/users/a/b")).status_code == 404
    assert world.log.entries()[0].path == "/users/a%2Fb"


# --------------------------------------------------------------------------------------------------------- refusals


async def test_someone_who_does_not_say_who_they_are_is_refused(github: httpx.AsyncClient) -> None:
    response = await github.put(invite("octocat"), headers={"user-agent": ""})
    assert response.status_code == 403
    assert response.headers["content-type"].startswith("text/html")
    assert "User-Agent" in response.text


@pytest.mark.parametrize("version", ["2019-01-01", "latest", ""])
async def test_an_unsupported_version_is_refused(github: httpx.AsyncClient, version: str) -> None:
    response = await github.put(invite("octocat"), headers={"x-github-api-version": version})
    assert response.status_code == 400
    assert "not a supported version" in response.json()["message"]


async def test_a_wrong_token_is_401_everywhere(github: httpx.AsyncClient, world: World) -> None:
    world.github.revoke_token(DEFAULT_TOKEN)
    for response in [await github.put(invite("octocat")), await github.get("/users/octocat")]:
        assert response.status_code == 401
        assert response.json()["message"] == "Bad credentials"


async def test_a_user_can_be_looked_up_without_a_token_but_not_invited(urls: Urls) -> None:
    manners = {name: value for name, value in HEADERS.items() if name != "authorization"}
    async with plain(
        base_url=urls.github,
        headers=manners,
    ) as anonymous:
        looked_up = await anonymous.get("/users/octocat")
        assert looked_up.status_code == 200
        assert looked_up.headers["x-ratelimit-limit"] == "60"
        assert (await anonymous.put(invite("octocat"))).status_code == 401


async def test_a_repository_the_token_cannot_see_is_masked(github: httpx.AsyncClient, world: World) -> None:
    world.github.add_repository("acme-school/secret")
    response = await github.put(invite("octocat", "acme-school/secret"))
    assert (response.status_code, response.json()["message"]) == (404, "Not Found")
    assert (await github.get("/users/octocat")).status_code == 200, "which is how a caller tells it from a typo"


async def test_a_token_without_admin_rights_is_told_so(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    world.github.add_token(DEFAULT_TOKEN, "octocat", [], sees=[DEFAULT_REPOSITORY])
    response = await github.put(invite("octocat"))
    assert (response.status_code, response.json()["message"]) == (403, "Must have admin rights to Repository.")
    assert described(github_description, response)


@pytest.mark.parametrize("prefix", ["/repos/acme-school/course-materials", "/repos/ACME-School/Course-Materials"])
async def test_a_renamed_repository_redirects_and_the_redirect_leads_home(
    github: httpx.AsyncClient, world: World, prefix: str
) -> None:
    repository = world.github.rename_repository(DEFAULT_REPOSITORY, "lessons")
    response = await github.put(f"{prefix}/collaborators/octocat", json={"permission": "pull"})
    assert response.status_code == 301
    location = response.headers["location"]
    assert location == f"{github.base_url}repositories/{repository.id}/collaborators/octocat"
    assert response.json()["url"] == location
    assert (await github.put(location, json={"permission": "pull"})).status_code == 201


@pytest.mark.parametrize(
    ("body", "message"), [(b"{nope", "Problems parsing JSON"), (b'["pull"]', "Body should be a JSON object")]
)
async def test_an_unreadable_body_is_400(github: httpx.AsyncClient, body: bytes, message: str) -> None:
    response = await github.put(invite("octocat"), content=body)
    assert (response.status_code, response.json()["message"]) == (400, message)


async def test_an_unknown_permission_is_422(github: httpx.AsyncClient, github_description: Description) -> None:
    response = await github.put(invite("octocat"), json={"permission": "emperor"})
    assert response.status_code == 422
    assert described(github_description, response)
    assert response.json()["errors"][0]["code"] == "invalid"


async def test_a_personal_repository_takes_no_permission(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    world.github.add_repository("octocat/mine")
    world.github.add_token(DEFAULT_TOKEN, "octocat", ["octocat/mine"])
    world.github.add_account("hubot")
    refused = await github.put(invite("hubot", "octocat/mine"), json={"permission": "pull"})
    assert refused.status_code == 422
    assert described(github_description, refused)
    assert refused.json()["errors"][0]["code"] == "custom"
    assert "organization-owned" in refused.json()["errors"][0]["message"]
    assert (await github.put(invite("hubot", "octocat/mine"))).status_code == 201
    owner = await github.put(invite("octocat", "octocat/mine"))
    assert (owner.status_code, "owner" in owner.text) == (422, True)


async def test_a_member_is_added_without_an_invitation_unless_they_have_more(
    github: httpx.AsyncClient, world: World
) -> None:
    world.github.add_member(DEFAULT_REPOSITORY, "octocat", "write")
    lower = await github.put(invite("octocat"), json={"permission": "pull"})
    assert (lower.status_code, lower.json()["errors"][0]["message"]) == (
        422,
        "Cannot assign octocat permission of read",
    )
    assert (await github.put(invite("octocat"), json={"permission": "admin"})).status_code == 204


async def test_the_daily_quota_counts_invitations_that_are_gone(github: httpx.AsyncClient, world: World) -> None:
    world.github.repository(DEFAULT_REPOSITORY).invitations_per_day_max = 1
    world.github.add_account("hubot")
    first = (await github.put(invite("octocat"))).json()
    await github.delete(f"{REPOS}/invitations/{first['id']}")
    refused = await github.put(invite("hubot"))
    assert refused.status_code == 422
    assert "50 invitations" in refused.json()["errors"][0]["message"]
    world.clock.advance(24 * 3600)
    assert (await github.put(invite("hubot"))).status_code == 201


async def test_the_primary_limit_runs_out_and_comes_back(github: httpx.AsyncClient, world: World) -> None:
    world.github_api.limit_per_hour = 2
    first, second, third = [await github.get("/users/octocat") for _ in range(3)]
    assert [first.headers["x-ratelimit-remaining"], second.headers["x-ratelimit-remaining"]] == ["1", "0"]
    assert third.status_code == 403
    assert third.headers["x-ratelimit-remaining"] == "0"
    assert int(third.headers["x-ratelimit-reset"]) == pytest.approx(world.clock.now_s() + 3600, abs=60)
    world.clock.advance(3601)
    assert (await github.get("/users/octocat")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/repos/a/b"), ("PATCH", invite("octocat")), ("GET", "/"), ("GET", "/users/octocat/repos")],
)
async def test_what_is_not_played_is_404_with_githubs_body(github: httpx.AsyncClient, method: str, path: str) -> None:
    response = await github.request(method, path)
    assert (response.status_code, response.json()["message"]) == (404, "Not Found")


# ------------------------------------------------------------------------------------------- users and collaborators


async def test_a_user_has_the_published_shape(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    response = await github.get("/users/OCTOCAT")
    assert described(github_description, response)
    assert (response.json()["login"], response.json()["type"]) == ("octocat", "User")
    github_description.validate("public-user", response.json())
    types = [(await github.get(f"/users/{quote(login)}")).json()["type"] for login in ("github", "dependabot[bot]")]
    assert types == ["Organization", "Bot"]


async def test_a_missing_user_is_404_as_published(github: httpx.AsyncClient, github_description: Description) -> None:
    response = await github.get("/users/nobody-at-all")
    assert response.status_code == 404
    assert described(github_description, response)


async def test_a_freed_login_can_be_taken_by_a_stranger(github: httpx.AsyncClient, world: World) -> None:
    before = (await github.get("/users/octocat")).json()["id"]
    world.github.rename_account("octocat", "octocat-2")
    assert (await github.get("/users/octocat")).status_code == 404
    world.github.add_account("octocat")
    assert (await github.get("/users/octocat")).json()["id"] != before
    assert (await github.get("/users/octocat-2")).json()["id"] == before


async def test_an_account_is_found_by_its_id_whatever_it_is_called(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    world.github.rename_account("octocat", "octocat-2")
    response = await github.get("/user/583231")
    assert described(github_description, response)
    assert response.json()["login"] == "octocat-2"
    github_description.validate("public-user", response.json())
    assert world.log.entries()[0].subject == "583231"
    for unknown in ("/user/1", "/user/octocat-2"):
        assert (await github.get(unknown)).status_code == 404


async def test_a_collaborator_is_204_and_everybody_else_404(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    await github.put(invite("octocat"))
    invited = await github.get(invite("octocat"))
    assert invited.status_code == 404, "an invitation is not access"
    world.github.accept(DEFAULT_REPOSITORY, "octocat")
    accepted = await github.get(invite("octocat"))
    assert (accepted.status_code, accepted.content) == (204, b"")
    assert described(github_description, accepted)


async def test_removing_a_collaborator(
    github: httpx.AsyncClient, world: World, github_description: Description
) -> None:
    world.github.add_collaborator(DEFAULT_REPOSITORY, "octocat")
    removed, again = [await github.delete(invite("octocat")) for _ in range(2)]
    assert (removed.status_code, again.status_code) == (204, 204)
    assert described(github_description, removed)
    assert (await github.get(invite("octocat"))).status_code == 404
    assert [entry.effect for entry in world.log.entries(method="DELETE")] == ["access_removed", None]


# ------------------------------------------------------------------------------------------------------ invitations


async def test_deleting_an_invitation(github: httpx.AsyncClient, world: World, github_description: Description) -> None:
    created = (await github.put(invite("octocat"))).json()
    path = f"{REPOS}/invitations/{created['id']}"
    deleted = await github.delete(path)
    assert deleted.status_code == 204
    assert described(github_description, deleted)
    assert (await github.delete(path)).status_code == 404
    assert (await github.delete(f"{REPOS}/invitations/none")).status_code == 404
    assert [entry.effect for entry in world.log.entries(method="DELETE")] == ["invitation_deleted", None, None]


@pytest.fixture
async def sixty_five(github: httpx.AsyncClient, world: World) -> list[int]:
    ids = []
    for number in range(65):
        world.github.add_account(f"buyer-{number}")
        ids.append((await github.put(invite(f"buyer-{number}"), json={"permission": "pull"})).json()["id"])
    return ids


def pages(response: httpx.Response) -> dict[str, str]:
    return {rel: link["url"] for rel, link in response.links.items() if rel and "url" in link}


async def test_invitations_come_in_pages_of_thirty(
    github: httpx.AsyncClient, github_description: Description, sixty_five: list[int]
) -> None:
    seen: list[int] = []
    rels = []
    response = await github.get(f"{REPOS}/invitations")
    while True:
        assert described(github_description, response)
        seen += [one["id"] for one in response.json()]
        rels.append(sorted(pages(response)))
        if "next" not in pages(response):
            break
        response = await github.get(pages(response)["next"])
    assert seen == sixty_five
    assert rels == [["last", "next"], ["first", "last", "next", "prev"], ["first", "prev"]]


async def test_a_page_holds_at_most_a_hundred_and_per_page_is_kept_in_the_links(
    github: httpx.AsyncClient, sixty_five: list[int]
) -> None:
    everything = await github.get(f"{REPOS}/invitations", params={"per_page": 1000})
    assert len(everything.json()) == 65
    assert "link" not in everything.headers
    some = await github.get(f"{REPOS}/invitations", params={"per_page": 20, "page": 2})
    assert [one["id"] for one in some.json()] == sixty_five[20:40]
    assert "per_page=20" in pages(some)["next"]
    assert "page=4" in pages(some)["last"]
    odd = await github.get(f"{REPOS}/invitations", params={"per_page": "0", "page": "minus"})
    assert len(odd.json()) == 30
