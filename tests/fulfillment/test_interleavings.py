"""Whoever meets at one purchase, in whatever order: three processes over one row, moved one exchange at a time.

Flush, webhook, a buyer's correction, re-trigger, force, link, a refund and the daily look at invitations, three of them
at once, from every state a purchase can be in. After each schedule the row's own history and the vendor's log are
compared with the law; and with a statement broken on purpose, the schedules must find it out.
"""

import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final

import pytest

from services.fulfillment import store
from services.fulfillment.flow import events
from services.fulfillment.flow.buyer import requeue
from services.fulfillment.flow.flush import Fulfillment, Outside
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.flow.operator import link, retrigger
from services.fulfillment.machine import (
    PURCHASES,
    Accepted,
    AccessMail,
    Charge,
    ChargeAnswer,
    Config,
    Delivered,
    Expired,
    Fetched,
    HandleAnswer,
    HandleKnown,
    InvitationQuery,
    InvitationStanding,
    InviteRequest,
    MailAnswer,
    MailSent,
    NewSession,
    Open,
    Outcome,
    SessionAnswer,
    SessionOpened,
    TakenBack,
    Terminal,
    Transient,
)
from services.kernel.db import Database
from services.kernel.deliveries import Delivery, Done, PutBack
from services.kernel.errors import Refusal
from services.kernel.gate import Gates
from services.kernel.pager import Pager
from services.kernel.transition import Fence
from tests.fixtures.database import Connection, DatabaseUrl
from tests.fulfillment.conftest import ROLE, Purchases
from tests.fulfillment.stage import Played, Stage, Trace, Work, point, stage

SEED: Final = 20261201
SCHEDULES: Final = int(os.environ.get("INTERLEAVINGS", "480"))
DISTINCT_MIN: Final = 300
WITHIN_S: Final = SCHEDULES / 8
BROKEN_SCHEDULES: Final = 480
ACTORS: Final = 3
SESSION: Final = "cs_test_one"
STAYS: Final = (0.0, 0.4, 0.7, 0.9)
"""How much whoever moves keeps moving: from a step each to nearly one after the other."""

HISTORY: Final = """
create table history (
  n bigint generated always as identity primary key, actor text not null default current_setting('application_name'),
  was text, now text, edge text, token_was bigint, token bigint, outcome_was bigint, outcome_token bigint,
  attempt integer, handle_was text, handle text, owner_was text, owner text, revoked_was boolean,
  revoked boolean);
create function keep_history() returns trigger language plpgsql security definer as $$
begin
  insert into history (was, now, edge, token_was, token, outcome_was, outcome_token, attempt, handle_was, handle,
                       owner_was, owner, revoked_was, revoked)
  values (old.fulfillment_state, new.fulfillment_state, new.edge, old.claim_token, new.claim_token, old.outcome_token,
          new.outcome_token, new.fulfillment_attempts, old.github_handle, new.github_handle, old.user_id, new.user_id,
          old.revoked_at is not null, new.revoked_at is not null);
  return null;
end $$;
create trigger history after insert or update on purchases for each row execute function keep_history();
"""

STATES: Final[dict[str, dict[str, Any] | None]] = {
    "absent": None,
    "pending": {},
    "stranded": {"fulfillment_state": "in_progress", "edge": "claim", "claim_token": 1, "fulfillment_attempts": 1},
    "delivered": {"fulfillment_state": "delivered", "edge": "deliver", "claim_token": 1, "outcome_token": 1},
    "run out": {"fulfillment_state": "delivered", "edge": "deliver", "claim_token": 1, "outcome_token": 1},
    "refused": {"fulfillment_state": "failed", "edge": "refuse", "claim_token": 1, "outcome_token": 1},
    "nobody's": {"fulfillment_state": "failed", "edge": "refuse", "claim_token": 1, "outcome_token": 1},
}
BUYER: Final = "user_1"
REDELIVERIES_MAX: Final = 5


# --------------------------------------------------------------------------------------------------------- the outside
@dataclass(slots=True)
class Call:
    """One attempt as the vendor sees it: from when to when, by its own count of moments."""

    handle: str
    began: int
    ended: int
    outcome: Outcome


@dataclass(slots=True)
class World:
    """The scripted outside of all three processes. Every line of it is a moment at which others may move."""

    random: Random
    calls: dict[str, list[Call]] = field(default_factory=dict)
    """By actor, in order."""
    mails: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By actor and attempt."""
    moments: "itertools.count[int]" = field(default_factory=itertools.count)

    def answer(self) -> Outcome:
        return self.random.choices(
            (
                Delivered("come in"),
                Delivered("come in", already_had_access=True),
                Terminal("unknown_account", "nobody of that name"),
                Transient("vendor_trouble", "HTTP 502", ask_first=True),
                Config("http_401", "bad token"),
            ),
            (5, 1, 3, 3, 1),
        )[0]


@dataclass(frozen=True, slots=True)
class Seat:
    """One process's outside."""

    name: str
    world: World
    gate: str = "github"

    async def invite(self, request: InviteRequest) -> Outcome:
        point("the vendor is asked")
        began = next(self.world.moments)
        call = Call(request.handle, began, began, self.world.answer())
        self.world.calls.setdefault(self.name, []).append(call)
        point("the vendor answers")
        call.ended = next(self.world.moments)
        return call.outcome

    async def fetch(self, session_id: str) -> SessionAnswer:
        point("Stripe is asked")
        return Fetched(
            {
                "object": "checkout.session",
                "id": session_id,
                "payment_status": "paid",
                "payment_intent": "pi_one",
                "metadata": {"rowclaim_slice": "fulfillment", "github_username": "octocat"},
                "customer_details": {"email": "buyer@example.com"},
            }
        )

    async def session_of_payment(self, payment_id: str) -> SessionAnswer:
        return await self.fetch(SESSION)

    async def charge(self, charge_id: str) -> ChargeAnswer:
        point("Stripe is asked")
        return Charge("pi_one", frozenset(TakenBack))

    async def open(self, new: NewSession) -> SessionOpened:
        raise AssertionError("nobody here buys")

    async def check(self, handle: str) -> HandleAnswer:
        point("the vendor is asked about a name")
        return HandleKnown(handle)

    async def standing(self, query: InvitationQuery) -> InvitationStanding:
        point("the vendor is asked about an invitation")
        return self.world.random.choice((Accepted(), Open(), Expired()))

    async def send(self, mail: AccessMail) -> MailAnswer:
        point("a mail is sent")
        self.world.mails[self.name, mail.attempt] += 1
        return MailSent()


def process(db: Database, seat: Seat) -> Fulfillment:
    gates = Gates(db)
    outside = Outside(seat, seat, seat, gates, Pager(db))
    return Fulfillment(db, outside, attempt_bound_s=20, stopping=asyncio.Event())


# ---------------------------------------------------------------------------------------------------------- the actors
Act = Callable[[Fulfillment, int], Any]


async def flush(fulfillment: Fulfillment, purchase: int) -> None:
    await fulfillment.flush()


async def told(fulfillment: Fulfillment, kind: str, about: dict[str, str]) -> None:
    body = json.dumps({"type": kind, "data": {"object": about}}).encode()
    for attempt in range(1, REDELIVERIES_MAX + 1):
        verdict = (await events.handle(fulfillment, [Delivery(1, 1, attempt, "stripe", "evt_1", kind, body)]))[1]
        if verdict == Done():
            return
        assert verdict == PutBack(), "its flush was cut short: it comes again"
    raise AssertionError(f"an event came {REDELIVERIES_MAX} times and was never done")


async def webhook(fulfillment: Fulfillment, purchase: int) -> None:
    await told(fulfillment, "checkout.session.completed", {"object": "checkout.session", "id": SESSION})


async def refund(fulfillment: Fulfillment, purchase: int) -> None:
    await told(fulfillment, "charge.refunded", {"object": "charge", "id": "ch_one"})


async def correct(fulfillment: Fulfillment, purchase: int) -> None:
    await requeue(fulfillment, BUYER, purchase, "hubot")


async def again(fulfillment: Fulfillment, purchase: int) -> None:
    await retrigger(fulfillment, purchase, actor="op@desk", reason=None, force=False)


async def force(fulfillment: Fulfillment, purchase: int) -> None:
    await retrigger(fulfillment, purchase, actor="op@desk", reason="looks stuck", force=True)


async def own(fulfillment: Fulfillment, purchase: int) -> None:
    await link(fulfillment, purchase, BUYER, actor="op@desk", reason=None)


async def own_another(fulfillment: Fulfillment, purchase: int) -> None:
    await link(fulfillment, purchase, "user_2", actor="op@desk", reason=None)


async def daily(fulfillment: Fulfillment, purchase: int) -> None:
    await check_invitations(fulfillment)


ACTS: Final[dict[str, Act]] = {
    "flush": flush,
    "webhook": webhook,
    "requeue": correct,
    "retrigger": again,
    "force": force,
    "link": own,
    "link_another": own_another,
    "refund": refund,
    "invitations": daily,
}
NEED_A_ROW: Final = {"requeue", "retrigger", "force", "link", "link_another", "invitations"}
RETRIGGERS: Final = ("retrigger_pending", "retrigger_failed")
BY_HAND: Final = {
    "requeue": ("retrigger_failed", "force_delivered"),
    "retrigger": RETRIGGERS,
    "force": (*RETRIGGERS, "force_in_progress", "force_delivered"),
}
"""A person's edges, by the acts that may take them."""


@dataclass(frozen=True, slots=True)
class Scenario:
    state: str
    acts: tuple[str, ...]

    def act(self, actor: str) -> str:
        return self.acts[int(actor.removeprefix("actor "))]

    def __str__(self) -> str:
        return f"{self.state}: {', '.join(self.acts)}"


def scenarios() -> list[Scenario]:
    """Every three of the acts, in every state that they can meet in."""
    return [
        Scenario(state, acts)
        for state in STATES
        for acts in itertools.combinations_with_replacement(ACTS, ACTORS)
        if state != "absent" or not NEED_A_ROW & set(acts)
    ]


# ------------------------------------------------------------------------------------------------------------- the law
@dataclass(frozen=True, slots=True)
class Wrote:
    """One write of the purchase's row, as the database kept it."""

    n: int
    actor: str
    was: str | None
    now: str
    edge: str
    token_was: int | None
    token: int
    outcome_was: int | None
    outcome_token: int | None
    attempt: int
    handle_was: str | None
    handle: str | None
    owner_was: str | None
    owner: str | None
    revoked_was: bool | None
    revoked: bool

    @property
    def moved(self) -> bool:
        return (self.was, self.token_was, self.outcome_was) != (self.now, self.token, self.outcome_token)

    @property
    def fence(self) -> Fence | None:
        edge = PURCHASES.edges.get(self.edge)
        return None if edge is None else edge.fence


EDGE_OF: Final = {Delivered: "deliver", Terminal: "refuse", Transient: "put_back", Config: "put_back"}


def breaches(wrote: Sequence[Wrote], world: World) -> list[str]:
    """What of the law was broken, in words."""
    moves = [one for one in wrote if one.moved]
    found = [f"{one.edge} is no edge {one.was} -> {one.now}" for one in moves if not _declared(one)]
    found += [f"token {one.token_was} -> {one.token} by {one.edge}" for one in moves if not _rises(one)]
    found += [f"a write moved nothing and took {one.edge}" for one in wrote if not one.moved and one.now != one.was]
    found += [f"claimed after it was revoked: {one}" for one in moves if one.edge == "claim" and one.revoked]
    for one in wrote:
        by_machine = one.moved and one.fence in (Fence.TOKEN, Fence.CLAIM)
        if by_machine and (one.handle, one.owner) != (one.handle_was, one.owner_was):
            found.append(f"{one.edge} overwrote what a person wrote")
        if one.was is not None and one.owner_was is not None and one.owner != one.owner_was:
            found.append(f"the owner changed: {one}")
        if one.was is not None and one.revoked_was and not one.revoked and one.fence is not Fence.PERSON:
            found.append(f"{one.edge} gave back what was taken back")
    claims = [one for one in moves if one.edge == "claim"]
    if len({one.token for one in claims}) < len(claims):
        found.append(f"two claims bear one token: {[one.token for one in claims]}")
    found += [breach for claim in claims for breach in _claim_breaches(claim, moves)]
    return found + _calls_breaches(claims, moves, world)


def _declared(move: Wrote) -> bool:
    edge = PURCHASES.edges.get(move.edge)
    return edge is not None and (edge.source, edge.target) == (move.was, move.now)


def _rises(move: Wrote) -> bool:
    if move.fence in (Fence.CLAIM, Fence.PERSON):
        return move.token == (move.token_was or 0) + 1 and move.outcome_token is None
    if move.fence is Fence.TOKEN:
        return move.token == move.token_was == move.outcome_token
    return move.token == 0


def _claim_breaches(claim: Wrote, moves: Sequence[Wrote]) -> list[str]:
    """A claim ends in exactly one outcome, of its own; or a person takes the row away, and it writes nothing."""
    outcomes = [one for one in moves if one.fence is Fence.TOKEN and one.outcome_token == claim.token]
    follows = next((one for one in moves if one.n > claim.n), None)
    if follows is None:
        return [f"claim {claim.token} ended in nothing"]
    if follows.edge == "force_in_progress":
        return [f"claim {claim.token} was forced away and wrote {one.edge}" for one in outcomes]
    if outcomes != [follows] or follows.actor != claim.actor:
        return [f"claim {claim.token} was followed by {follows.edge}, its outcomes: {[one.edge for one in outcomes]}"]
    return []


def _calls_breaches(claims: Sequence[Wrote], moves: Sequence[Wrote], world: World) -> list[str]:
    """Each claim is one call, with the row's handle; its outcome is what was answered; a delivery is one mail."""
    found: list[str] = []
    attempts: list[tuple[Wrote, Call]] = []
    for actor in {one.actor for one in claims} | set(world.calls):
        of_actor = [one for one in claims if one.actor == actor and one.handle is not None]
        calls = world.calls.get(actor, [])
        if [one.handle for one in of_actor] != [call.handle for call in calls]:
            found.append(f"{actor} claimed {len(of_actor)} times and called {[call.handle for call in calls]}")
        attempts += zip(of_actor, calls, strict=False)
    mailed: Counter[tuple[str, int]] = Counter()
    for claim, call in attempts:
        for outcome in (one for one in moves if one.fence is Fence.TOKEN and one.outcome_token == claim.token):
            if outcome.edge != EDGE_OF[type(call.outcome)]:
                found.append(f"{call.outcome} was written as {outcome.edge}")
            if outcome.edge == "deliver":
                mailed[claim.actor, claim.attempt] += 1
                if outcome.handle != call.handle:
                    found.append(f"{call.handle} was delivered to and {outcome.handle} stands in the row")
    if mailed != world.mails:
        found.append(f"delivered {dict(mailed)}, mailed {dict(world.mails)}")
    for (a, call_a), (b, call_b) in itertools.combinations(sorted(attempts, key=lambda one: one[0].n), 2):
        overlap = call_a.began <= call_b.ended and call_b.began <= call_a.ended
        if overlap and not any(one.edge == "force_in_progress" and a.n < one.n < b.n for one in moves):
            found.append(f"attempts {a.token} and {b.token} overlapped, and nobody forced the second")
    return found


# ------------------------------------------------------------------------------------------------------------ the runs
@dataclass(slots=True)
class Theatre:
    """A stage, and the one row on it, laid anew for every schedule."""

    stage: Stage
    owner: Connection
    purchases: Purchases

    async def play(self, scenario: Scenario, seed: int) -> tuple[Played, list[str]]:
        """One schedule, and what was wrong with it."""
        await self._clear()
        purchase = await self._lay(scenario.state)
        world = World(Random(seed))
        names = [f"actor {number}" for number in range(ACTORS)]
        works = [
            (f"{number} {act}", _work(ACTS[act], purchase, Seat(names[number], world)))
            for number, act in enumerate(scenario.acts)
        ]
        played = await self.stage.play(works, Random(seed), stays=STAYS[seed % len(STAYS)])
        return played, await self._judge(played, world, scenario)

    async def _clear(self) -> None:
        async with self.owner.transaction():
            await self.owner.execute("set local session_replication_role = replica")
            for table in ("purchases", "history", "admin_actions", "vendor_gates", "pages"):
                await self.owner.execute(f"delete from {table}")

    async def _lay(self, state: str) -> int:
        columns = STATES[state]
        if columns is None:
            return 0
        before = await self.purchases.now() - timedelta(days=9)
        owner = {} if state == "nobody's" else {"user_id": BUYER}
        match columns.get("fulfillment_state", "pending"):
            case "pending":
                more: dict[str, Any] = {}
            case "in_progress":
                more = {"fulfillment_attempted_at": before}
            case "delivered":
                invitation = {"invited_at": before, "invitation_id": 41}
                more = {"fulfillment_attempted_at": before, "fulfilled_at": before} | invitation
            case _:
                more = {"fulfillment_attempted_at": before, "fulfillment_last_error": "nobody of that name"}
        if state == "run out":
            more |= {"invitation_expired_at": before + timedelta(days=7)}
        return await self.purchases.add(
            "octocat", stripe_session_id=SESSION, stripe_payment_id="pi_one", **columns, **owner, **more
        )

    async def _judge(self, played: Played, world: World, scenario: Scenario) -> list[str]:
        rows = await self.owner.fetch("select * from history order by n")
        wrote = [Wrote(*row.values()) for row in rows]
        found = breaches(wrote, world)
        failed = {name: result for name, result in played.results.items() if isinstance(result, BaseException)}
        found += [f"{name} raised {error!r}" for name, error in failed.items() if not isinstance(error, Refusal)]
        for one in wrote:
            act = scenario.act(one.actor)
            if one.moved and one.fence is Fence.PERSON and one.edge not in BY_HAND.get(act, ()):
                found.append(f"{act} took {one.edge}")
            if act == "requeue" and one.edge == "retrigger_failed" and one.handle == one.handle_was:
                found.append("a buyer corrected what was corrected meanwhile")
        done = Counter(name.split()[1] for name, result in played.results.items() if name not in failed)
        moved = sum(one.moved and one.fence is Fence.PERSON for one in wrote)
        if moved != done["requeue"] + done["retrigger"] + done["force"]:
            found.append(f"{moved} moves of persons, and {dict(done)} who were told that they did")
        kept = await self.owner.fetchval("select count(*) from admin_actions")
        if kept != done["retrigger"] + done["force"] + done["link"] + done["link_another"]:
            found.append(f"{kept} acts kept of {dict(done)}")
        if rest := await self._left_lying(played, wrote):
            found.append(rest)
        return found

    async def _left_lying(self, played: Played, wrote: Sequence[Wrote]) -> str | None:
        """What is pending at the end was put back, or its vendor's gate is closed: whoever flushes passes nothing over.

        Unless nobody flushed at all.
        """
        refused = {name.split()[1] for name, result in played.results.items() if isinstance(result, Refusal)}
        if (
            not {name.split()[1] for name in played.results}
            - refused
            - {"link", "link_another", "refund", "invitations"}
        ):
            return None
        row = await self.owner.fetchrow("select fulfillment_state, revoked_at from purchases")
        if row is None or row["fulfillment_state"] != "pending" or row["revoked_at"] is not None:
            return None
        if await self.owner.fetchval("select count(*) from vendor_gates where closed_until > rowclaim_now()"):
            return None
        latest = [one.edge for one in wrote if one.moved][-1:]
        return None if latest == ["put_back"] else f"pending since {latest}, and nobody attempted it"


def _work(act: Act, purchase: int, seat: Seat) -> Work:
    async def work(db: Database) -> Any:
        return await act(process(db, seat), purchase)

    return work


@pytest.fixture
async def theatre(database_url: DatabaseUrl, owner: Connection, purchases: Purchases) -> AsyncIterator[Theatre]:
    await owner.execute(HISTORY)
    async with stage(database_url(ROLE), owner, ACTORS) as on:
        yield Theatre(on, owner, purchases)


def program(
    random: Random, count: int, among: Callable[[Scenario], bool] = lambda scenario: True
) -> Iterator[tuple[Scenario, int]]:
    """So many schedules: each scenario in turn, again and again, with a seed of its own."""
    order = [scenario for scenario in scenarios() if among(scenario)]
    random.shuffle(order)
    for number, scenario in enumerate(itertools.islice(itertools.cycle(order), count)):
        yield scenario, SEED + number


@pytest.mark.promise("F29")
async def test_whoever_meets_at_one_row_the_law_is_kept(
    theatre: Theatre, record_property: Callable[[str, object], None]
) -> None:
    started = time.monotonic()
    seen: set[tuple[Scenario, Trace]] = set()
    edges: Counter[str] = Counter()
    for scenario, seed in program(Random(SEED), SCHEDULES):
        played, wrong = await theatre.play(scenario, seed)
        assert wrong == [], f"{scenario} (seed {seed}): {'; '.join(wrong)}\n{_told(played.trace)}"
        seen.add((scenario, played.trace))
        edges.update([row["edge"] for row in await theatre.owner.fetch("select edge from history")])
    took_s = time.monotonic() - started
    record_property("interleavings", f"{len(seen)} distinct schedules of {SCHEDULES} in {took_s:.0f} s, {dict(edges)}")
    assert len(seen) >= DISTINCT_MIN
    assert set(edges) == set(PURCHASES.edges), "every edge was taken on the way"
    assert took_s <= WITHIN_S


OUTCOMES: Final = ("DELIVER", "REFUSE", "PUT_BACK")
BROKEN: Final = {
    "a claim takes no new token": (("CLAIM_OLDEST",), "claim_token = p.claim_token + 1", "claim_token = p.claim_token"),
    "a claim takes whatever is there": (("CLAIM_OLDEST",), "fulfillment_state = 'pending' and", ""),
    "a claim takes what was taken back": (("CLAIM_OLDEST",), "and revoked_at is null", ""),
    "a claim passes over what is being written": (("WAIT_FOR_PASSED_OVER",), "for share", "for share skip locked"),
    "an outcome compares no token": (OUTCOMES, "and claim_token = $2", ""),
    "a requeue takes whatever is there": (("REQUEUE",), "or $2)", "or $2 or true)"),
    "a requeue takes no new token": (("REQUEUE",), "claim_token = claim_token + 1", "claim_token = claim_token"),
    "a correction compares neither token nor username": (
        ("CORRECT",),
        "and claim_token = $3 and revoked_at is null\n  and github_handle is not distinct from $6",
        "and $3::bigint is not null and revoked_at is null and ($6::text is null or true)",
    ),
    "a link replaces an owner": (("LINK",), "(user_id is null or user_id = $2)", "true"),
}


def can_tell(broken: str) -> Callable[[Scenario], bool]:
    """The scenarios in which it could be noticed at all; nearly always, all of them."""
    if broken == "a correction compares neither token nor username":
        return lambda scenario: scenario.state == "refused" and scenario.acts.count("requeue") > 1
    return lambda scenario: True


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("broken", BROKEN)
async def test_a_statement_broken_on_purpose_is_found_out(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch, broken: str, guarded: bool
) -> None:
    """With the database's guard, and by the schedules alone."""
    statements, part, instead = BROKEN[broken]
    for statement in statements:
        whole = getattr(store, statement)
        assert part in whole
        monkeypatch.setattr(store, statement, whole.replace(part, instead))
    if not guarded:
        await theatre.owner.execute("drop trigger purchases_moves on purchases")
    for scenario, seed in program(Random(SEED), BROKEN_SCHEDULES, can_tell(broken)):
        _, wrong = await theatre.play(scenario, seed)
        if wrong:
            assert not any("database_unavailable" in one for one in wrong), "the statement itself is broken"
            return
    raise AssertionError(f"{BROKEN_SCHEDULES} schedules did not notice that {broken}")


def _told(trace: Trace) -> str:
    return "\n".join(f"  {who:14} {what[:90]}" for who, what in trace)
