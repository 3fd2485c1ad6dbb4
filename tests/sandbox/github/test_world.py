"""Who exists at GitHub, and what people do there."""

import pytest

from services.sandbox.clock import SandboxClock
from services.sandbox.github.shapes import AccountType
from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN, GitHubWorld


@pytest.fixture
def people() -> GitHubWorld:
    world = GitHubWorld(SandboxClock())
    world.seed()
    return world


def test_a_restarted_sandbox_gives_the_same_person_the_same_id(people: GitHubWorld) -> None:
    again = GitHubWorld(SandboxClock())
    assert people.add_account("buyer-1").id == again.add_account("BUYER-1").id
    assert people.add_account("buyer-2").id != people.account("buyer-1").id


def test_logins_and_ids_are_taken_once(people: GitHubWorld) -> None:
    with pytest.raises(ValueError, match="login 'OctoCat' is taken"):
        people.add_account("OctoCat")
    with pytest.raises(ValueError, match="id 583231 is taken"):
        people.add_account("somebody", account_id=583231)
    with pytest.raises(ValueError, match="login 'github' is taken"):
        people.rename_account("octocat", "github")
    assert people.rename_account("octocat", "OCTOCAT").login == "OCTOCAT", "a person may change their letters"


def test_a_derived_id_gives_way_to_a_given_one(people: GitHubWorld) -> None:
    derived = GitHubWorld(SandboxClock()).add_account("buyer-1").id
    people.add_account("other", account_id=derived)
    assert people.add_account("buyer-1").id == derived + 1


def test_what_does_not_exist_is_named(people: GitHubWorld) -> None:
    with pytest.raises(LookupError, match="no account 'nobody'"):
        people.account("nobody")
    with pytest.raises(LookupError, match="no repository 'a/b'"):
        people.add_token("t", "octocat", ["a/b"])
    with pytest.raises(LookupError, match="no account 'nobody'"):
        people.add_repository("nobody/thing")
    with pytest.raises(ValueError, match="exists"):
        people.add_repository(DEFAULT_REPOSITORY.upper())
    for act in (people.accept, people.decline):
        with pytest.raises(LookupError, match="octocat has no invitation"):
            act(DEFAULT_REPOSITORY, "octocat")


def test_the_seeded_token_administers_the_seeded_repository(people: GitHubWorld) -> None:
    token = people.tokens[DEFAULT_TOKEN]
    assert token.administers == {people.repository(DEFAULT_REPOSITORY).id}
    assert people.repository(DEFAULT_REPOSITORY).owner.type is AccountType.ORGANIZATION


def test_a_deleted_account_takes_its_access_along(people: GitHubWorld) -> None:
    people.add_collaborator(DEFAULT_REPOSITORY, "octocat", "push")
    repository = people.repository(DEFAULT_REPOSITORY)
    assert list(repository.collaborators.values()) == ["write"]
    people.delete_account("octocat")
    assert repository.collaborators == {}
    assert people.find_account("octocat") is None


def test_a_name_that_is_used_again_stops_redirecting(people: GitHubWorld) -> None:
    repository = people.rename_repository(DEFAULT_REPOSITORY, "lessons")
    assert people.moved == {DEFAULT_REPOSITORY: repository.id}
    people.rename_repository("acme-school/lessons", "course-materials")
    assert people.moved == {"acme-school/lessons": repository.id}
