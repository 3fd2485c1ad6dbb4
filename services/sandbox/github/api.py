"""The routes: who may ask, what is answered, and what changes.

The checks stand in GitHub's own order, because the order decides which refusal a caller sees: user agent, version,
token, repository, body, account, access.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from services.sandbox.clock import SandboxClock, http_date
from services.sandbox.faults import FaultScript, Reply, performs, trouble
from services.sandbox.github import refusals
from services.sandbox.github.shapes import (
    Account,
    AccountType,
    Invitation,
    Repository,
    public_user,
    repository_invitation,
)
from services.sandbox.github.world import RANK, ROLES, GitHubWorld, Token
from services.sandbox.http import Answer, Call, Cut, Dropped, Outcome
from services.sandbox.log import InviteEffect, Vendor

API_VERSIONS: Final = ("2022-11-28", "2026-03-10")
LIMIT_PER_HOUR: Final = 5000
LIMIT_PER_HOUR_ANONYMOUS: Final = 60
PER_PAGE_DEFAULT: Final = 30
PER_PAGE_MAX: Final = 100
QUOTA_WINDOW: Final = timedelta(hours=24)
JSON_HEADERS: Final = {"content-type": "application/json; charset=utf-8"}


class Refused(Exception):
    """Ends a route with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(slots=True)
class Budget:
    """Primary rate limit of one credential."""

    limit: int
    reset_at: datetime
    used: int = 0


Route: TypeAlias = Callable[["GitHubApi", Call, Token | None], Answer]


@dataclass(slots=True)
class GitHubApi:
    """Handler behind the GitHub door."""

    world: GitHubWorld
    clock: SandboxClock
    faults: FaultScript
    limit_per_hour: int = LIMIT_PER_HOUR
    budgets: dict[str, Budget] = field(default_factory=dict)
    invited_at: dict[int, list[datetime]] = field(default_factory=dict)
    """When invitations were created, by repository id: the quota counts them even when they are gone."""

    async def answer(self, call: Call) -> Outcome:
        """Every call gets an outcome; a scripted fault may replace it."""
        call.entry.subject = _subject(call)
        armed = self.faults.take(Vendor.GITHUB, call)
        if armed is None:
            return self._dress(self._route(call), call)
        await call.pause(armed.fault.delay_ms / 1000)
        truth = self._dress(self._route(call), call) if performs(armed.fault) else None
        outcome = await trouble(armed, truth, call, self.clock)
        match outcome:
            case Answer():
                # No budget headers: the shapes clients misread are exactly the ones that come without them.
                return self._dress(outcome, call, budgeted=False)
            case Cut() | Dropped():
                return outcome

    def _route(self, call: Call) -> Answer:
        try:
            self._check_manners(call)
            token = self._credential(call)
            self._spend(token)
            return _find_route(call)(self, call, token)
        except Refused as refused:
            return refused.reply.over(None, self.clock)

    def _dress(self, answer: Answer, call: Call, *, budgeted: bool = True) -> Answer:
        """The headers every answer of GitHub carries; those already there stay."""
        budget = self.budgets.get(_secret(call))
        rate = (
            {
                "x-ratelimit-limit": str(budget.limit),
                "x-ratelimit-remaining": str(max(0, budget.limit - budget.used)),
                "x-ratelimit-reset": str(int(budget.reset_at.timestamp())),
                "x-ratelimit-used": str(budget.used),
                "x-ratelimit-resource": "core",
            }
            if budget is not None and budgeted
            else {}
        )
        headers = {
            "server": "github.com",
            "date": http_date(self.clock.now()),
            "x-github-media-type": "github.v3; format=json",
            "x-github-api-version-selected": call.headers.get("x-github-api-version", API_VERSIONS[-1]),
            "x-github-request-id": ":".join(token_hex(2).upper() for _ in range(5)),
        }
        return Answer(answer.status, answer.body, headers | rate | dict(answer.headers))

    def _check_manners(self, call: Call) -> None:
        if not call.headers.get("user-agent"):
            raise Refused(refusals.missing_user_agent())
        # GitHub itself falls back to its oldest version; here a caller that forgot is told, before its answers change.
        version = call.headers.get("x-github-api-version", "(none sent)")
        if version not in API_VERSIONS:
            raise Refused(refusals.unsupported_api_version(version))

    def _credential(self, call: Call) -> Token | None:
        secret = _secret(call)
        if not secret:
            return None
        if (token := self.world.tokens.get(secret)) is None:
            raise Refused(refusals.bad_credentials())
        return token

    def _spend(self, token: Token | None) -> None:
        secret = token.secret if token else ""
        limit = self.limit_per_hour if token else LIMIT_PER_HOUR_ANONYMOUS
        now = self.clock.now()
        budget = self.budgets.get(secret)
        if budget is None or now >= budget.reset_at:
            budget = self.budgets[secret] = Budget(limit, now + timedelta(hours=1))
        budget.limit = limit
        if budget.used >= limit:
            raise Refused(refusals.primary_limit((budget.reset_at - now).total_seconds()))
        budget.used += 1

    def _repository(self, call: Call, token: Token | None, *, administer: bool = True) -> Repository:
        """The repository in the path; refused with a redirect, a masking 404, or a plain 403."""
        if token is None:
            raise Refused(refusals.requires_authentication())
        if call.segments[0] == "repositories":
            number = call.segments[1]
            repository = self.world.repositories.get(int(number)) if number.isdecimal() else None
        else:
            full_name = "/".join(call.segments[1:3])
            repository = self.world.find_repository(full_name)
            moved = self.world.moved.get(full_name.lower())
            if repository is None and moved in token.sees and moved is not None:
                tail = call.path.split("/", 4)[4]
                raise Refused(refusals.moved(f"{call.base_url}/repositories/{moved}/{tail}"))
        if repository is None or repository.id not in token.sees:
            raise Refused(refusals.not_found())
        if administer and repository.id not in token.administers:
            raise Refused(refusals.must_have_admin_rights())
        return repository

    def put_collaborator(self, call: Call, token: Token | None) -> Answer:
        """Invite, or do nothing for someone who has access."""
        if token is None:
            raise Refused(refusals.requires_authentication())
        repository = self._repository(call, token)
        permission = _permission(call, repository)
        login = call.segments[-1]
        account = self.world.find_account(login)
        if account is None or account.type is not AccountType.USER:
            raise Refused(refusals.not_found())
        if account is repository.owner:
            raise Refused(refusals.owner_cannot_be_collaborator())
        base_role = repository.base_roles.get(account.id)
        if base_role is not None and RANK.index(base_role) > RANK.index(permission):
            raise Refused(refusals.member_role_is_higher(account.login, permission))
        if base_role is not None or account.id in repository.collaborators:
            repository.collaborators[account.id] = permission
            call.entry.effect = InviteEffect.KEPT
            return Answer(204, b"", {})
        invitation = self.world.open_invitation(repository, account)
        if invitation is None:
            invitation = self._invite(repository, account, token.owner, permission)
            call.entry.effect = InviteEffect.CREATED
        elif not invitation.expired(self.clock.now()):
            invitation.notified += 1
            invitation.permission = permission
            call.entry.effect = InviteEffect.REPEATED
        return _json(201, repository_invitation(invitation, repository, call.base_url, self.clock.now()))

    def _invite(self, repository: Repository, account: Account, inviter: Account, permission: str) -> Invitation:
        now = self.clock.now()
        recent = [instant for instant in self.invited_at.get(repository.id, []) if now - instant < QUOTA_WINDOW]
        quota = repository.invitations_per_day_max
        if quota is not None and len(recent) >= quota:
            raise Refused(refusals.invitation_quota())
        self.invited_at[repository.id] = [*recent, now]
        invitation = Invitation(next(self.world.invitation_ids), account, inviter, permission, now)
        repository.invitations[invitation.id] = invitation
        return invitation

    def get_collaborator(self, call: Call, token: Token | None) -> Answer:
        """204 for someone who has access, 404 for everybody else."""
        repository = self._repository(call, token, administer=False)
        account = self.world.find_account(call.segments[-1])
        if account is None or not (
            account.id in repository.collaborators or account.id in repository.base_roles or account is repository.owner
        ):
            raise Refused(refusals.not_found(f"{refusals.DOCS}/collaborators/collaborators"))
        return Answer(204, b"", {})

    def delete_collaborator(self, call: Call, token: Token | None) -> Answer:
        """Take the access away; 204 whether or not there was any."""
        repository = self._repository(call, token)
        account = self.world.find_account(call.segments[-1])
        if account is None:
            raise Refused(refusals.not_found(f"{refusals.DOCS}/collaborators/collaborators"))
        if repository.collaborators.pop(account.id, None) is not None:
            call.entry.effect = "access_removed"
        return Answer(204, b"", {})

    def list_invitations(self, call: Call, token: Token | None) -> Answer:
        """Open and expired invitations, oldest first, in pages."""
        repository = self._repository(call, token)
        query = dict(call.query_pairs())
        per_page = min(_positive(query.get("per_page"), PER_PAGE_DEFAULT), PER_PAGE_MAX)
        page = _positive(query.get("page"), 1)
        invitations = list(repository.invitations.values())
        shown = invitations[(page - 1) * per_page : page * per_page]
        now = self.clock.now()
        body = [repository_invitation(one, repository, call.base_url, now) for one in shown]
        last = max(1, -(-len(invitations) // per_page))
        return _json(200, body, _link(call, page, last, query))

    def delete_invitation(self, call: Call, token: Token | None) -> Answer:
        """Take an invitation back."""
        repository = self._repository(call, token)
        number = call.segments[-1]
        if not number.isdecimal() or repository.invitations.pop(int(number), None) is None:
            raise Refused(refusals.not_found(f"{refusals.DOCS}/collaborators/invitations"))
        call.entry.effect = "invitation_deleted"
        return Answer(204, b"", {})

    def get_user(self, call: Call, token: Token | None) -> Answer:
        """Who a login belongs to."""
        account = self.world.find_account(call.segments[1])
        if account is None:
            raise Refused(refusals.not_found(f"{refusals.DOCS}/users/users#get-a-user"))
        return _json(200, public_user(account, call.base_url))

    def get_user_by_id(self, call: Call, token: Token | None) -> Answer:
        """What an account is called now."""
        number = call.segments[1]
        account = self.world.accounts.get(int(number)) if number.isdecimal() else None
        if account is None:
            raise Refused(refusals.not_found(f"{refusals.DOCS}/users/users#get-a-user-using-their-id"))
        return _json(200, public_user(account, call.base_url))


def _find_route(call: Call) -> Route:
    match (call.method, *call.segments):
        case ("GET", "users", _):
            return GitHubApi.get_user
        case ("GET", "user", _):
            return GitHubApi.get_user_by_id
        case (method, "repos", _, _, *rest) | (method, "repositories", _, *rest):
            match (method, *rest):
                case ("PUT", "collaborators", _):
                    return GitHubApi.put_collaborator
                case ("GET", "collaborators", _):
                    return GitHubApi.get_collaborator
                case ("DELETE", "collaborators", _):
                    return GitHubApi.delete_collaborator
                case ("GET", "invitations"):
                    return GitHubApi.list_invitations
                case ("DELETE", "invitations", _):
                    return GitHubApi.delete_invitation
                case _:
                    raise Refused(refusals.not_found(refusals.DOCS))
        case _:
            raise Refused(refusals.not_found(refusals.DOCS))


def _subject(call: Call) -> str | None:
    """The login or the invitation a call is about."""
    match call.segments:
        case ("users" | "user", subject) | (*_, "collaborators" | "invitations", subject):
            return subject
        case _:
            return None


def _permission(call: Call, repository: Repository) -> str:
    """The role asked for, as invitations name it."""
    if not call.body:
        return ROLES["push"]
    try:
        body = json.loads(call.body)
    except ValueError as error:
        raise Refused(refusals.problems_parsing_json()) from error
    if not isinstance(body, dict):
        raise Refused(refusals.body_not_an_object())
    if "permission" in body and repository.owner.type is AccountType.USER:
        raise Refused(refusals.permission_on_personal_repository())
    permission = body.get("permission", "push")
    if permission not in ROLES:
        raise Refused(refusals.validation_failed({"resource": "Repository", "field": "permission", "code": "invalid"}))
    return ROLES[permission]


def _link(call: Call, page: int, last: int, query: dict[str, str]) -> dict[str, str]:
    targets: dict[str, int] = {}
    if page > 1:
        targets |= {"prev": min(page - 1, last)}
    if page < last:
        targets |= {"next": page + 1, "last": last}
    if page > 1:
        targets |= {"first": 1}
    links = [
        f'<{call.base_url}{call.path}?{urlencode(query | {"page": str(number)})}>; rel="{rel}"'
        for rel, number in targets.items()
    ]
    return {"link": ", ".join(links)} if links else {}


def _positive(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and int(text) > 0 else default


def _secret(call: Call) -> str:
    scheme, _, secret = call.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() in ("bearer", "token") else ""


def _json(status: int, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, json.dumps(body).encode(), JSON_HEADERS | (headers or {}))
