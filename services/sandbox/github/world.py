"""Who and what exists at GitHub: accounts, repositories, tokens; changed by the API and by people, that is by tests."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Final

from services.sandbox.clock import SandboxClock
from services.sandbox.github.shapes import Account, AccountType, Invitation, Repository

DEFAULT_TOKEN: Final = "github_pat_rowclaim_sandbox"  # noqa: S105 (opens nothing but this sandbox)
DEFAULT_REPOSITORY: Final = "acme-school/course-materials"
ROLES: Final = {"pull": "read", "triage": "triage", "push": "write", "maintain": "maintain", "admin": "admin"}
"""What a PUT asks for, and what an invitation calls it."""
RANK: Final = ("read", "triage", "write", "maintain", "admin")


@dataclass(frozen=True, slots=True)
class Token:
    """A credential: whose it is, and which repositories it sees and administers."""

    secret: str
    owner: Account
    sees: frozenset[int]
    administers: frozenset[int]


@dataclass(slots=True)
class GitHubWorld:
    """The state. Logins compare without letter case, as GitHub's do."""

    clock: SandboxClock
    accounts: dict[int, Account] = field(default_factory=dict)
    repositories: dict[int, Repository] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    """Former full names (lower case) of renamed repositories, by repository id."""
    invitation_ids: Iterator[int] = field(default_factory=lambda: count(200_000_000 + secrets.randbelow(100_000_000)))

    def seed(self) -> None:
        """What a newcomer finds: an organisation with a private repository, a token for it, a few well-known logins."""
        self.add_account("octocat", account_id=583231, name="The Octocat")
        self.add_account("github", AccountType.ORGANIZATION, account_id=9919, name="GitHub")
        self.add_account("dependabot[bot]", AccountType.BOT, account_id=49699333)
        self.add_account("acme-bot-owner")
        self.add_account(DEFAULT_REPOSITORY.split("/")[0], AccountType.ORGANIZATION)
        self.add_repository(DEFAULT_REPOSITORY)
        self.add_token(DEFAULT_TOKEN, "acme-bot-owner", [DEFAULT_REPOSITORY])

    def find_account(self, login: str) -> Account | None:
        """The account that has this login now."""
        wanted = login.lower()
        return next((account for account in self.accounts.values() if account.login.lower() == wanted), None)

    def find_repository(self, full_name: str) -> Repository | None:
        """The repository that has this name now."""
        wanted = full_name.lower()
        return next((one for one in self.repositories.values() if one.full_name.lower() == wanted), None)

    def add_account(
        self,
        login: str,
        account_type: AccountType = AccountType.USER,
        *,
        account_id: int | None = None,
        name: str | None = None,
    ) -> Account:
        """A new account; without an id, one derived from the login, so a restarted sandbox gives the same person again.

        Raises ValueError for a login or an id that is taken.
        """
        if self.find_account(login) is not None:
            raise ValueError(f"the login {login!r} is taken")
        if account_id is None:
            account_id = 10_000_000 + int(sha256(login.lower().encode()).hexdigest()[:7], 16)
            while account_id in self.accounts:
                account_id += 1
        elif account_id in self.accounts:
            raise ValueError(f"the id {account_id} is taken")
        self.accounts[account_id] = account = Account(account_id, login, account_type, self.clock.now(), name)
        return account

    def rename_account(self, login: str, new_login: str) -> Account:
        """Free a login; the numeric id keeps everything else. Raises LookupError, or ValueError when taken."""
        account = self.account(login)
        taken = self.find_account(new_login)
        if taken is not None and taken is not account:
            raise ValueError(f"the login {new_login!r} is taken")
        account.login = new_login
        return account

    def delete_account(self, login: str) -> None:
        """The account and everything it was allowed is gone. Raises LookupError."""
        account = self.account(login)
        del self.accounts[account.id]
        for repository in self.repositories.values():
            repository.collaborators.pop(account.id, None)
            repository.invitations = {
                number: one for number, one in repository.invitations.items() if one.invitee is not account
            }

    def add_repository(self, full_name: str, *, invitations_per_day_max: int | None = None) -> Repository:
        """A private repository of an existing account. Raises LookupError, or ValueError for a taken name."""
        owner, _, name = full_name.partition("/")
        if self.find_repository(full_name) is not None:
            raise ValueError(f"the repository {full_name!r} exists")
        number = 500_000_000 + int(sha256(full_name.lower().encode()).hexdigest()[:7], 16)
        self.repositories[number] = repository = Repository(
            number, self.account(owner), name, self.clock.now(), invitations_per_day_max=invitations_per_day_max
        )
        return repository

    def rename_repository(self, full_name: str, new_name: str) -> Repository:
        """From now on the old name redirects. Raises LookupError."""
        repository = self.repository(full_name)
        self.moved[repository.full_name.lower()] = repository.id
        repository.name = new_name
        self.moved.pop(repository.full_name.lower(), None)
        return repository

    def add_token(self, secret: str, login: str, administers: Sequence[str], *, sees: Sequence[str] = ()) -> Token:
        """A credential; adding a known secret again changes what it may do. Raises LookupError."""
        administered = frozenset(self.repository(name).id for name in administers)
        seen = administered | frozenset(self.repository(name).id for name in sees)
        self.tokens[secret] = token = Token(secret, self.account(login), seen, administered)
        return token

    def revoke_token(self, secret: str) -> None:
        """From now on it answers 401."""
        self.tokens.pop(secret, None)

    def add_collaborator(self, full_name: str, login: str, permission: str = "pull") -> None:
        """Access without an invitation. Raises LookupError."""
        self.repository(full_name).collaborators[self.account(login).id] = ROLES[permission]

    def add_member(self, full_name: str, login: str, role: str = "read") -> None:
        """An organisation member, who has ``role`` everywhere without being invited. Raises LookupError."""
        self.repository(full_name).base_roles[self.account(login).id] = role

    def accept(self, full_name: str, login: str) -> None:
        """The buyer accepts: the invitation goes, the access comes. Raises LookupError for none, or an expired one."""
        repository, account = self.repository(full_name), self.account(login)
        invitation = self.open_invitation(repository, account)
        if invitation is None or invitation.expired(self.clock.now()):
            raise LookupError(f"{login} has no invitation to {full_name} that could be accepted")
        del repository.invitations[invitation.id]
        repository.collaborators[account.id] = invitation.permission

    def decline(self, full_name: str, login: str) -> None:
        """The buyer declines: the invitation goes. Raises LookupError when there is none."""
        repository = self.repository(full_name)
        invitation = self.open_invitation(repository, self.account(login))
        if invitation is None:
            raise LookupError(f"{login} has no invitation to {full_name}")
        del repository.invitations[invitation.id]

    def open_invitation(self, repository: Repository, account: Account) -> Invitation | None:
        """The invitation this account has not answered, expired or not."""
        return next((one for one in repository.invitations.values() if one.invitee is account), None)

    def account(self, login: str) -> Account:
        """Like find_account; raises LookupError."""
        if (account := self.find_account(login)) is None:
            raise LookupError(f"no account {login!r}; add it first")
        return account

    def repository(self, full_name: str) -> Repository:
        """Like find_repository; raises LookupError."""
        if (repository := self.find_repository(full_name)) is None:
            raise LookupError(f"no repository {full_name!r}; add it first")
        return repository
