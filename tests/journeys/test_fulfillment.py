"""The document of fulfillment, told as tests: buyers pay at Stripe, are invited at GitHub and get a mail.

Everything is real but the vendors, which the sandbox plays over HTTP and SMTP: settings, gates, gateways, the inbox,
and the worker that a ring or a tick would run.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pytest

from services.fulfillment.consumer import SERVICE, open_fulfillment
from services.fulfillment.flow.buyer import requeue
from services.fulfillment.flow.events import handle
from services.fulfillment.flow.flush import Fulfillment, Stopped
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.machine import FulfillmentState
from services.ingress.store import Arrival, arrive
from services.kernel.db import Database
from services.kernel.deliveries import DeliveryWorker
from services.kernel.inbox import subscribe
from services.sandbox.control import SandboxControl
from services.sandbox.faults import Act, Fault, Moment, Reply
from services.sandbox.github import refusals
from services.sandbox.github.shapes import AccountType
from services.sandbox.github.world import DEFAULT_TOKEN
from services.sandbox.log import Vendor
from services.sandbox.stripe.buyer import Payment
from services.sandbox.wire import AdvanceClock, CompleteSession, CreateSession, ListStripeEvents, SettleSession
from tests.fixtures.database import Clock, Connect, Connection
from tests.fixtures.fulfillment import REPOSITORY, House, session_params

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)


@dataclass(slots=True)
class Story:
    """One installation and its buyers."""

    house: House
    control: SandboxControl
    ingress: Database
    owner: Connection
    fulfillment: Fulfillment
    worker: DeliveryWorker
    _stored: int = field(default=0, init=False)

    async def sells(self, login: str | None, payment: Payment = Payment.PAID, **params: object) -> str:
        """A buyer with this login completes a checkout; the Session's id."""
        if login is not None and self.house.world.github.find_account(login) is None:
            self.house.world.github.add_account(login)
        session = await self.control.do(CreateSession(session_params(login, **params)))
        await self.control.do(CompleteSession(session["id"], payment, email=f"{login or 'nameless'}@example.com"))
        return str(session["id"])

    async def hears(self, *, times: int = 1) -> None:
        """Every event that Stripe made since is stored, as the front door stores it, and handled."""
        events = (await self.control.do(ListStripeEvents()))[self._stored :]
        self._stored += len(events)
        for _ in range(times):
            for event in events:
                body = json.dumps(event).encode()
                await arrive(self.ingress, [Arrival("stripe", event["id"], event["type"], body)])
        while await self.worker.step():
            pass

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
async def story(house: House, control: SandboxControl, connect: Connect, owner: Connection) -> AsyncIterator[Story]:
    async with _told(house, control, connect, owner) as story:
        yield story


@asynccontextmanager
async def _told(
    house: House, control: SandboxControl, connect: Connect, owner: Connection, **settings: str
) -> AsyncIterator[Story]:
    async with house.runtime(**settings) as runtime:
        fulfillment = await open_fulfillment(runtime)
        await subscribe(fulfillment.db, SERVICE.name, SERVICE.subscriptions)
        worker = DeliveryWorker(
            fulfillment.db, SERVICE.name, partial(handle, fulfillment), lease=timedelta(seconds=30), batch_max=20
        )
        yield Story(house, control, await connect("rowclaim_ingress"), owner, fulfillment, worker)


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


async def test_what_another_slice_sold_or_nobody_marked_is_not_guessed_at(story: Story) -> None:
    await story.sells("ada", metadata={"rowclaim_slice": "rewards"})
    await story.sells("grace", metadata={})
    await story.hears()
    assert await story.purchases() == {}
    assert await story.deliveries() == {"not_ours", "parked"}
    assert await story.owner.fetchval("select why from desk.ingress_parked") == "unmarked_object"


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


async def test_a_login_that_changed_hands_gets_nothing_and_is_seen_by_a_person(story: Story) -> None:
    world = story.house.world.github
    account = world.add_account("ada")
    metadata = {
        "rowclaim_slice": "fulfillment",
        "github_username": "ada",
        "github_account_id": str(account.id),
    }
    await story.sells("ada", metadata=metadata)
    world.rename_account("ada", "countess")
    world.add_account("ada")
    await story.hears()
    assert (await story.purchases(), story.house.invited()) == ({"ada": FAILED}, [])
    assert await story.owner.fetchval("select why from desk.fulfillment_attention") == "login_changed_hands"


async def test_a_stranger_invited_all_the_same_is_seen_by_a_person(story: Story) -> None:
    """The login changed hands between the look and the invitation: GitHub says whom it invited."""
    world = story.house.world
    world.github.add_account("ada")
    world.faults.add(Fault(Vendor.GITHUB, Act.ANSWER, reply=refusals.not_accessible(), path="^/users/"))
    metadata = {"rowclaim_slice": "fulfillment", "github_username": "ada", "github_account_id": "1"}
    await story.sells("ada", metadata=metadata)
    await story.hears()
    assert (await story.purchases(), story.house.invited()) == ({"ada": DELIVERED}, ["ada"])
    assert await story.owner.fetchval("select why from desk.fulfillment_attention") == "invitee_mismatch"


async def test_every_mail_and_log_and_page_is_without_what_it_must_not_hold(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs and pages carry ids: no login, no address."""
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


@pytest.mark.promise("F83", "F84")
async def test_an_invitation_that_ran_out_is_seen_and_sent_anew(story: Story, clock: Clock) -> None:
    """Nobody accepts for eight days. The daily look notices, the buyer asks again under the same name."""
    await story.sells("ada")
    await story.sells("grace")
    await story.hears()
    github = story.house.world.github
    github.accept(REPOSITORY, "grace")
    for days, listed in ((6, []), (2, ["invitation_expired"])):
        await clock.shift(timedelta(days=days))
        await story.control.do(AdvanceClock(days * 86400))
        await check_invitations(story.fulfillment)
        desk = await story.owner.fetch("select why, since from desk.fulfillment_attention")
        assert [row["why"] for row in desk] == listed
    rows = {row["github_handle"]: row for row in await story.owner.fetch("select * from purchases")}
    assert desk[0]["since"] == rows["ada"]["invited_at"] + timedelta(days=7)
    assert rows["grace"]["accepted_at"] is not None

    asked = len(story.house.world.log.entries(Vendor.GITHUB))
    answered = await requeue(story.fulfillment, "user_1", rows["ada"]["id"], "ada")
    assert [purchase.state for purchase in answered] == [DELIVERED, DELIVERED]
    entries = story.house.world.log.entries(Vendor.GITHUB)[asked:]
    assert [entry.method for entry in entries if entry.method != "GET"] == ["DELETE", "PUT"]
    assert story.house.invited() == ["ada", "grace", "ada"]
    (invitation,) = github.repository(REPOSITORY).invitations.values()
    row = await story.owner.fetchrow("select * from purchases where github_handle = 'ada'")
    assert (row["invitation_id"], row["invitation_expired_at"]) == (invitation.id, None)
    assert await story.owner.fetchval("select count(*) from desk.fulfillment_attention") == 0
