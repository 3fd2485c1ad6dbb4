"""What GitHub's answers look like: every property the published description requires, and the usual optional ones."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from services.sandbox.clock import iso_z

INVITATION_LIFE: Final = timedelta(days=7)
WEB: Final = "https://github.com"


class AccountType(StrEnum):
    """What a login belongs to."""

    USER = "User"
    ORGANIZATION = "Organization"
    BOT = "Bot"


@dataclass(slots=True)
class Account:
    """One account; ``id`` stays when the login changes."""

    id: int
    login: str
    type: AccountType
    created_at: datetime
    name: str | None = None
    email: str | None = None


@dataclass(slots=True)
class Invitation:
    """An open invitation to a repository."""

    id: int
    invitee: Account
    inviter: Account
    permission: str
    """As the invitation says it: read, triage, write, maintain, admin."""
    created_at: datetime
    notified: int = 1
    """How often the invitee was told: a repeated PUT tells them again."""

    def expired(self, now: datetime) -> bool:
        """Whether its seven days are over."""
        return now - self.created_at >= INVITATION_LIFE


@dataclass(slots=True)
class Repository:
    """One repository and who may use it."""

    id: int
    owner: Account
    name: str
    created_at: datetime
    private: bool = True
    collaborators: dict[int, str] = field(default_factory=dict)
    """Permission by account id."""
    invitations: dict[int, Invitation] = field(default_factory=dict)
    base_roles: dict[int, str] = field(default_factory=dict)
    """Role every organisation member has without being invited, by account id."""
    invitations_per_day_max: int | None = None
    """GitHub allows 50; None switches the quota off."""

    @property
    def full_name(self) -> str:
        """``owner/name``."""
        return f"{self.owner.login}/{self.name}"


def node_id(prefix: str, number: int) -> str:
    """An opaque id in GitHub's newer style."""
    return f"{prefix}_kgDO{sha256(f'{prefix}{number}'.encode()).hexdigest()[:10]}"


def simple_user(account: Account, api: str) -> dict[str, Any]:
    """An account inside another object."""
    url = f"{api}/users/{account.login}"
    return {
        "login": account.login,
        "id": account.id,
        "node_id": node_id("O" if account.type is AccountType.ORGANIZATION else "U", account.id),
        "avatar_url": f"https://avatars.githubusercontent.com/u/{account.id}?v=4",
        "gravatar_id": "",
        "url": url,
        "html_url": f"{WEB}/{account.login}",
        "followers_url": f"{url}/followers",
        "following_url": f"{url}/following{{/other_user}}",
        "gists_url": f"{url}/gists{{/gist_id}}",
        "starred_url": f"{url}/starred{{/owner}}{{/repo}}",
        "subscriptions_url": f"{url}/subscriptions",
        "organizations_url": f"{url}/orgs",
        "repos_url": f"{url}/repos",
        "events_url": f"{url}/events{{/privacy}}",
        "received_events_url": f"{url}/received_events",
        "type": account.type.value,
        "user_view_type": "public",
        "site_admin": False,
    }


def public_user(account: Account, api: str) -> dict[str, Any]:
    """An account asked for by its login."""
    return simple_user(account, api) | {
        "name": account.name,
        "company": None,
        "blog": "",
        "location": None,
        "email": account.email,
        "hireable": None,
        "bio": None,
        "twitter_username": None,
        "public_repos": 3,
        "public_gists": 0,
        "followers": 1,
        "following": 0,
        "created_at": iso_z(account.created_at),
        "updated_at": iso_z(account.created_at),
    }


_REPOSITORY_LINKS: Final = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}


def minimal_repository(repository: Repository, api: str) -> dict[str, Any]:
    """The repository inside an invitation."""
    url = f"{api}/repos/{repository.full_name}"
    return {
        "id": repository.id,
        "node_id": node_id("R", repository.id),
        "name": repository.name,
        "full_name": repository.full_name,
        "private": repository.private,
        "owner": simple_user(repository.owner, api),
        "html_url": f"{WEB}/{repository.full_name}",
        "description": None,
        "fork": False,
        "url": url,
    } | {name: f"{url}{tail}" for name, tail in _REPOSITORY_LINKS.items()}


def repository_invitation(invitation: Invitation, repository: Repository, api: str, now: datetime) -> dict[str, Any]:
    """An invitation, as PUT answers it and the list shows it."""
    return {
        "id": invitation.id,
        "node_id": node_id("RI", invitation.id),
        "repository": minimal_repository(repository, api),
        "invitee": simple_user(invitation.invitee, api),
        "inviter": simple_user(invitation.inviter, api),
        "permissions": invitation.permission,
        "created_at": iso_z(invitation.created_at),
        "expired": invitation.expired(now),
        "url": f"{api}/user/repository_invitations/{invitation.id}",
        "html_url": f"{WEB}/{repository.full_name}/invitations",
    }
