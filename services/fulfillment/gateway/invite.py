"""GitHub: a collaborator's invitation to one repository. The one file to replace for another product.

Nothing else of the slice knows GitHub. Three questions come in, each with a closed answer; no vendor type and no
exception crosses. Every answer is read whole: GitHub says "slow down" in headers, in seconds, as a date or in words
alone, and one 404 says both "no such account" and "your token cannot see the repository".

    InviteSettings, open_inviter   what the slice's card wires
    GitHubInviter.check            is there a person of this name? asked before the money moves
    GitHubInviter.invite           still the same person? · did the last call arrive? · is an old invitation in the way?
                                   · PUT · if need be, one question
    GitHubInviter.standing         has the person access? · is the invitation still open?
    judge                          a PUT's answer -> an outcome, or the question that leads to one
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httpx
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from services.fulfillment.machine import (
    Accepted,
    Config,
    Delivered,
    Expired,
    HandleAnswer,
    HandleKnown,
    HandleUnknown,
    HandleUnverified,
    Invitation,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    Open,
    Outcome,
    Pause,
    Terminal,
    Transient,
)
from services.kernel.errors import Retryable
from services.kernel.gate import Gates, vendor
from services.kernel.service import OnClose
from services.kernel.settings import SliceSettings
from services.vendors.http import http_client

log = structlog.get_logger()

GATE: Final = "github"
API_VERSION: Final = "2026-03-10"
USER_AGENT: Final = "rowclaim"
INVITE_BOUND_S: Final = 12.0
"""GitHub itself gives a request up after ten seconds."""
LOOK_BOUND_S: Final = 5.0
CHECK_BOUND_S: Final = 5.0
"""A buyer waits for the check, and for whatever stands before it: the pace, too."""
CHECK_PATIENCE_S: Final = 3.0
"""Of these for the pace alone: a rush of buyers is let through unchecked rather than put before the invitations."""

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 3600.0
QUOTA_PAUSE: Final = timedelta(hours=2)
"""Fifty invitations a repository in any 24 hours: asking again within minutes only adds refusals."""
PAGE_SIZE: Final = 100
PAGES_MAX: Final = 5
"""Of invitations looked through before one is sent. Past them it is sent anew: it cannot be doubled, only announced
twice."""
PAGES_MAX_STANDING: Final = 20
"""Of invitations looked through for one that nobody took up. Past them it counts as run out: it is a week old, its
person has no access, and a second invitation costs less than one that nobody ever asks about again."""
INVITATION_LIFE: Final = timedelta(days=7)
REASON_CHARS_MAX: Final = 500
REPOSITORY_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"

RATE_WORDS: Final = re.compile(r"secondary rate|rate limit|abuse", re.IGNORECASE)
PERSONAL_WORDS: Final = re.compile(r"organization-owned repositor", re.IGNORECASE)
HIGHER_ROLE_WORDS: Final = re.compile(r"cannot assign .* permission", re.IGNORECASE)
OWNER_WORDS: Final = re.compile(r"owner cannot be|yourself|already a collaborator", re.IGNORECASE)
QUOTA_WORDS: Final = re.compile(r"(limit|too many|maximum).*invit|invit.*(limit|maximum|per day)", re.IGNORECASE)


# ------------------------------------------------------------------------------------------------------------- wiring
class InviteSettings(SliceSettings):
    """What only this product needs to know."""

    github_api_url: str = "https://api.github.com"
    """Base of GitHub's REST API."""
    github_token: SecretStr | None = None
    """May invite to the repository, and may read users. Unset: usernames are sold unchecked, and nobody is invited."""
    github_repository: Annotated[str, Field(pattern=REPOSITORY_PATTERN)]
    """``owner/name`` of what is sold."""
    github_permission: str = "pull"
    """Empty: none is sent. A personal repository refuses any, and lets every guest push."""
    github_pace_s: Annotated[float, Field(ge=0)] = 1.0
    """Least seconds between the starts of two calls, over all processes: GitHub asks for no more than one a second."""


def paces(settings: InviteSettings) -> dict[str, float]:
    """How fast the gates may let calls through."""
    return {GATE: settings.github_pace_s}


def open_inviter(settings: InviteSettings, gates: Gates, on_close: OnClose) -> "GitHubInviter":
    """The product's gateway, over an HTTP client of its own that ends with the process."""
    http = http_client()
    on_close(http.aclose)
    return GitHubInviter(settings, http, gates)


# --------------------------------------------------------------------------------------------- what GitHub may answer
@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. ``headers`` in lower case; ``body``: its JSON, None where it is none."""

    status: int
    headers: Mapping[str, str]
    text: str = ""
    body: Any = None
    next_url: str | None = None
    """The next page of a list."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """``maybe_acted``: GitHub may have done what it was asked."""

    code: str
    maybe_acted: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Invited:
    """GitHub invited the person, now or earlier; they must accept."""

    invitation: Invitation
    in_the_way: int | None = None
    """The id of one that ran out, and that GitHub shows instead of sending a new one."""


@dataclass(frozen=True, slots=True)
class HasAccess:
    """The person is a collaborator already."""


@dataclass(frozen=True, slots=True)
class AskWhoseLogin:
    """A 404: a typo of the buyer's, or a fault of ours? The account decides."""


@dataclass(frozen=True, slots=True)
class AskAccess:
    """Refused because the person is more than a guest? If they have access all is well, else ``otherwise``."""

    otherwise: Terminal | Config


@dataclass(frozen=True, slots=True)
class Follow:
    """The repository was renamed or transferred."""

    location: str


Verdict = Invited | HasAccess | AskWhoseLogin | AskAccess | Follow | Terminal | Transient | Config


TOKEN_MISSING: Final = Config("token_missing", "No token is set: ROWCLAIM_FULFILLMENT_GITHUB_TOKEN.")

# What the row's columns cannot hold is not read: refused by the database, it would strand a delivered purchase.
_Id = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Account(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    id: _Id
    login: str
    type: str | None = None


class _Invitation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    id: _Id
    invitee: _Account | None = None
    created_at: datetime | None = None
    html_url: Annotated[str, Field(pattern=r"^https?://[!-~]{1,2000}$")] | None = None
    expired: bool = False


# -------------------------------------------------------------------------------------------------- judging an answer
def judge(answer: Answer | NoAnswer) -> Verdict:
    """What the answer to an invitation means: an outcome, or the question that leads to one."""
    match answer:
        case Answer(status=201):
            # Invited even when the body cannot be read: asking again would only notify the person twice.
            made = _read(_Invitation, answer.body)
            if made is None:
                return Invited(Invitation())
            return Invited(_invitation(made), made.id if _ran_out(made, answer) else None)
        case Answer(status=204):
            return HasAccess()
        case Answer(status=404):
            return AskWhoseLogin()
        case Answer(status=422):
            return _unprocessable(answer)
        case Answer(status=301 | 302 | 307 | 308, headers={"location": location}):
            return Follow(location)
        case _:
            return trouble(answer, acting=True)


def judge_account(answer: Answer | NoAnswer, handle: str) -> HandleAnswer:
    """What the look-up of a login says about selling to it. Only a clear no is one: whatever else comes, the sale goes
    on, and the invitation will tell."""
    if isinstance(answer, Answer) and answer.status == 404:
        return HandleUnknown("no_such_account")
    account = _read(_Account, answer.body) if isinstance(answer, Answer) and answer.status == 200 else None
    if account is None:
        decided = trouble(answer, acting=False)
        if isinstance(decided, Transient):
            return HandleUnverified(decided.code, pause=decided.pause)
        # Of the other refusals none is surely about us: a 403 is what some renamed accounts answer, a 400 some names.
        return HandleUnverified(decided.code, our_fault=decided.code == "http_401")
    if account.login.lower() != handle.lower():
        return HandleUnverified("login_differs")  # an answer about somebody else: their id must not be pinned
    match account.type:
        case "User":
            return HandleKnown(account.login, account.id)
        case "Organization" | "Bot":
            return HandleUnknown("not_a_person")
        case _:
            return HandleUnverified("account_type")


def trouble(answer: Answer | NoAnswer, *, acting: bool) -> Transient | Config:
    """What an answer means that decides nothing about the person: GitHub's trouble, or ours.

    ``acting``: the call was to change something, and may have.
    """
    if isinstance(answer, NoAnswer):
        maybe = acting and answer.maybe_acted
        return Transient(answer.code, "GitHub did not answer.", ask_first=maybe, timed_out=answer.timed_out)
    reason = _reason(answer)
    if answer.status in (403, 429) and (pause := _rate_refusal(answer)) is not None:
        return Transient("rate_limited", reason, pause=pause)
    if answer.status == 409:
        return Transient("conflict", reason)
    if answer.status == 408 or answer.status >= 500 or answer.status < 300:
        # A proxy's error says nothing about what stood behind it, and an unknown success may be one.
        return Transient("vendor_trouble", reason, ask_first=acting)
    return Config(f"http_{answer.status}", reason)


def _rate_refusal(answer: Answer) -> Pause | None:
    """How long GitHub wants to be left alone; None: this refusal is about our rights, not our pace.

    Instants are measured against the answer's own ``Date``, never against this machine's clock.
    """
    said = answer.headers.get("retry-after", "").strip()
    if said:
        return Pause(_clamped(float(said[:12])) if said.isdecimal() else _until(answer, _http_date(said)))
    if answer.headers.get("x-ratelimit-remaining", "").strip() == "0":
        return Pause(_until(answer, _epoch(answer.headers.get("x-ratelimit-reset", ""))))
    if answer.status == 429 or RATE_WORDS.search(answer.text):
        return Pause()
    return None


def _until(answer: Answer, instant: datetime | None) -> timedelta | None:
    now = _http_date(answer.headers.get("date", ""))
    return None if now is None or instant is None else _clamped((instant - now).total_seconds())


def _clamped(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(seconds, PAUSE_MIN_S), PAUSE_MAX_S))


def _epoch(seconds: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _is_about_the_account(decided: Transient | Config) -> bool:
    """A 403 without a reason, to a look-up: what GitHub answers for some renamed accounts, and no word about us."""
    return isinstance(decided, Config) and decided.code == "http_403"


def _unprocessable(answer: Answer) -> AskAccess | Terminal | Transient | Config:
    """One status for a dozen reasons; only the words tell them apart."""
    reason = _reason(answer)
    if PERSONAL_WORDS.search(reason):
        return Config("personal_repository", reason)
    if HIGHER_ROLE_WORDS.search(reason):
        return AskAccess(otherwise=Config("role_is_higher", reason))
    if QUOTA_WORDS.search(reason):
        return Transient("invitation_quota", reason, pause=Pause(QUOTA_PAUSE), attention="invitation_quota")
    unexplained = Terminal("unexplained_refusal", reason, unexplained=True)
    return AskAccess(otherwise=unexplained) if OWNER_WORDS.search(reason) else unexplained


def _reason(answer: Answer) -> str:
    """GitHub's own words, for operators: in one line, storable, and of bounded length."""
    words: list[object] = []
    if isinstance(answer.body, dict):
        words.append(answer.body.get("message"))
        errors = answer.body.get("errors")
        for error in errors if isinstance(errors, list) else []:
            words.append((error.get("message") or error.get("code")) if isinstance(error, dict) else error)
    text = ": ".join(str(word) for word in words if word) or answer.text or "no words"
    line = " ".join(text[:REASON_CHARS_MAX].encode("utf-8", "replace").decode("utf-8").replace("\0", "").split())
    return f"HTTP {answer.status}: {line}"


ModelT = TypeVar("ModelT", bound=BaseModel)


def _read(model: type[ModelT], body: object) -> ModelT | None:
    try:
        return model.model_validate(body)
    except ValidationError:
        return None


def _invitation(made: _Invitation) -> Invitation:
    return Invitation(
        id=made.id,
        url=made.html_url,
        account_id=made.invitee.id if made.invitee else None,
        created_at=_created(made),
    )


def _created(made: _Invitation) -> datetime | None:
    at = made.created_at
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def _ran_out(made: _Invitation, answer: Answer) -> bool:
    """Whether it can no longer be accepted: GitHub says so, or its week is over by the clock of the answer."""
    at, now = _created(made), _http_date(answer.headers.get("date", ""))
    return made.expired or (at is not None and now is not None and now - at >= INVITATION_LIFE)


def path_segment(login: str) -> str:
    """The whole login as one segment of a path, whatever it holds: a slash or two dots would reach another endpoint."""
    return quote(login, safe="", errors="surrogatepass") if login.strip(".") else "%2E" * len(login)


# ------------------------------------------------------------------------------------------------------- the gateway
class GitHubInviter:
    """The flow's ``Inviter``."""

    def __init__(self, settings: InviteSettings, http: httpx.AsyncClient, gates: Gates) -> None:
        self._http = http
        self._api = settings.github_api_url.rstrip("/")
        self._named = settings.github_repository
        self._repository = f"{self._api}/repos/{settings.github_repository}"
        self._permission = {"permission": settings.github_permission} if settings.github_permission else None
        self._token = settings.github_token
        self._headers = {
            "accept": "application/vnd.github+json",
            "user-agent": USER_AGENT,
            "x-github-api-version": API_VERSION,
        }
        if self._token:
            self._headers["authorization"] = f"Bearer {self._token.get_secret_value()}"
        self.gates = gates
        self.gate = GATE

    async def check(self, handle: str) -> HandleAnswer:
        """Is there a person of this name? Whoever asks has a buyer waiting: what is not known in time is not known."""
        if not self._token:
            return HandleUnverified("token_missing")
        if not handle:  # no segment of a path at all: the question would be another one
            return HandleUnknown("no_such_account")
        try:
            async with asyncio.timeout(CHECK_BOUND_S):
                answer = await self._ask(self._check, f"{self._api}/users/{path_segment(handle)}")
        except TimeoutError:
            return HandleUnverified("timed_out")
        return judge_account(answer, handle)

    async def invite(self, request: InviteRequest) -> Outcome:
        """Give one person access to the repository. The caller bounds it; nothing is raised for GitHub's trouble."""
        if not self._token:
            return TOKEN_MISSING
        login = path_segment(request.handle)
        verdict: Verdict | None = None
        if request.account_id is not None:
            verdict = await self._somebody_else(login, request.account_id)
        if verdict is None and request.ask_first:
            verdict = await self._already_there(login, request)
        if verdict is None and request.replaces is not None:
            verdict = await self._removed(request.replaces)
        if verdict is None:
            verdict = await self._put(login)
        if isinstance(verdict, Invited) and verdict.in_the_way is not None:
            # Killed between the two calls: the next attempt finds neither access nor an invitation, and sends one.
            verdict = await self._removed(verdict.in_the_way) or await self._put(login)
        if isinstance(verdict, AskAccess):
            verdict = await self._access(login) or verdict.otherwise
        match verdict:
            case Invited(invitation):
                accept = invitation.url or f"https://github.com/{self._named}/invitations"
                return Delivered(
                    f"GitHub has invited your account {request.handle} to {self._named}.\n"
                    f"Please accept the invitation within seven days: {accept}",
                    invitation=invitation,
                )
            case HasAccess():
                return Delivered(
                    f"Your GitHub account {request.handle} has access to {self._named}:\n"
                    f"https://github.com/{self._named}",
                    already_had_access=True,
                )
            case AskWhoseLogin():
                return await self._whose(login)
            case Follow():
                return Config("moved", "The repository's address redirects to another host, or more than once.")
            case outcome:
                return outcome

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        """Has the person access, may they still accept, or did the invitation run out?"""
        if not self._token:
            return TOKEN_MISSING
        login = await self._login_now(query)
        if not isinstance(login, str):
            return login
        segment = path_segment(login)
        found: HasAccess | Invited | Transient | Config | None = await self._access(segment)
        if found is None:
            found = await self._open_invitation(
                lambda one: one.id == query.invitation_id or _is(one.invitee, query.handle, query.account_id),
                pages_max=PAGES_MAX_STANDING,
            )
        if found is None:
            # Accepted between the two questions, it stood in neither answer.
            found = await self._access(segment)
        match found:
            case HasAccess():
                return Accepted()
            case Invited():
                return Open()
            case None:
                return Expired()
            case undecided:
                return undecided

    async def _login_now(self, query: InvitationQuery) -> str | Transient | Config:
        """What the invited account is called today: its old name may be somebody else's by now."""
        if query.account_id is None:
            return query.handle
        answer = await self._ask(self._look_up, f"{self._api}/user/{query.account_id}")
        account = _read(_Account, answer.body) if isinstance(answer, Answer) and answer.status == 200 else None
        if account is not None:
            return account.login
        if isinstance(answer, Answer) and answer.status == 404:
            return query.handle  # gone, or out of our sight: the name it was invited under is what is left
        decided = trouble(answer, acting=False)
        return query.handle if _is_about_the_account(decided) else decided

    async def _somebody_else(self, login: str, account_id: int) -> Terminal | Transient | Config | None:
        """Has the login that was checked before the payment become another person's? None: go on."""
        answer = await self._ask(self._look_up, f"{self._api}/users/{login}")
        match answer:
            case Answer(status=200):
                account = _read(_Account, answer.body)
                if account is None or account.id == account_id:
                    return None
                return Terminal("login_changed_hands", "The login is another account's than when it was checked.")
            case Answer(status=404):
                return None  # the invitation will tell, and ask once more
            case _:
                decided = trouble(answer, acting=False)
        return None if _is_about_the_account(decided) else decided

    async def _already_there(self, login: str, request: InviteRequest) -> Verdict | None:
        """Did the call whose answer we never got arrive? None: no."""
        return await self._access(login) or await self._open_invitation(
            lambda one: _is(one.invitee, request.handle, request.account_id), pages_max=PAGES_MAX
        )

    async def _open_invitation(
        self, theirs: "Callable[[_Invitation], bool]", *, pages_max: int
    ) -> Invited | Transient | Config | None:
        """The person's invitation, if it can still be accepted. None: there is none."""
        url = f"{self._repository}/invitations?per_page={PAGE_SIZE}"
        for _ in range(pages_max):
            answer = await self._ask(self._look_up, url)
            if not isinstance(answer, Answer) or answer.status != 200 or not isinstance(answer.body, list):
                return trouble(answer, acting=False)
            for listed in answer.body:
                made = _read(_Invitation, listed)
                if made is not None and theirs(made) and not _ran_out(made, answer):
                    return Invited(_invitation(made))
            following = self._within_api(url, answer.next_url) if answer.next_url else None
            if following is None:
                break
            url = following
        return None

    async def _removed(self, invitation_id: int) -> Transient | Config | None:
        """Take an invitation back, lest GitHub shows it instead of sending a new one. None: it is gone."""
        answer = await self._ask(self._take_back, f"{self._repository}/invitations/{invitation_id}")
        if isinstance(answer, Answer) and answer.status in (204, 404):
            return None
        return trouble(answer, acting=False)  # whether it went or not, nobody was told anything

    async def _access(self, login: str) -> HasAccess | Transient | Config | None:
        """Is the person a collaborator? None: no (or the repository is out of our sight, which others will tell)."""
        answer = await self._ask(self._look_up, f"{self._repository}/collaborators/{login}")
        match answer:
            case Answer(status=204):
                return HasAccess()
            case Answer(status=404):
                return None
            case _:
                return trouble(answer, acting=False)

    async def _whose(self, login: str) -> Terminal | Transient | Config:
        """After a 404: a login nobody has is the buyer's to correct; a person's means that we cannot see the
        repository, and blames nobody; anything else decides nothing."""
        answer = await self._ask(self._look_up, f"{self._api}/users/{login}")
        if isinstance(answer, Answer) and answer.status == 404:
            return Terminal("no_such_account", "GitHub knows no account by this name.")
        account = _read(_Account, answer.body) if isinstance(answer, Answer) and answer.status == 200 else None
        if account is None or account.type is None:
            decided = trouble(answer, acting=False)
            return decided if isinstance(decided, Transient) else Transient("lookup_inconclusive", decided.reason)
        if account.type == "User":
            return Config("repository_out_of_sight", "The account exists, so the token cannot see the repository.")
        return Terminal("not_a_person", f"An account of type {account.type} cannot accept an invitation.")

    async def _put(self, login: str) -> Verdict:
        """Invite."""
        return judge(await self._ask(self._send_invitation, f"{self._repository}/collaborators/{login}"))

    async def _ask(self, call: Callable[[str], Awaitable[httpx.Response]], url: str) -> Answer | NoAnswer:
        """Make one call and read its answer, following once to where the repository moved."""
        answer = await self._answer(call, url)
        redirect = judge(answer)
        if isinstance(redirect, Follow) and (moved := self._within_api(url, redirect.location)):
            log.warning("fulfillment.github_moved")
            answer = await self._answer(call, moved)
        return answer

    def _within_api(self, url: str, location: str) -> str | None:
        """Where ``location`` leads, if it stays with this API: the token goes nowhere else."""
        try:
            target = urljoin(url, location)
            own, other = urlsplit(self._api), urlsplit(target)
            return (
                target if (own.scheme, own.hostname, own.port) == (other.scheme, other.hostname, other.port) else None
            )
        except ValueError:
            return None

    async def _answer(self, call: Callable[[str], Awaitable[httpx.Response]], url: str) -> Answer | NoAnswer:
        """Make one call and read its answer; whatever goes wrong on the way is a value."""
        try:
            response = await call(url)
        except Retryable as error:  # the gate closed meanwhile, or the database that keeps it is lost
            return NoAnswer(error.code.name)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.InvalidURL):
            return NoAnswer("unreachable")
        except (TimeoutError, httpx.TimeoutException):
            return NoAnswer("timed_out", maybe_acted=True, timed_out=True)
        except httpx.HTTPError:
            return NoAnswer("cut_off", maybe_acted=True)
        try:
            body = json.loads(response.content)
        except (ValueError, RecursionError):
            body = None
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status_code, headers, response.text, body, response.links.get("next", {}).get("url"))

    @vendor(GATE, bound_s=INVITE_BOUND_S)
    async def _send_invitation(self, url: str) -> httpx.Response:
        return await self._http.put(url, headers=self._headers, json=self._permission)

    @vendor(GATE, bound_s=INVITE_BOUND_S)
    async def _take_back(self, url: str) -> httpx.Response:
        return await self._http.delete(url, headers=self._headers)

    @vendor(GATE, bound_s=LOOK_BOUND_S)
    async def _look_up(self, url: str) -> httpx.Response:
        return await self._http.get(url, headers=self._headers)

    @vendor(GATE, bound_s=CHECK_BOUND_S, patience_s=CHECK_PATIENCE_S)
    async def _check(self, url: str) -> httpx.Response:
        return await self._http.get(url, headers=self._headers)


def _is(invitee: _Account | None, handle: str, account_id: int | None) -> bool:
    if invitee is None:
        return False
    return invitee.login.lower() == handle.lower() if account_id is None else invitee.id == account_id
