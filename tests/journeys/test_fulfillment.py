"""The document of fulfillment, told as tests: a buyer says whom to invite, pays at Stripe, is invited at GitHub and
gets a mail; corrects a username; an operator judges what no query can.

Everything is real but the vendors, which the sandbox plays over HTTP and SMTP: the routes and their tokens, settings,
gates, gateways, the inbox, and the worker that a ring or a tick would run.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from services.fulfillment.consumer import SERVICE, open_fulfillment
from services.fulfillment.flow.events import handle
from services.fulfillment.flow.flush import Fulfillment, Stopped
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.machine import FulfillmentState
from services.ingress.store import Arrival, arrive
from services.kernel.db import Database
from services.kernel.deliveries import DeliveryWorker
from services.kernel.inbox import subscribe
from services.sandbox.control import SandboxControl
from services.sandbox.embedded.mail import MailFault
from services.sandbox.faults import Act, Fault, Moment, Reply
from services.sandbox.github import refusals
from services.sandbox.github.shapes import AccountType
from services.sandbox.github.world import DEFAULT_TOKEN
from services.sandbox.log import Vendor
from services.sandbox.stripe.buyer import Payment
from services.sandbox.wire import (
    AdvanceClock,
    CompleteSession,
    CreateClerkUser,
    CreateSession,
    DisputeCharge,
    ListClerkMessages,
    ListStripeEvents,
    RefundCharge,
    SettleSession,
    UpdateClerkUser,
)
from services.sandbox.world import Urls
from tests.fixtures.database import Clock, Connect, Connection
from tests.fixtures.fulfillment import REPOSITORY, House, session_params
from tests.fixtures.shop import OPERATOR, Shop, open_shop, shop_settings

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)


@dataclass(slots=True)
class Story:
    """One installation, its buyers and its operator."""

    house: House
    control: SandboxControl
    ingress: Database
    owner: Connection
    fulfillment: Fulfillment
    worker: DeliveryWorker
    shop: Shop
    _stored: int = field(default=0, init=False)

    # ------------------------------------------------------------------------------------------------------- the buyers
    async def sells(self, login: str | None, payment: Payment = Payment.PAID, **params: object) -> str:
        """A buyer with this login completes a checkout; the Session's id."""
        self.knows(login)
        session = await self.control.do(CreateSession(session_params(login, **params)))
        await self.control.do(CompleteSession(session["id"], payment, email=f"{login or 'nameless'}@example.com"))
        return str(session["id"])

    async def checks_out(self, user: str, login: str | None) -> str:
        """A user of the shop says whom to invite, is sent to Stripe's page and pays there; the Session's id."""
        self.knows(login)
        opened = await self.shop.buys(login, user=user)
        assert opened.status_code == 201, opened.text
        session = str(opened.json()["id"])
        await self.control.do(CompleteSession(session, email=f"{user}@example.com"))
        return session

    def knows(self, login: str | None) -> None:
        """GitHub has this account."""
        if login is not None and self.house.world.github.find_account(login) is None:
            self.house.world.github.add_account(login)

    def changes_hands(self, login: str) -> None:
        """Its owner takes another login, and a stranger takes theirs."""
        self.house.world.github.rename_account(login, f"{login}-renamed")
        self.house.world.github.add_account(login)

    async def sees(self, user: str) -> list[dict[str, Any]]:
        """What the user's page shows of their purchases."""
        return list((await self.shop.get("/fulfillment", user=user)).json()["purchases"])

    async def corrects(self, user: str, purchase: int, login: str) -> tuple[int, Any]:
        """The user writes another username; the answer's status, and its code or the list it shows."""
        answer = await self.shop.corrects(purchase, login, user=user)
        said = answer.json()
        return answer.status_code, said["purchases"] if answer.status_code == 200 else said["code"]

    # ----------------------------------------------------------------------------------------------------- the operator
    async def retriggers(self, user: str, **body: object) -> tuple[int, Any]:
        """The operator sends a user's purchases again; the answer's status, and its code or what it says of each."""
        answer = await self.shop.sends_again(user, **body)
        said = answer.json()
        return answer.status_code, said["purchases"] if answer.status_code == 200 else said["code"]

    async def actions(self) -> list[tuple[str, str, str]]:
        """What was done by hand: who, what, why."""
        rows = await self.owner.fetch("select actor, verb, reason from admin_actions order by id")
        return [tuple(row) for row in rows]

    # ------------------------------------------------------------------------------------------------------- the events
    async def hears(self, *, times: int = 1) -> None:
        """Every event that Stripe made since is stored, as the front door stores it, and handled."""
        events = (await self.control.do(ListStripeEvents()))[self._stored :]
        self._stored += len(events)
        for _ in range(times):
            for event in events:
                body = json.dumps(event).encode()
                await arrive(self.ingress, [Arrival("stripe", event["id"], event["type"], body)])
        await self.works()

    async def hears_of(self, kind: str) -> None:
        """Clerk has a new user, or one who changed; the event of this kind is stored and handled, no other."""
        user = await self.control.do(CreateClerkUser(email="grace@example.com"))
        if kind == "user.updated":
            await self.control.do(UpdateClerkUser(user["id"], {"username": "grace"}))
        message = (await self.control.do(ListClerkMessages()))[-1]
        await arrive(self.ingress, [Arrival("clerk", message.id, message.type, json.dumps(message.body).encode())])
        await self.works()

    async def works(self) -> None:
        """The worker, until it has nothing left."""
        while await self.worker.step():
            pass

    # --------------------------------------------------------------------------------------------------------- the rows
    async def purchases(self) -> dict[str, str]:
        """State by login."""
        rows = await self.owner.fetch("select github_handle, fulfillment_state from purchases order by created_at, id")
        return {row["github_handle"] or "": row["fulfillment_state"] for row in rows}

    async def deliveries(self) -> set[str]:
        """States of all deliveries."""
        return {row["state"] for row in await self.owner.fetch("select state from webhook_deliveries")}

    def mailed(self) -> list[str]:
        return [recipient for message in self.house.sink.messages for recipient in message.recipients]


@pytest.fixture
async def story(
    house: House, control: SandboxControl, urls: Urls, connect: Connect, owner: Connection
) -> AsyncIterator[Story]:
    async with _told(house, control, connect, owner, **shop_settings(urls)) as story:
        yield story


@asynccontextmanager
async def _told(
    house: House, control: SandboxControl, connect: Connect, owner: Connection, **settings: str
) -> AsyncIterator[Story]:
    async with house.runtime(**settings) as runtime, open_shop(house, runtime, control) as shop:
        fulfillment = await open_fulfillment(runtime)
        await subscribe(fulfillment.db, SERVICE.name, SERVICE.subscriptions)
        worker = DeliveryWorker(
            fulfillment.db, SERVICE.name, partial(handle, fulfillment), lease=timedelta(seconds=30), batch_max=20
        )
        yield Story(house, control, await connect("rowclaim_ingress"), owner, fulfillment, worker, shop)


# -------------------------------------------------------------------------------------- a payment becomes an invitation
async def test_from_the_first_click_to_access(story: Story) -> None:
    """Who buys says whom to invite, pays, and sees it delivered; the money and the owner are on the row."""
    session = await story.checks_out("user_ada", "Ada-L")
    assert await story.sees("user_ada") == [], "nothing is owed before Stripe says that it is paid"
    await story.hears()
    (seen,) = await story.sees("user_ada")
    assert (seen["state"], seen["githubUsername"], seen["cooldownUntil"]) == (DELIVERED, "Ada-L", None)
    assert seen["invitation"]["url"].startswith("http")
    assert story.house.invited() == ["Ada-L"]
    assert story.mailed() == ["user_ada@example.com"]
    row = await story.owner.fetchrow("select * from purchases")
    account = story.house.world.github.find_account("Ada-L")
    assert account is not None
    assert (row["stripe_session_id"], row["user_id"], row["amount_minor"]) == (session, "user_ada", 4900)
    assert (row["github_account_id"], row["invited_account_id"]) == (account.id, account.id)


async def test_a_payment_becomes_an_invitation_and_a_mail(story: Story) -> None:
    session = await story.sells("ada")
    await story.hears()
    assert await story.purchases() == {"ada": DELIVERED}
    assert story.house.invited() == ["ada"]
    assert story.mailed() == ["ada@example.com"]
    row = await story.owner.fetchrow("select * from purchases")
    (invitation,) = story.house.world.github.repository(REPOSITORY).invitations.values()
    assert (row["stripe_session_id"], row["amount_minor"], row["currency"]) == (session, 4900, "usd")
    assert (row["invitation_id"], row["invited_account_id"]) == (invitation.id, invitation.invitee.id)
    assert (invitation.permission, row["already_had_access"]) == ("read", False)
    assert await story.deliveries() == {"done"}


async def test_what_another_slice_sold_or_nobody_marked_is_not_guessed_at(story: Story) -> None:
    await story.sells("ada", metadata={"rowclaim_slice": "rewards"})
    await story.sells("grace", metadata={})
    await story.hears()
    assert await story.purchases() == {}
    assert await story.deliveries() == {"not_ours", "parked"}
    assert await story.owner.fetchval("select why from desk.ingress_parked") == "unmarked_object"


# ----------------------------------------------------------------------------------------- the column says what is owed
async def test_a_morning_of_buyers(story: Story) -> None:
    """A typo, an organisation, nobody's name, an outage in the middle, everything told five times."""
    world = story.house.world.github
    world.add_account("acme-labs", AccountType.ORGANIZATION)
    for login in ("ada", "acme-labs", None, "grace"):
        await story.sells(login)
    await story.sells("typo")
    world.delete_account("typo")
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.html_error(), login="grace"))
    await story.hears(times=5)
    assert await story.purchases() == {
        "ada": DELIVERED,
        "acme-labs": FAILED,
        "": FAILED,
        "grace": PENDING,
        "typo": PENDING,
    }
    await story.sells("edsger")
    await story.hears(times=5)
    assert await story.purchases() == {
        "ada": DELIVERED,
        "acme-labs": FAILED,
        "": FAILED,
        "grace": DELIVERED,
        "typo": FAILED,
        "edsger": DELIVERED,
    }
    assert story.house.invited() == ["ada", "grace", "edsger"]
    assert sorted(story.mailed()) == ["ada@example.com", "edsger@example.com", "grace@example.com"]
    assert await story.deliveries() == {"done"}


@pytest.mark.promise("F22")
async def test_a_bank_debit_owes_nothing_until_the_bank_has_paid(story: Story) -> None:
    kept, broken = await story.sells("ada", Payment.UNPAID), await story.sells("grace", Payment.UNPAID)
    await story.hears()
    assert await story.purchases() == {}
    assert await story.deliveries() == {"done"}
    await story.control.do(SettleSession(kept, succeeded=True))
    await story.control.do(SettleSession(broken, succeeded=False))
    await story.hears(times=3)
    assert await story.purchases() == {"ada": DELIVERED}
    assert story.house.invited() == ["ada"]


# -------------------------------------------------------------------------------- four states, and a person's judgement
async def test_force_is_an_operators_judgement(story: Story) -> None:
    """A row that a dead flush holds looks like one that a live one holds; what was delivered was delivered."""
    await story.checks_out("user_ada", "ada")
    await story.hears()
    assert await story.retriggers("user_ada") == (409, "fulfillment_not_requeueable")
    assert await story.retriggers("user_ada", force=True) == (400, "fulfillment_reason_missing")
    status, _ = await story.retriggers("user_ada", force=True, reason="the mail never came")
    assert (status, story.mailed()) == (200, ["user_ada@example.com"] * 2)
    assert await story.actions() == [(OPERATOR, "fulfillment.force", "the mail never came")]
    body = {"force": True, "reason": "please"}
    refused = await story.shop.post("/admin/users/user_ada/fulfillment/retrigger", body, user="user_ada")
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")


# -------------------------------------------------------------------------------------------------- what starts a flush
@pytest.mark.promise("F23")
@pytest.mark.parametrize("kind", ["user.created", "user.updated"])
async def test_a_user_of_clerks_who_comes_or_changes_is_a_trigger(story: Story, kind: str) -> None:
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.html_error(), method="PUT"))
    await story.checks_out("user_ada", "ada")
    await story.hears()
    assert await story.purchases() == {"ada": PENDING}
    await story.hears_of(kind)
    assert await story.purchases() == {"ada": DELIVERED}


# ------------------------------------------------------------------------------- what is tried again, and what never is
@pytest.mark.promise("F35")
@pytest.mark.parametrize("answer", ["201", "204", "201 unreadable"])
async def test_invited_and_already_there_are_both_success(story: Story, answer: str) -> None:
    await story.sells("ada")
    if answer == "204":
        story.house.world.github.add_collaborator(REPOSITORY, "ada")
    if answer == "201 unreadable":
        fault = Fault(Vendor.GITHUB, Act.ANSWER, Moment.AFTER, reply=refusals.unreadable_body(), method="PUT")
        story.house.world.faults.add(fault)
    await story.hears()
    assert await story.purchases() == {"ada": DELIVERED}
    for _ in range(3):
        await story.fulfillment.flush()
    assert [(call.method, call.status) for call in story.house.world.log.entries(Vendor.GITHUB)] == [
        ("PUT", int(answer[:3]))
    ]
    had_access = await story.owner.fetchval("select already_had_access from purchases")
    assert (had_access, story.mailed()) == (answer == "204", ["ada@example.com"])


@pytest.mark.promise("F36")
async def test_a_login_that_github_does_not_know_is_the_buyers_to_correct(story: Story) -> None:
    await story.sells("typo")
    story.house.world.github.delete_account("typo")
    await story.hears()
    row = await story.owner.fetchrow("select fulfillment_state, fulfillment_last_error from purchases")
    assert (row["fulfillment_state"], bool(row["fulfillment_last_error"])) == (FAILED, True)
    calls = len(story.house.world.log.entries(Vendor.GITHUB))
    for _ in range(10):
        await story.fulfillment.flush()
    assert len(story.house.world.log.entries(Vendor.GITHUB)) == calls == 2
    assert await story.purchases() == {"typo": FAILED}


@pytest.mark.promise("F36")
@pytest.mark.parametrize("lookup", ["403", "500", "timeout"])
async def test_a_404_that_cannot_be_explained_decides_nothing(
    house: House, control: SandboxControl, connect: Connect, owner: Connection, lookup: str
) -> None:
    trouble = {
        "403": Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.not_accessible(), path="^/users/"),
        "500": Fault(Vendor.GITHUB, Act.ANSWER, reply=Reply(status=500), path="^/users/"),
        "timeout": Fault(Vendor.GITHUB, Act.HANG, path="^/users/"),
    }[lookup]
    bound = "0.5" if lookup == "timeout" else "20"
    async with _told(house, control, connect, owner, ROWCLAIM_FULFILLMENT_ATTEMPT_BOUND_S=bound) as story:
        await story.sells("typo")
        house.world.github.delete_account("typo")
        house.world.faults.add(trouble)
        await story.hears()
        assert await story.purchases() == {"typo": PENDING}
        house.world.faults.clear()


@pytest.mark.promise("F37")
async def test_a_token_that_lost_the_repository_blames_no_buyer(story: Story) -> None:
    story.house.world.github.add_token(DEFAULT_TOKEN, "acme-bot-owner", [])
    for login in ("a", "b", "c", "d", "e"):
        await story.sells(login)
    await story.hears()
    assert set((await story.purchases()).values()) == {PENDING}
    assert len(await story.purchases()) == 5
    attempts = [r["fulfillment_attempts"] for r in await story.owner.fetch("select * from purchases order by id")]
    assert sorted(attempts) == [0, 0, 0, 0, 1], "the flush stopped at the first"
    assert (await story.fulfillment.flush()).stopped is Stopped.GATE_CLOSED
    assert await story.owner.fetchval("select count(*) from pages where resolved_at is null") == 1
    assert await story.deliveries() == {"done"}, "GitHub's trouble is no event's"


@pytest.mark.promise("F38")
@pytest.mark.parametrize("fault", ["the token is dead", "the token may not invite", "the policy forbids guests"])
async def test_a_fault_of_ours_costs_one_call_and_one_page_and_no_buyer(story: Story, fault: str) -> None:
    world = story.house.world
    match fault:
        case "the token is dead":
            world.github.revoke_token(DEFAULT_TOKEN)
        case "the token may not invite":
            world.github.add_token(DEFAULT_TOKEN, "acme-bot-owner", [], sees=[REPOSITORY])
        case _:
            reply = refusals.outside_collaborators_restricted()
            world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=reply, times=None))
    for login in ("a", "b", "c"):
        await story.sells(login)
    await story.hears()
    assert await story.purchases() == {"a": PENDING, "b": PENDING, "c": PENDING}
    assert len(world.log.entries(Vendor.GITHUB)) == 1
    pages = await story.owner.fetch("select severity, seen, resolved_at from pages")
    assert [tuple(page) for page in pages] == [("error", 1, None)]
    assert (await story.fulfillment.flush()).stopped is Stopped.GATE_CLOSED
    assert story.mailed() == []


@pytest.mark.promise("F45")
async def test_an_invitation_whose_answer_was_lost_is_found(story: Story) -> None:
    await story.sells("ada")
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.DROP, Moment.AFTER, method="PUT"))
    await story.hears()
    assert (await story.purchases(), story.mailed()) == ({"ada": PENDING}, [])
    before = len(story.house.world.log.entries(Vendor.GITHUB))
    assert (await story.fulfillment.flush()).delivered == 1
    later = [call.method for call in story.house.world.log.entries(Vendor.GITHUB)][before:]
    assert later == ["GET", "GET"], "looked for, and not sent again"
    assert await story.purchases() == {"ada": DELIVERED}
    (invitation,) = story.house.world.github.repository(REPOSITORY).invitations.values()
    assert (invitation.notified, story.mailed()) == (1, ["ada@example.com"])


async def test_a_rate_limit_is_waited_for_by_everybody(story: Story, clock: Clock) -> None:
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.secondary_limit(90), login="ada"))
    await story.sells("ada")
    await story.sells("grace")
    await story.hears()
    assert set((await story.purchases()).values()) == {PENDING}
    assert (await story.fulfillment.flush()).stopped is Stopped.GATE_CLOSED
    assert len(story.house.calls()) == 1
    await clock.shift(timedelta(seconds=91))
    await story.sells("edsger")
    await story.hears()
    assert set((await story.purchases()).values()) == {DELIVERED}


async def test_refusals_without_an_instant_are_waited_out_ever_longer_until_one_call_is_taken(
    story: Story, clock: Clock
) -> None:
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.bare_429(), times=2))
    await story.sells("ada")
    await story.hears()
    gate = "select refusals, round(extract(epoch from closed_until - closed_at))::int as seconds from vendor_gates"
    assert tuple(await story.owner.fetchrow(gate)) == (1, 60)
    await clock.shift(timedelta(seconds=61))
    assert (await story.fulfillment.flush()).stopped is Stopped.TRANSIENT
    assert tuple(await story.owner.fetchrow(gate)) == (2, 120)
    await clock.shift(timedelta(seconds=121))
    assert (await story.fulfillment.flush()).delivered == 1
    assert await story.owner.fetchval("select refusals from vendor_gates") == 0


# ------------------------------------------------------------------------------------------------- the mail comes after
async def test_a_mail_that_fails_costs_nobody_their_access(story: Story) -> None:
    """Sent again by force, it goes out: GitHub answers that all is done already."""
    story.house.sink.fail(MailFault.REFUSE_RECIPIENT, times=1)
    await story.checks_out("user_ada", "ada")
    await story.hears()
    assert (await story.purchases(), story.mailed()) == ({"ada": DELIVERED}, [])
    story.house.world.github.add_collaborator(REPOSITORY, "ada")
    assert await story.retriggers("user_ada", force=True, reason="no mail") == (
        200,
        [{"id": (await story.sees("user_ada"))[0]["id"], "before": DELIVERED, "state": DELIVERED}],
    )
    assert [call.status for call in story.house.calls()] == [201, 204]
    assert (story.house.invited(), story.mailed()) == (["ada"], ["user_ada@example.com"])


# ----------------------------------------------------------------------- the username is checked before the money moves
@pytest.mark.promise("F57")
@pytest.mark.parametrize("denied", ["nobody has it", "an organisation", "a bot"])
async def test_what_github_denies_is_refused_before_any_money(story: Story, denied: str) -> None:
    kind = {"an organisation": AccountType.ORGANIZATION, "a bot": AccountType.BOT}.get(denied)
    if kind is not None:
        story.house.world.github.add_account("acme-labs", kind)
    refused = await story.shop.buys("acme-labs", user="user_ada")
    assert (refused.status_code, refused.json()["code"]) == (400, "github_handle_unknown")
    assert [call for call in story.house.world.log.entries(Vendor.STRIPE) if "checkout" in call.path] == []


async def test_a_check_that_is_away_stops_no_sale(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.html_error(), path="^/users/"))
    await story.checks_out("user_ada", "ada")
    await story.hears()
    assert (await story.purchases(), story.house.invited()) == ({"ada": DELIVERED}, ["ada"])
    said = capsys.readouterr()
    assert (said.out + said.err).count("fulfillment.handle.unverified") == 1


async def test_who_has_no_account_yet_pays_and_names_one_later(story: Story) -> None:
    await story.checks_out("user_ada", None)
    assert story.house.world.log.entries(Vendor.GITHUB) == []
    await story.hears()
    (waiting,) = await story.sees("user_ada")
    assert (waiting["state"], waiting["githubUsername"], waiting["cooldownUntil"]) == (FAILED, None, None)
    story.knows("ada")
    status, shown = await story.corrects("user_ada", waiting["id"], "ada")
    assert (status, [one["state"] for one in shown]) == (200, [DELIVERED]), "the answer itself shows it"
    assert (story.house.invited(), story.mailed()) == (["ada"], ["user_ada@example.com"])


@pytest.mark.promise("F64")
async def test_a_login_that_changed_hands_gets_nothing_and_is_seen_by_a_person(story: Story) -> None:
    await story.checks_out("user_ada", "ada")
    story.changes_hands("ada")
    await story.hears()
    assert (await story.purchases(), story.house.invited()) == ({"ada": FAILED}, [])
    (listed,) = await story.shop.attention()
    assert (listed["why"], listed["state"]) == ("login_changed_hands", FAILED)


@pytest.mark.promise("F64")
async def test_a_stranger_invited_all_the_same_is_seen_by_a_person(story: Story) -> None:
    """The look before the invitation was answered with nothing: then GitHub says whom it invited."""
    await story.checks_out("user_ada", "ada")
    story.changes_hands("ada")
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.not_accessible(), path="^/users/"))
    await story.hears()
    assert (await story.purchases(), story.house.invited()) == ({"ada": DELIVERED}, ["ada"])
    (listed,) = await story.shop.attention()
    assert (listed["why"], listed["state"]) == ("invitee_mismatch", DELIVERED)


# ------------------------------------------------------------------------------------------------ correcting a username
async def test_a_renamed_account_is_corrected_by_its_buyer(story: Story, clock: Clock) -> None:
    """Not with the same name, not before the cooldown is over, not by anybody else; then at once."""
    await story.checks_out("user_ada", "ada")
    story.house.world.github.delete_account("ada")
    await story.hears()
    (failed,) = await story.sees("user_ada")
    assert "lastError" not in failed
    story.knows("countess")
    assert await story.corrects("user_eve", failed["id"], "countess") == (404, "fulfillment_purchase_unknown")
    assert await story.corrects("user_ada", failed["id"], "ADA") == (409, "github_handle_unchanged")
    assert await story.corrects("user_ada", failed["id"], "countess") == (429, "fulfillment_cooldown")
    until = datetime.fromisoformat(failed["cooldownUntil"])
    await clock.shift(until - await story.owner.fetchval("select rowclaim_now()"))
    assert [one["cooldownUntil"] for one in await story.sees("user_ada")] == [None]
    status, shown = await story.corrects("user_ada", failed["id"], "countess")
    assert (status, shown[0]["state"], shown[0]["githubUsername"]) == (200, DELIVERED, "countess")
    assert await story.corrects("user_ada", failed["id"], "ada") == (409, "fulfillment_not_failed")


@pytest.mark.promise("F84")
async def test_an_invitation_that_ran_out_is_replaced(story: Story, clock: Clock) -> None:
    await story.checks_out("user_ada", "ada")
    await story.hears()
    (dead,) = story.house.world.github.repository(REPOSITORY).invitations.values()
    await story.control.do(AdvanceClock(timedelta(days=8).total_seconds()))
    await clock.shift(timedelta(days=8))
    await check_invitations(story.fulfillment)
    (listed,) = await story.shop.attention()
    assert (listed["why"], listed["state"]) == ("invitation_expired", DELIVERED)
    (seen,) = await story.sees("user_ada")
    assert seen["invitation"]["expiredAt"] == listed["expiredAt"]
    before = len(story.house.world.log.entries(Vendor.GITHUB))
    status, shown = await story.corrects("user_ada", seen["id"], "ada")
    assert (status, shown[0]["state"], shown[0]["invitation"]["expiredAt"]) == (200, DELIVERED, None)
    acts = [call.method for call in story.house.world.log.entries(Vendor.GITHUB)[before:] if call.method != "GET"]
    assert acts == ["DELETE", "PUT"]
    (living,) = story.house.world.github.repository(REPOSITORY).invitations.values()
    assert living.id != dead.id
    assert await story.shop.attention() == []


# ------------------------------------------------------------------------------------------- what a person must look at
async def test_an_operator_finds_links_and_sends(story: Story) -> None:
    """A purchase that nobody owns is listed; it cannot be sent again before somebody owns it."""
    nobodys = session_params("ada")
    del nobodys["client_reference_id"]
    story.knows("ada")
    session = await story.control.do(CreateSession(nobodys))
    await story.control.do(CompleteSession(session["id"], email="ada@example.com"))
    story.house.world.github.delete_account("ada")
    await story.hears()
    (listed,) = await story.shop.attention()
    assert (listed["userId"], listed["canResend"], bool(listed["lastError"])) == (None, False, True)
    linked = await story.shop.links(listed["id"], userId="user_ada", reason="wrote to support")
    assert (linked.status_code, linked.json()["userId"], linked.json()["canResend"]) == (200, "user_ada", True)
    story.knows("ada")
    assert await story.retriggers("user_ada") == (
        200,
        [{"id": listed["id"], "before": FAILED, "state": DELIVERED}],
    )
    assert await story.shop.attention() == []
    assert await story.actions() == [
        (OPERATOR, "fulfillment.link", "wrote to support"),
        (OPERATOR, "fulfillment.retrigger", "re-triggered"),
    ]


# ---------------------------------------------------------------------------------------------------- the world goes on
@pytest.mark.parametrize("order", ["paid first", "taken back first"])
@pytest.mark.parametrize("taken_back", ["refunded", "disputed"])
async def test_a_payment_taken_back_before_the_invitation_is_owed_nothing(
    story: Story, order: str, taken_back: str
) -> None:
    """Whichever event is handled first: nobody is invited, and a person sees it."""
    story.house.world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.html_error(), method="PUT"))
    session = await story.checks_out("user_ada", "ada")
    if order == "paid first":
        await story.hears()
        assert await story.purchases() == {"ada": PENDING}
    await story.control.do(RefundCharge(session) if taken_back == "refunded" else DisputeCharge(session))
    await story.hears(times=2)
    assert (await story.fulfillment.flush()).attempted == 0
    assert (await story.purchases(), story.house.invited(), story.mailed()) == ({"ada": PENDING}, [], [])
    (listed,) = await story.shop.attention()
    assert (listed["why"], listed["canResend"]) == (taken_back, False)
    assert await story.retriggers("user_ada") == (409, "fulfillment_not_requeueable")


async def test_a_payment_taken_back_after_the_invitation_revokes_nothing(story: Story) -> None:
    session = await story.checks_out("user_ada", "ada")
    await story.hears()
    await story.control.do(RefundCharge(session))
    await story.hears()
    assert await story.purchases() == {"ada": DELIVERED}
    assert [call.method for call in story.house.world.log.entries(Vendor.GITHUB) if call.method == "DELETE"] == []
    (listed,) = await story.shop.attention()
    assert (listed["why"], listed["state"]) == ("refunded", DELIVERED)


async def test_logs_and_pages_name_nobody(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """They carry ids: no login, no address. What GitHub said stands in the row, for operators."""
    await story.sells("very-private-login")
    world = story.house.world
    world.faults.add(
        Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.member_role_is_higher("very-private-login", "pull"))
    )
    await story.hears()
    said = capsys.readouterr()
    pages = await story.owner.fetch("select dedup_key, summary from pages")
    assert pages
    for text in (said.out, said.err, *(page["summary"] for page in pages)):
        assert "very-private-login" not in text
        assert "@example.com" not in text
    assert "very-private-login" in await story.owner.fetchval("select fulfillment_last_error from purchases")
