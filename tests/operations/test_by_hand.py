"""`rowclaim gate`, `pause` and `pages`: done by hand under the operators' role, and kept with the reason."""

import json
from datetime import timedelta
from typing import Any

import pytest

from services.kernel.gate import Gates
from services.kernel.pager import Pager, Severity
from services.operations import gates
from services.operations.paging import LogSender, send_unsent
from tests.fixtures.database import Clock, Connect
from tests.operations.conftest import Ended, MakeTerminal, RunCommand


@pytest.fixture(autouse=True)
def vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this installation calls."""
    monkeypatch.setattr(gates, "VENDORS", {"github", "pagerduty", "stripe"})


async def recorded(owner: Any) -> list[tuple[Any, ...]]:
    columns = "verb, target, reason, before->>'closed_until' is not null, after->>'closed_until' is not null"
    return [tuple(row) for row in await owner.fetch(f"select {columns} from admin_actions order by id")]


async def test_a_gate_is_closed_and_opened_with_a_reason(
    make_terminal: MakeTerminal, run_command: RunCommand, connect: Connect, owner: Any
) -> None:
    line = make_terminal()
    closed = await run_command(
        line, "gate", "close", "github", "--minutes", "30", "--reason", "token rotated", "--json"
    )
    assert closed.code == 0
    assert json.loads(closed.out)["vendor"] == "github"
    gated = Gates(await connect("rowclaim_fulfillment"))
    assert await gated.closed_until("github") is not None
    wait = await owner.fetchval("select closed_until - rowclaim_now() from vendor_gates")
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30)
    listed = await run_command(line, "gate", "list", "--json")
    shown = [(gate["vendor"], gate["reason"]) for gate in json.loads(listed.out)]
    assert shown == [("github", "token rotated"), ("pagerduty", None), ("stripe", None)]
    opened = await run_command(line, "gate", "open", "github", "--reason", "new token is in", "--json")
    assert (opened.code, json.loads(opened.out)["closed_until"]) == (0, None)
    assert await gated.closed_until("github") is None
    assert await recorded(owner) == [
        ("close_gate", "gate github", "token rotated", False, True),
        ("open_gate", "gate github", "new token is in", True, False),
    ]
    assert await owner.fetchval("select count(*) from admin_actions where actor = $1", line.actor) == 2


async def test_an_open_gate_cannot_be_opened(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any, clock: Clock
) -> None:
    line = make_terminal()
    ended = await run_command(line, "gate", "open", "github", "--reason", "r")
    assert (ended.code, ended.err.splitlines()[0]) == (65, "rowclaim: gate_not_closed: github")
    await run_command(line, "gate", "close", "github", "--reason", "r")
    await clock.shift(timedelta(minutes=16))
    assert (await run_command(line, "gate", "open", "github", "--reason", "r")).code == 65
    assert len(await recorded(owner)) == 1


@pytest.mark.parametrize("verb", [("gate", "close"), ("gate", "open"), ("pause",)])
async def test_a_vendor_that_nobody_calls_is_told(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any, verb: tuple[str, ...]
) -> None:
    ended = await run_command(make_terminal(), *verb, "gihtub", "--reason", "r")
    assert (ended.code, ended.err.splitlines()[0]) == (65, "rowclaim: vendor_unknown: gihtub")
    assert await recorded(owner) == []


async def test_all_vendors_are_paused_and_resumed_with_a_reason(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any
) -> None:
    line = make_terminal()
    paused = await run_command(line, "pause", "--reason", "an incident", "--minutes", "5", "--json")
    assert paused.code == 0
    shown = {gate["vendor"]: gate["closed_until"] is not None for gate in json.loads(paused.out)}
    assert shown == {"github": True, "pagerduty": False, "stripe": True}
    assert await owner.fetchval("select max(closed_until) - rowclaim_now() from vendor_gates") <= timedelta(minutes=5)
    table = (await run_command(line, "gate", "list")).out
    assert [row.split()[0] for row in table.splitlines()] == ["vendor", "github", "pagerduty", "stripe"]
    assert (await run_command(line, "pause", "pagerduty", "--reason", "a drill")).code == 0
    resumed = await run_command(line, "pause", "--resume", "--reason", "it is over", "--json")
    assert [gate["closed_until"] for gate in json.loads(resumed.out)] == [None, None, None]
    assert await recorded(owner) == [
        ("close_gate", "gate github", "an incident", False, True),
        ("close_gate", "gate stripe", "an incident", False, True),
        ("close_gate", "gate pagerduty", "a drill", False, True),
        ("open_gate", "gate github", "it is over", True, False),
        ("open_gate", "gate pagerduty", "it is over", True, False),
        ("open_gate", "gate stripe", "it is over", True, False),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause",),
        ("pause", "github", "--resume"),
        ("gate", "close", "github"),
        ("gate", "open", "github"),
        ("pages", "resolve", "k"),
        ("gate", "close", "github", "--reason", "r", "--minutes", "0"),
        ("gate", "close", "github", "--reason", "r", "--minutes", "nan"),
        ("gate", "close", "github", "--reason", ""),
        ("gate", "open", "github", "--reason", "  "),
        ("pause", "--reason", "r" * 501),
        ("pages", "resolve", "k", "--reason", ""),
        ("gate", "close", "github", "--reason", "a\udcffb"),
        ("pages", "resolve", "a\udcff", "--reason", "r"),
    ],
)
async def test_nothing_is_done_without_a_reason_or_a_time(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any, arguments: tuple[str, ...]
) -> None:
    assert (await run_command(make_terminal(), *arguments)).code == 2
    assert await recorded(owner) == []


async def test_what_cannot_be_recorded_is_not_done(
    make_terminal: MakeTerminal, run_command: RunCommand, owner: Any
) -> None:
    await owner.execute("revoke insert on admin_actions from rowclaim_service")
    with pytest.raises(Exception, match="permission denied for table admin_actions"):
        await run_command(make_terminal(), "gate", "close", "github", "--reason", "r")
    assert await owner.fetchval("select count(*) from vendor_gates where closed_until > rowclaim_now()") == 0


async def test_a_page_is_listed_and_resolved_with_a_reason(
    make_terminal: MakeTerminal, run_command: RunCommand, connect: Connect, owner: Any
) -> None:
    database = await connect("rowclaim_fulfillment")
    pager = Pager(database)
    await pager.page("crashed:consume:worker", Severity.CRITICAL, "task_crashed: worker")
    await pager.page("crashed:consume:worker", Severity.CRITICAL, "task_crashed: worker")
    line = make_terminal()
    (page,) = json.loads((await run_command(line, "pages", "list", "--json")).out)
    assert (page["dedup_key"], page["severity"], page["seen"], page["sent_at"]) == (
        "crashed:consume:worker",
        "critical",
        2,
        None,
    )
    ended = await run_command(line, "pages", "resolve", "crashed:consume:worker", "--reason", "repaired", "--json")
    assert (ended.code, json.loads(ended.out)) == (0, {"resolved": "crashed:consume:worker"})
    assert json.loads((await run_command(line, "pages", "list", "--json")).out) == []
    again: Ended = await run_command(line, "pages", "resolve", "crashed:consume:worker", "--reason", "repaired")
    assert (again.code, again.err.splitlines()[0]) == (65, "rowclaim: page_not_open: crashed:consume:worker")
    assert [row[:3] for row in await recorded(owner)] == [("resolve_page", "page crashed:consume:worker", "repaired")]
    # The pager is told of both, by whichever process sweeps next.
    assert [await send_unsent(database, LogSender()) for _ in range(3)] == [
        {"sent": 1, "failed": 0},
        {"sent": 1, "failed": 0},
        {"sent": 0, "failed": 0},
    ]
