"""Every command over the wire, by the typed client; what cannot be done is said in words."""

from dataclasses import fields
from typing import Any

import httpx
import pytest

from services.sandbox import wire
from services.sandbox.control import SandboxControl, SandboxRefused
from services.sandbox.control_api import RUNS
from services.sandbox.faults import Act, Fault, Moment
from services.sandbox.github import refusals
from services.sandbox.github.shapes import AccountType
from services.sandbox.github.world import DEFAULT_REPOSITORY
from services.sandbox.log import Ending, Vendor
from services.sandbox.outbox import Plan, Posting
from services.sandbox.stripe.buyer import Payment
from services.sandbox.world import Urls, World
from tests.sandbox.clients import plain
from tests.sandbox.github.conftest import HEADERS
from tests.sandbox.receiver import Receiver
from tests.sandbox.stripe.conftest import SESSION


async def test_accounts_repositories_and_tokens(control: SandboxControl) -> None:
    account = await control.do(wire.AddAccount("hubot", name="Hubot"))
    assert account == wire.AccountState(account.id, "hubot", AccountType.USER)
    assert (await control.do(wire.AddAccount("org-2", AccountType.ORGANIZATION, account_id=77))).id == 77
    renamed = await control.do(wire.RenameAccount("hubot", "hubot-2"))
    assert (renamed.id, renamed.login) == (account.id, "hubot-2")
    assert (await control.do(wire.AddRepository("org-2/r", invitations_per_day_max=50))).full_name == "org-2/r"
    assert (await control.do(wire.RenameRepository("org-2/r", "s"))).full_name == "org-2/s"
    await control.do(wire.AddToken("t", "hubot-2", ("org-2/s",)))
    await control.do(wire.AddCollaborator("org-2/s", "hubot-2", "push"))
    await control.do(wire.AddMember("org-2/s", "octocat", "triage"))
    assert (await control.do(wire.ShowRepository("org-2/s"))).collaborators == {"hubot-2": "write"}
    await control.do(wire.RevokeToken("t"))
    await control.do(wire.DeleteAccount("hubot-2"))
    with pytest.raises(SandboxRefused, match="no account 'hubot-2'; add it first"):
        await control.do(wire.DeleteAccount("hubot-2"))
    with pytest.raises(SandboxRefused, match="taken"):
        await control.do(wire.AddAccount("OCTOCAT"))


async def test_an_invitation_is_seen_accepted_and_declined(control: SandboxControl, urls: Urls, world: World) -> None:
    path = f"{urls.github}/repos/{DEFAULT_REPOSITORY}/collaborators/octocat"
    async with plain(headers=HEADERS) as github:
        await github.put(path, json={"permission": "pull"})
        await github.put(path, json={"permission": "pull"})
        (invitation,) = (await control.do(wire.ShowRepository(DEFAULT_REPOSITORY))).invitations
        assert (invitation.login, invitation.account_id, invitation.notified) == ("octocat", 583231, 2)
        assert (invitation.expired, invitation.permission) == (False, "read")
        await control.do(wire.DeclineInvitation(DEFAULT_REPOSITORY, "octocat"))
        await github.put(path)
        await control.do(wire.AcceptInvitation(DEFAULT_REPOSITORY, "octocat"))
    shown = await control.do(wire.ShowRepository(DEFAULT_REPOSITORY))
    assert (shown.collaborators, shown.invitations) == ({"octocat": "write"}, ())
    with pytest.raises(SandboxRefused, match="no invitation"):
        await control.do(wire.AcceptInvitation(DEFAULT_REPOSITORY, "octocat"))


async def test_a_fault_crosses_the_wire_whole(control: SandboxControl, urls: Urls, world: World) -> None:
    fault = Fault(
        Vendor.GITHUB,
        Act.ANSWER,
        Moment.BEFORE,
        refusals.primary_limit(30, clock_skew_s=5),
        method="GET",
        login="octocat",
        skip=1,
        times=None,
    )
    fault_id = await control.do(wire.AddFault(fault))
    async with plain(headers=HEADERS) as github:
        assert [(await github.get(f"{urls.github}/users/octocat")).status_code for _ in range(3)] == [200, 403, 403]
    (scripted,) = await control.faults()
    assert (scripted.id, scripted.fault, scripted.fired) == (fault_id, fault, 2)
    assert await control.do(wire.ClearFaults(fault_id)) == 1
    assert await control.do(wire.ClearFaults()) == 0


async def test_the_log_over_the_wire_is_the_log(control: SandboxControl, urls: Urls, world: World) -> None:
    async with plain(headers=HEADERS) as github:
        await github.get(f"{urls.github}/users/octocat?a=b")
        await github.put(f"{urls.github}/repos/{DEFAULT_REPOSITORY}/collaborators/octocat", json={"permission": "pull"})
    read = await control.log()
    assert read == world.log.entries()
    assert [entry.seq for entry in await control.log(Vendor.GITHUB, method="PUT")] == [2]
    assert [entry.seq for entry in await control.log(path_contains="/users/")] == [1]
    assert [entry.seq for entry in await control.log(since_seq=2)] == [2]
    assert await control.log(Vendor.STRIPE) == []
    assert read[0].ending is Ending.ANSWERED
    nobody: Any = "gitlab"
    with pytest.raises(SandboxRefused, match="not a valid Vendor"):
        await control.log(nobody)


async def test_a_log_that_lost_its_beginning_is_not_taken_for_whole(
    control: SandboxControl, urls: Urls, world: World
) -> None:
    async with plain(headers=HEADERS) as github:
        for _ in range(3):
            await github.get(f"{urls.github}/users/octocat")
    world.log._entries.popleft()
    with pytest.raises(SandboxRefused, match="begins at 2"):
        await control.log()
    assert len(await control.log(since_seq=2)) == 2


async def test_a_purchase_from_session_to_delivery(control: SandboxControl, receiver: Receiver) -> None:
    endpoint = await control.do(wire.AddStripeEndpoint(receiver.url, secret="whsec_1", posting=Posting.HELD))
    assert endpoint.secrets == ("whsec_1",)
    session = await control.do(wire.CreateSession(SESSION))
    assert session["status"] == "open"
    done = await control.do(wire.CompleteSession(session["id"], email="ada@example.com", name="Ada"))
    assert (done["payment_status"], done["customer_details"]["email"]) == ("paid", "ada@example.com")
    (event,) = await control.do(wire.ListStripeEvents("checkout.session.completed"))
    deliveries = await control.do(wire.DeliverStripe(Plan((event["id"],), copies=2)))
    assert [delivery.taken for delivery in deliveries] == [True, True]
    assert await control.deliveries() == deliveries
    rolled = await control.do(wire.RollSecret(endpoint.id, keep_old_s=60, secret="whsec_2"))
    assert rolled.secrets == ("whsec_2", "whsec_1")
    await control.do(wire.AdvanceClock(61))
    assert (await control.do(wire.SetPosting(endpoint.id, Posting.AUTO))).secrets == ("whsec_2",)
    await control.do(wire.SetRetries(()))
    later = await control.do(wire.CreateSession(SESSION))
    await control.do(wire.CompleteSession(later["id"], Payment.UNPAID))
    await control.do(wire.SettleSession(later["id"], succeeded=True))
    assert (await control.do(wire.RefundCharge(session["id"], 900)))["amount_refunded"] == 900
    assert (await control.do(wire.RefundCharge(session["id"])))["refunded"] is True
    assert (await control.do(wire.DisputeCharge(later["id"], "duplicate")))["reason"] == "duplicate"
    assert await control.do(wire.AwaitIdle()) is True
    assert len({delivery.event_id for delivery in await control.deliveries()}) > 5
    left = await control.do(wire.CreateSession(SESSION))
    assert (await control.do(wire.LeaveSession(left["id"])))["status"] == "expired"
    thin = await control.do(wire.WriteThinEvent("v1.checkout.session.completed", "checkout.session", session["id"]))
    assert thin["related_object"]["id"] == session["id"]
    assert (await control.do(wire.WriteThinEvent("v1.billing.meter.no_meter_found")))["related_object"] is None


async def test_idle_has_a_bound(control: SandboxControl, world: World, receiver: Receiver) -> None:
    await control.do(wire.SetRetries((3600.0,)))
    receiver.statuses = [500]
    await control.do(wire.AddStripeEndpoint(receiver.url, ("checkout.session.expired",)))
    session = await control.do(wire.CreateSession(SESSION))
    await control.do(wire.LeaveSession(session["id"]))
    assert await control.do(wire.AwaitIdle(0.05)) is False


async def test_clerk_over_the_wire(control: SandboxControl, receiver: Receiver) -> None:
    endpoint = await control.do(wire.AddClerkEndpoint(receiver.url, posting=Posting.HELD))
    user = await control.do(
        wire.CreateClerkUser(
            "a@example.com",
            username="ada",
            github_login="octocat",
            more_emails=("c@example.com",),
            private_metadata={"stripe_customer_id": "cus_1"},
            public_metadata={"tier": 1},
            unsafe_metadata={"theme": "dark"},
        )
    )
    assert len(user["email_addresses"]) == 3
    told = [user[f"{kind}_metadata"] for kind in ("private", "public", "unsafe")]
    assert told == [{"stripe_customer_id": "cus_1"}, {"tier": 1}, {"theme": "dark"}]
    updated = await control.do(wire.UpdateClerkUser(user["id"], {"email": "b@example.com"}))
    assert updated["id"] == user["id"]
    messages = await control.do(wire.ListClerkMessages())
    assert [message.type for message in messages] == ["user.created", "user.updated"]
    assert messages[1].body["data"]["id"] == user["id"]
    plan = Plan(tuple(message.id for message in messages), (endpoint.id,))
    assert [one.taken for one in await control.do(wire.DeliverClerk(plan))] == [True, True]
    assert (await control.do(wire.DeleteClerkUser(user["id"])))["id"] == user["id"]
    for command in (wire.UpdateClerkUser(user["id"], {}), wire.DeleteClerkUser(user["id"])):
        with pytest.raises(SandboxRefused, match="no Clerk user"):
            await control.do(command)


async def test_github_can_be_limited(control: SandboxControl, urls: Urls) -> None:
    await control.do(wire.LimitGitHub(1))
    async with plain(headers=HEADERS) as github:
        assert [(await github.get(f"{urls.github}/users/octocat")).status_code for _ in range(2)] == [200, 403]


async def test_counts(control: SandboxControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCLAIM_RUN", "run-1")
    await control.do(wire.CreateSession(SESSION))
    counts = await control.counts()
    assert (counts.run, counts.requests, counts.deliveries, counts.mails) == ("run-1", 0, 0, 0)
    assert counts.objects["checkout.session"] == 1


async def test_without_a_sink_mail_is_refused(control: SandboxControl) -> None:
    assert await control.mails() == []
    for command in (wire.FailMail("hang"), wire.HealMail()):
        with pytest.raises(SandboxRefused, match="--smtp-port"):
            await control.do(command)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (wire.CompleteSession("cs_none"), "No such checkout.session"),
        (wire.RefundCharge("cs_none"), "No such checkout.session"),
        (wire.DisputeCharge("cs_none"), "No such checkout.session"),
        (wire.CreateSession({"mode": "barter"}), "Invalid mode"),
        (wire.DeliverStripe(Plan(("evt_none",))), "No such event"),
        (wire.SetPosting("we_none", Posting.AUTO), "No such webhook_endpoint"),
        (wire.RollSecret("we_none"), "No such webhook_endpoint"),
        (wire.AdvanceClock(-5), "only moves forward"),
        (wire.ShowRepository("no/body"), "no repository 'no/body'"),
    ],
)
async def test_what_cannot_be_done_says_why(control: SandboxControl, command: wire.Command[Any], words: str) -> None:
    with pytest.raises(SandboxRefused, match=words):
        await control.do(command)


async def test_the_api_by_hand(urls: Urls) -> None:
    async with plain(base_url=urls.base) as http:
        unknown = await http.post("/control/MakeCoffee", content=b"{}")
        assert (unknown.status_code, "AddAccount" in unknown.json()["error"]) == (404, True)
        wrong = await http.post("/control/AddAccount", content=b'{"user": 1}')
        assert (wrong.status_code, "login" in wrong.json()["error"]) == (400, True)
        empty = await http.post("/control/ClearFaults")
        assert (empty.status_code, empty.json()) == (200, 0)
        assert (await http.get("/elsewhere")).status_code == 404


async def test_nobody_there_is_not_a_refusal(world: World) -> None:
    async with world.serve() as urls:
        control = SandboxControl(urls.control)
    with pytest.raises(httpx.ConnectError):
        await control.counts()
    await control.close()


async def test_an_answer_that_is_none_of_ours_is_shown(urls: Urls) -> None:
    async with SandboxControl(f"{urls.base}/github/nothing") as lost:
        with pytest.raises(SandboxRefused, match=r"400: .*not a supported version"):
            await lost.counts()


def test_every_command_is_carried_out_by_somebody() -> None:
    declared = {one.__name__ for one in vars(wire).values() if isinstance(one, type) and issubclass(one, wire.Command)}
    assert declared - {"Command"} == RUNS.keys()


@pytest.mark.parametrize("name", sorted(RUNS))
def test_every_command_declares_its_answer(name: str) -> None:
    command = RUNS[name][0]
    assert command.answer_shape() is not None
    assert fields(command) is not None
