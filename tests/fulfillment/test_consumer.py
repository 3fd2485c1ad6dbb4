"""The card, and what only real processes show: races between them, and deaths at a chosen instant."""

import asyncio
import json
import signal
import sys
from datetime import timedelta

import pytest

from services.fulfillment.consumer import SERVICE, FulfillmentSettings
from services.fulfillment.machine import FulfillmentState
from services.ingress.store import Arrival, arrive
from services.kernel.settings import load_settings, variables
from services.sandbox.faults import Act, Fault
from services.sandbox.log import Vendor
from tests.fixtures.database import ROOT, Connect, Connection
from tests.fixtures.fulfillment import REPOSITORY, House
from tests.fulfillment.conftest import Purchases
from tests.fulfillment.flow.test_forgetting import BLANK, WHOLE
from tests.waiting import wait_until

PENDING, IN_PROGRESS, DELIVERED, FAILED = (state.value for state in FulfillmentState)
RACE_S = 150.0

# Argument: how many flushes at once; each has its own pool, gates and gateways, as in a process of its own. They begin
# on a line from outside, so that the processes race however long each took to start.
MANY_FLUSHES = """
import asyncio, contextlib, json, sys
from services.fulfillment.consumer import SERVICE, open_fulfillment
from services.operations.paging import LogSender
from services.operations.environment import load
from services.operations.process import Process

async def sender(process):
    return LogSender()

async def main():
    async with contextlib.AsyncExitStack() as stack:
        opened = [Process.open("tests", [SERVICE], load([SERVICE], [SERVICE]), sender) for _ in range(int(sys.argv[1]))]
        flushes = [await open_fulfillment(await stack.enter_async_context(one)) for one in opened]
        print("opened", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        reports = await asyncio.gather(*(one.flush() for one in flushes))
        print(json.dumps([report.delivered for report in reports]))

asyncio.run(main())
"""


# A correction in a process that kills itself beside the statement that writes it: argv = before or after, purchase.
CORRECTION_DIES = """
import asyncio, os, signal, sys
from services.fulfillment import store
from services.fulfillment.consumer import SERVICE, open_fulfillment
from services.fulfillment.flow.buyer import requeue
from services.kernel import doors
from services.operations.environment import load
from services.operations.paging import LogSender
from services.operations.process import Process

def watch(door, what, moment):
    if what == store.CORRECT and moment == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)

async def sender(process):
    return LogSender()

async def main():
    doors.watch(watch)
    async with Process.open("tests", [SERVICE], load([SERVICE], [SERVICE]), sender) as process:
        await requeue(await open_fulfillment(process), "user_1", int(sys.argv[2]), "octocat")

asyncio.run(main())
"""


@pytest.mark.promise("F5")
async def test_of_twenty_flushes_in_four_processes_one_gets_the_row(house: House, purchases: Purchases) -> None:
    purchase = await purchases.add("octocat")
    delivered = await _race(house, processes=4, flushes_each=5)
    assert sorted(delivered) == [0] * 19 + [1]
    assert house.invited() == ["octocat"]
    assert len(house.world.log.entries(Vendor.GITHUB)) == 1
    row = await purchases.row(purchase)
    assert (row["fulfillment_state"], row["fulfillment_attempts"]) == (DELIVERED, 1)
    assert len(house.sink.messages) == 1


async def test_sixteen_flushes_attempt_each_of_five_hundred_rows_once(
    house: House, purchases: Purchases, owner: Connection
) -> None:
    """The mails are left out: what races are claims and calls. Twice: the second time beside rows that are done."""
    buyers: list[str] = []
    for again in range(2):
        new = [f"buyer-{again}-{n}" for n in range(500)]
        buyers += new
        for login in new:
            house.world.github.add_account(login)
        await owner.executemany(
            "insert into purchases (stripe_session_id, github_handle, created_at, fulfillment_state, edge)"
            " values ('cs_' || $1, $1, rowclaim_now(), 'pending', 'record')",
            [(login,) for login in new],
        )
        delivered = await _race(house, processes=4, flushes_each=4)
        assert sum(delivered) == 500
        assert sum(count > 0 for count in delivered) > 4, "not one process alone: they did race"
        assert sorted(call.subject or "" for call in house.calls()) == sorted(buyers)
        assert sorted(house.invited()) == sorted(buyers)
        assert set(await purchases.states()) == {DELIVERED}
        assert set(await purchases.attempts()) == {1}


async def _race(house: House, *, processes: int, flushes_each: int) -> list[int]:
    """Flush everywhere at once, to the end; how many each flush delivered."""
    racing = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MANY_FLUSHES, str(flushes_each)),
            cwd=ROOT,
            env=dict(house.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(processes)
    ]
    try:
        async with asyncio.timeout(RACE_S):
            for process in racing:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"opened\n"
            ended = await asyncio.gather(*(process.communicate(b"go\n") for process in racing))
    finally:
        for process in racing:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in racing] == [0] * processes
    return [count for out, _ in ended for count in json.loads(out.splitlines()[-1])]


@pytest.mark.promise("F8")
async def test_a_flush_killed_in_its_second_call_held_that_row_alone(house: House, purchases: Purchases) -> None:
    logins = [f"buyer-{n}" for n in range(1, 6)]
    for login in logins:
        house.world.github.add_account(login)
        await purchases.add(login)
    house.world.faults.add(Fault(Vendor.GITHUB, Act.HANG, login="buyer-2"))
    flush = await house.start("flush")
    try:
        await wait_until(
            lambda: any(call.subject == "buyer-2" or "buyer-2" in call.path for call in house.calls()),
            within_s=90,
            what="the second call is under way",
        )
    finally:
        flush.send_signal(signal.SIGKILL)
        await flush.communicate()
    assert await purchases.states() == [DELIVERED, IN_PROGRESS, PENDING, PENDING, PENDING]
    assert await purchases.attempts() == [1, 1, 0, 0, 0]


@pytest.mark.promise("F19")
async def test_killed_between_the_answer_and_its_outcome_a_purchase_waits_for_a_person(
    house: House, purchases: Purchases, owner: Connection
) -> None:
    purchase = await purchases.add("octocat")
    died = await house.command("flush", dies_at=("http", "after", "PUT"))
    assert died.exit == -signal.SIGKILL
    assert house.invited() == ["octocat"]
    assert await purchases.states() == [IN_PROGRESS]

    assert (await house.command("flush", "--json")).answer["attempted"] == 0
    assert (await house.command("retrigger", str(purchase))).exit != 0
    assert len(house.world.log.entries(Vendor.GITHUB)) == 1, "nobody called before the person did"
    assert await owner.fetchval("select why from desk.fulfillment_attention where id = $1::bigint::text", purchase)

    forced = await house.command("retrigger", str(purchase), "--force", "--reason", "stranded by a crash", "--json")
    assert (forced.exit, forced.answer["before"], forced.answer["after"]) == (0, IN_PROGRESS, DELIVERED)
    row = await purchases.row(purchase)
    assert (row["fulfillment_attempts"], row["fulfillment_state"]) == (2, DELIVERED)
    entries = house.world.log.entries(Vendor.GITHUB)
    assert len(entries) >= 2
    assert [entry.overlaps for entry in entries] == [()] * len(entries)
    assert house.invited() == ["octocat"]
    repository = house.world.github.repository(REPOSITORY)
    assert [(one.invitee.login, one.notified) for one in repository.invitations.values()] == [("octocat", 1)]
    assert len(house.sink.messages) == 1


@pytest.mark.promise("F76")
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_correction_is_written_whole_or_not_at_all(house: House, purchases: Purchases, moment: str) -> None:
    purchase = await purchases.in_state(
        FAILED, "typo", user_id="user_1", fulfillment_attempted_at=await purchases.now() - timedelta(hours=1)
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CORRECTION_DIES, moment, str(purchase)), cwd=ROOT, env=dict(house.environ)
    )
    async with asyncio.timeout(RACE_S):
        assert await process.wait() == -signal.SIGKILL
    row = await purchases.row(purchase)
    written = (row["github_handle"], row["fulfillment_state"], row["fulfillment_last_error"])
    assert written == (("typo", FAILED, "no") if moment == "before" else ("octocat", PENDING, None))
    assert house.calls() == []
    assert (await house.command("flush", "--json")).answer["delivered"] == (moment == "after")


@pytest.mark.promise("F51")
async def test_killed_between_delivery_and_mail_only_force_sends_the_mail(house: House, purchases: Purchases) -> None:
    purchase = await purchases.add("octocat")
    died = await house.command("flush", dies_at=("smtp", "before", "send"))
    assert died.exit == -signal.SIGKILL
    assert await purchases.states() == [DELIVERED]
    assert house.sink.messages == []

    refused = await house.command("retrigger", str(purchase))
    assert refused.exit == 65
    assert "fulfillment_not_requeueable" in refused.err
    assert (await purchases.states(), house.sink.messages) == ([DELIVERED], [])

    forced = await house.command("retrigger", str(purchase), "--force", "--reason", "mail never came", "--json")
    assert (forced.answer["after"], forced.answer["mails_sent"]) == (DELIVERED, 1)
    assert len(house.sink.messages) == 1


async def test_a_command_that_is_interrupted_ends_its_attempt_and_leaves_the_rest(
    house: House, purchases: Purchases
) -> None:
    """Ctrl-C in the middle of a call: its answer is waited for and written, and nothing more is claimed."""
    house.world.github.add_account("second")
    await purchases.add("octocat")
    await purchases.add("second")
    house.world.faults.add(Fault(Vendor.GITHUB, Act.LATE, method="PUT", delay_ms=1500))
    flush = await house.start("flush", "--json")
    await wait_until(house.calls, within_s=90, what="the first call is under way")
    flush.send_signal(signal.SIGINT)
    out, _ = await flush.communicate()
    assert flush.returncode == 0
    assert (json.loads(out)["stopped"], json.loads(out)["delivered"]) == ("stopping", 1)
    assert await purchases.states() == [DELIVERED, PENDING]


def test_the_card_says_what_fulfillment_is_owed_and_what_runs() -> None:
    assert (SERVICE.name, SERVICE.role) == ("fulfillment", "rowclaim_fulfillment")
    assert {(one.source, one.kind) for one in SERVICE.subscriptions} == {
        ("stripe", "checkout.session.completed"),
        ("stripe", "checkout.session.async_payment_succeeded"),
        ("stripe", "charge.refunded"),
        ("stripe", "charge.dispute.created"),
        ("clerk", "user.created"),
        ("clerk", "user.updated"),
    }
    assert SERVICE.topics == ("stripe.events.v1", "clerk.events.v1")
    assert [machine.table for machine in SERVICE.machines] == ["purchases"]


@pytest.mark.promise("F30")
@pytest.mark.parametrize(("sweep", "sweeps"), [("false", []), ("true", ["fulfillment.flush"])])
async def test_a_sweep_over_purchases_runs_only_where_it_was_switched_on(
    house: House, purchases: Purchases, sweep: str, sweeps: list[str]
) -> None:
    await purchases.add("octocat")
    async with house.runtime(ROWCLAIM_FULFILLMENT_SWEEP=sweep) as process:
        assert SERVICE.consume is not None
        consumption = await SERVICE.consume(process)
        assert [one.name for one in consumption.sweeps] == sweeps
        assert [one.name for one in consumption.jobs] == ["fulfillment.invitations"]
        for one in consumption.sweeps:
            assert (await one.run_once())["delivered"] == 1
    assert await purchases.states() == [DELIVERED if sweeps else PENDING]


@pytest.mark.promise("F48")
def test_the_settings_are_named_after_the_slice_and_keep_their_secrets(house: House) -> None:
    assert all(name.startswith("ROWCLAIM_FULFILLMENT_") for name in variables(FulfillmentSettings))
    settings = load_settings(FulfillmentSettings, house.environ)
    assert (settings.attempt_bound_s, settings.delivery_lease_s, settings.sweep) == (20.0, 30.0, False)
    for secret in (settings.github_token, settings.stripe_api_key):
        assert secret.get_secret_value() not in repr(settings)


# ------------------------------------------------------------------------------------------------- a forgotten person
FORGET = ("forget", "user_ann", "--reason", "asked by letter", "--json")


@pytest.fixture
async def told(connect: Connect) -> None:
    """Stored events: one names the buyer's Session, one their address, one somebody else."""
    bodies = {"a": b'{"id": "cs_ann"}', "b": b'{"email": "ann@example.com"}', "c": b'{"email": "joann@example.com"}'}
    arrivals = [Arrival("stripe", name, "charge.refunded", body) for name, body in bodies.items()]
    await arrive(await connect("rowclaim_ingress"), arrivals)


async def kept(owner: Connection) -> list[bytes]:
    return [row["body"] for row in await owner.fetch("select body from event_bodies order by event_id")]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    "dies_at",
    [
        ("database", "after", "\ninsert into admin_actions"),
        ("database", "before", "\nupdate event_bodies"),
        ("database", "after", "\nupdate event_bodies"),
        ("database", "before", "\nselect d.event_id || "),
        None,
    ],
    ids=lambda place: place and " ".join(place[1:]).replace("\n", ""),
)
async def test_killed_anywhere_and_run_again_it_completes(
    house: House, purchases: Purchases, owner: Connection, dies_at: tuple[str, str, str] | None
) -> None:
    purchase = await purchases.add("ann", user_id="user_ann", **WHOLE | {"stripe_session_id": "cs_ann"})
    before = dict(await purchases.row(purchase))
    if dies_at is not None:
        assert (await house.command(*FORGET, dies_at=dies_at)).exit == -9
        assert dict(await purchases.row(purchase)) == before
    done = await house.command(*FORGET)
    assert done.exit == 0, done.err
    assert done.answer["purchases"] == 1
    assert dict(await purchases.row(purchase)) == before | BLANK
    assert await kept(owner) == [b"", b"", b'{"email": "joann@example.com"}']
    written = await owner.fetch("select verb, target, reason, before, after from admin_actions")
    assert {row["verb"] for row in written} == {"forget", "forgotten"}
    assert not any(word in str([*written, done]) for word in ("example.com", "cs_ann", "pi_ann", "octo"))
