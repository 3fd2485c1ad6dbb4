"""The commands as an operator types them: what they refuse, do, show and ring for."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar, cast

import pytest
import typer
from typer.testing import CliRunner

from services.ingress import store
from services.ingress.api import commands
from services.ingress.api.commands import actor, make_commands, parse_delivery, parse_when
from services.ingress.consumer import SERVICE
from services.ingress.machine import HistoryAnswer, HistoryPage, HistoryQuery, HistoryTrouble, PastEvent
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, Parked, Verdict
from services.kernel.errors import Retryable
from services.kernel.inbox import Subscription
from services.kernel.service import Runtime, Service
from services.sandbox.control import SandboxControl
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.wire import CompleteSession, CreateSession
from services.sandbox.world import Urls
from tests.fixtures.database import ROOT, DatabaseUrl
from tests.fixtures.fulfillment import session_params

T = TypeVar("T")

PAID = "checkout.session.completed"
REPLAY = ("replay", "--consumer", "fulfillment", "--type", PAID)


@dataclass
class Bell:
    rings: list[tuple[str, list[int]]] = field(default_factory=list)
    flushed: bool = False

    def ring(self, topic: str, ids: Iterable[int]) -> None:
        self.rings.append((topic, list(ids)))

    async def run(self, stop: asyncio.Event) -> None:
        assert stop.is_set(), "a command does not stay to ring"
        self.flushed = True


@dataclass
class Line:
    """The command line around a command: a process of one slice, and a record of what it showed."""

    url: DatabaseUrl
    doorbell: Bell = field(default_factory=Bell)
    shown: list[tuple[object, bool]] = field(default_factory=list)
    listed: list[HistoryAnswer] = field(default_factory=list)
    """What Stripe answers, page by page."""

    async def page(self, _: HistoryQuery) -> HistoryAnswer:
        return self.listed.pop(0)

    def run(self, service: Service, work: Callable[[Runtime], Awaitable[T]]) -> T:
        assert service is SERVICE

        async def process() -> T:
            self.opened: list[Database] = []
            try:
                return await work(cast(Runtime, self))
            finally:
                for db in self.opened:
                    await db.close()

        return asyncio.run(process())

    async def database(self, role: str) -> Database:
        self.opened.append(await Database.connect(self.url(role), size_max=2))
        return self.opened[-1]

    def show(self, result: object, *, as_json: bool) -> None:
        self.shown.append((result, as_json))


@pytest.fixture
def line(database_url: DatabaseUrl) -> Line:
    return Line(database_url)


async def listing(runtime: Runtime) -> Line:
    return cast(Line, runtime)


def typed(line: Line, *arguments: str) -> tuple[int, str]:
    """Exit status and everything printed."""
    done = CliRunner().invoke(make_commands(lambda: SERVICE, listing), arguments, obj=line)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def arranged(line: Line, work: Callable[[Database], Coroutine[Any, Any, T]], role: str = "rowclaim_ingress") -> T:
    async def once() -> T:
        db = await Database.connect(line.url(role), size_max=2)
        try:
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(once())


def worked_off(line: Line, verdict: Verdict, *ids: str) -> list[int]:
    """Events that fulfillment was owed and has finished with ``verdict``; their ids."""

    async def arrive(db: Database) -> list[int]:
        await inbox.subscribe(db, "fulfillment", [Subscription("stripe", PAID)])
        arrived = await store.arrive(db, [Arrival("stripe", one, PAID, b"{}") for one in ids])
        return sorted(one.event_id for one in arrived.values() if one.event_id is not None)

    async def finish(db: Database) -> None:
        async def handle(batch: Iterable[Delivery]) -> dict[int, Verdict]:
            return {delivery.event_id: verdict for delivery in batch}

        await DeliveryWorker(db, "fulfillment", handle, lease=timedelta(seconds=30), batch_max=50).step()

    event_ids = arranged(line, arrive)
    arranged(line, finish, "rowclaim_fulfillment")
    return event_ids


def states(line: Line) -> list[str]:
    async def read(db: Database) -> list[str]:
        found: list[str] = await db.value("select array_agg(state order by event_id) from webhook_deliveries")
        return found

    return arranged(line, read, "rowclaim_reader")


def test_replay_gives_back_shows_counts_and_rings_once(line: Line) -> None:
    ids = worked_off(line, Done(), "evt_1", "evt_2")
    assert typed(line, *REPLAY, "--since", "1h", "--reason", "mails were lost", "--json") == (0, "")
    ((result, as_json),) = line.shown
    assert as_json
    shown = cast(dict[str, object], result)
    assert (shown["dry_run"], shown["put_back"], shown["made"], shown["waiting_already"]) == (False, 2, 0, 0)
    assert line.doorbell.rings == [("stripe.events.v1", [ids[-1]])]
    assert line.doorbell.flushed
    assert states(line) == ["pending", "pending"]


def test_a_dry_run_needs_no_reason_and_rings_for_nobody(line: Line) -> None:
    worked_off(line, Done(), "evt_1")
    assert typed(line, *REPLAY, "--since", "1h", "--dry-run")[0] == 0
    ((result, _),) = line.shown
    assert cast(dict[str, object], result)["put_back"] == 1
    assert not line.doorbell.flushed
    assert states(line) == ["done"]


def test_a_replay_of_nothing_says_so(line: Line) -> None:
    worked_off(line, Done(), "evt_1")
    assert typed(line, *REPLAY, "--since", "2100-01-01T00:00Z", "--reason", "why not")[0] == 0
    assert line.shown == [({"dry_run": False, "events": 0}, False)]


def test_whatever_ends_a_replay_early_tells_how_to_go_on(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_off(line, Done(), "evt_1")
    worked_off(line, Done(), "evt_2")
    pages: list[commands.repair.Replayed] = []
    replay = commands.repair.replay

    async def cut(*arguments: Any, **named: Any) -> Any:
        async for page in replay(*arguments, **named):
            pages.append(page)
            yield page
            raise KeyboardInterrupt

    monkeypatch.setattr(commands.repair, "replay", cut)
    done = CliRunner().invoke(
        make_commands(lambda: SERVICE, listing),
        [*REPLAY, "--since", "1h", "--page", "1", "--reason", "mails were lost"],
        obj=line,
    )
    assert done.exit_code != 0
    assert f"go on with --since {pages[0].resume.isoformat()}" in done.output
    assert states(line) == ["pending", "done"], "the page before it stands"
    assert line.shown == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*REPLAY, "--since", "1h"], "say why"),
        ([*REPLAY, "--since", "1h", "--reason", "  "], "say why"),
        ([*REPLAY, "--since", "yesterday", "--dry-run"], "neither an instant nor"),
        ([*REPLAY, "--since", "1h", "--page", "0", "--dry-run"], "--page"),
        (["backfill", "stripe"], "--since"),
        (["backfill", "stripe", "--since", "lately"], "--since"),
        (["backfill", "stripe", "--since", "3d", "--until", "tomorrow"], "--until"),
        (["backfill", "clerk", "--since", "3d"], "clerk"),
        (["unpark", "7:fulfillment"], "say why"),
        (["unpark", "7", "--reason", "x"], "EVENT:CONSUMER"),
        (["unpark", "x:fulfillment", "--reason", "x"], "EVENT:CONSUMER"),
        (["unpark", "7:fulfillment", "--reason-code", "x", "--reason", "x"], "not both"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(line: Line, arguments: list[str], told: str) -> None:
    code, output = typed(line, *arguments)
    assert code == 2
    assert told in output
    assert line.shown == []


def test_unpark_without_a_name_lists_what_is_parked(line: Line) -> None:
    (event_id,) = worked_off(line, Parked("unmarked_object"), "evt_1")
    assert typed(line, "unpark")[0] == 0
    ((result, _),) = line.shown
    (row,) = cast(list[dict[str, object]], result)
    assert (row["delivery"], row["reason_code"], row["sender_id"]) == (
        f"{event_id}:fulfillment",
        "unmarked_object",
        "evt_1",
    )
    assert states(line) == ["parked"]


def test_unpark_takes_names_as_it_lists_them(line: Line) -> None:
    one, _ = worked_off(line, Parked("unmarked_object"), "evt_1", "evt_2")
    assert typed(line, "unpark", f"{one}:fulfillment", "--reason", "marked by hand")[0] == 0
    assert line.shown == [({"unparked": 1}, False)]
    assert line.doorbell.rings == [("stripe.events.v1", [one])]
    assert states(line) == ["pending", "parked"]


def test_unpark_takes_a_code(line: Line) -> None:
    worked_off(line, Parked("unmarked_object"), "evt_1", "evt_2")
    assert (
        typed(line, "unpark", "--reason-code", "unmarked_object", "--reason", "the mark is read now", "--json")[0] == 0
    )
    assert line.shown == [({"unparked": 2}, True)]
    assert states(line) == ["pending", "pending"]


def past(*ids: str, more: bool = False) -> HistoryPage:
    return HistoryPage(
        events=[PastEvent(one, PAID, b"{}") for one in ids],
        unreadable=0,
        oldest=datetime(2026, 11, 1, tzinfo=UTC),
        after=ids[-1] if more else None,
    )


def test_backfill_stores_shows_counts_and_rings_once(line: Line) -> None:
    (known,) = worked_off(line, Done(), "evt_1")
    line.listed = [past("evt_3", "evt_2", more=True), past("evt_1")]
    assert typed(line, "backfill", "stripe", "--since", "3d", "--json") == (0, "")
    counts = {"looked_at": 3, "stored": 2, "already_there": 1, "owed": 2, "unreadable": 0}
    assert line.shown == [({"dry_run": False, **counts, "complete": True, "resume_until": None}, True)]
    ((topic, (event_id,)),) = line.doorbell.rings
    assert (topic, event_id > known, line.doorbell.flushed) == ("stripe.events.v1", True, True)
    assert states(line) == ["done", "pending", "pending"]
    (action,) = arranged(line, admin_actions, "rowclaim_reader")
    assert action == f"{actor()} backfill stripe {PAID}: to store what did not arrive"


async def admin_actions(db: Database) -> list[str]:
    found: list[str] = await db.value(
        "select array_agg(actor || ' ' || verb || ' ' || target || ': ' || reason) from admin_actions "
        "where after->>'looked_at' = '2'"
    )
    return found


def test_a_dry_run_of_a_backfill_writes_nothing_and_rings_for_nobody(line: Line) -> None:
    worked_off(line, Done(), "evt_1")
    line.listed = [past("evt_2", "evt_1")]
    assert typed(line, "backfill", "stripe", "--since", "3d", "--until", "1h", "--dry-run")[0] == 0
    ((shown, as_json),) = line.shown
    assert (cast(dict[str, object], shown)["stored"], as_json, line.doorbell.flushed) == (1, False, False)
    assert states(line) == ["done"]


def test_whatever_ends_a_backfill_early_tells_what_stands(line: Line) -> None:
    worked_off(line, Done(), "evt_1")
    line.listed = [past("evt_2", more=True), HistoryTrouble("no_answer")]
    done = CliRunner().invoke(
        make_commands(lambda: SERVICE, listing), ["backfill", "stripe", "--since", "3d"], obj=line
    )
    assert isinstance(done.exception, Retryable)
    assert done.exception.code.name == "backfill_unavailable"
    assert done.output == "stopped; 1 stored so far, run it again to go on\n", "and no progress in a pipe"
    assert states(line) == ["done", "pending"]
    assert line.shown == []


def test_a_backfill_of_too_much_tells_from_where_to_go_on(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_off(line, Done(), "evt_1")
    backfill = commands.backfill.backfill
    monkeypatch.setattr(commands.backfill, "backfill", lambda *a, **named: backfill(*a, **named, pages_max=1))
    line.listed = [past("evt_2", more=True)]
    code, output = typed(line, "backfill", "stripe", "--since", "3d")
    assert (code, output) == (0, "too many for one run; go on with --until 2026-11-01T00:00:00+00:00\n")
    ((shown, _),) = line.shown
    assert (cast(dict[str, object], shown)["complete"]) is False


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90m", timedelta(minutes=90)),
        ("3d", timedelta(days=3)),
        ("2w", timedelta(weeks=2)),
        ("45s", timedelta(seconds=45)),
        ("2026-11-30T12:00:00Z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2026-11-30T12:00", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2026-11-30T12:00+05:45", datetime(2026, 11, 30, 6, 15, tzinfo=UTC)),
    ],
)
def test_since_is_an_instant_or_how_long_ago(text: str, meant: datetime | timedelta) -> None:
    assert parse_when(text, "--since") == meant


@pytest.mark.parametrize("text", ["", "3", "d", "-3d", "3.5h", "1000000000000d", "٣d", "tomorrow"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_when(text, "--since")


def test_a_deliverys_name_has_both_parts() -> None:
    assert parse_delivery("12:fulfillment") == (12, "fulfillment")
    for text in ("", ":", "12:", ":fulfillment", "٣:x", "9" * 19 + ":x"):
        with pytest.raises(typer.BadParameter):
            parse_delivery(text)


def test_the_actor_is_who_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert actor().startswith("ada@")

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert actor().startswith(f"uid {os.getuid()}@")


def run_command_line(
    line: Line, *arguments: str, settings: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    """The console script's own process, against this test's database and without a broker."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROWCLAIM_")}
    own = {"ROWCLAIM_DATABASE_URL": line.url(), "ROWCLAIM_KAFKA_BOOTSTRAP": "127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-m", "services", *arguments],
        cwd=ROOT,
        env=inherited | {"ROWCLAIM_RUN": os.environ["ROWCLAIM_RUN"]} | own | dict(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_real_command_line_runs_them(line: Line) -> None:
    worked_off(line, Done(), "evt_1")
    done = run_command_line(line, *REPLAY, "--since", "1h", "--reason", "mails were lost", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["put_back"] == 1
    assert states(line) == ["pending"]
    refused = run_command_line(line, "unpark", "999:fulfillment", "--reason", "why not")
    assert refused.returncode == 65
    assert "delivery_not_parked: 999:fulfillment" in refused.stderr


async def test_the_real_command_line_backfills_from_stripe(line: Line, control: SandboxControl, urls: Urls) -> None:
    session = await control.do(CreateSession(session_params("octocat")))
    await control.do(CompleteSession(session["id"], email="buyer@example.com"))
    await asyncio.to_thread(worked_off, line, Done(), "evt_1")
    backfill = ("backfill", "stripe", "--since", "29d", "--json")
    unset = await asyncio.to_thread(run_command_line, line, *backfill)
    assert (unset.returncode, "backfill_unconfigured" in unset.stderr) == (78, True)
    key = {"ROWCLAIM_INGRESS_STRIPE_API_KEY": DEFAULT_KEY, "ROWCLAIM_INGRESS_STRIPE_API_URL": urls.stripe}
    done = await asyncio.to_thread(run_command_line, line, *backfill, settings=key)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stored"] == 1
    assert await asyncio.to_thread(states, line) == ["done", "pending"]
    wrong = {**key, "ROWCLAIM_INGRESS_STRIPE_API_KEY": "sk_test_wrong"}
    refused = await asyncio.to_thread(run_command_line, line, *backfill, settings=wrong)
    assert (refused.returncode, "backfill_refused: 401" in refused.stderr) == (78, True)
    assert "sk_test_wrong" not in refused.stderr
    old = await asyncio.to_thread(run_command_line, line, *backfill[:3], "31d", settings=key)
    assert (old.returncode, "backfill_window" in old.stderr) == (65, True)
