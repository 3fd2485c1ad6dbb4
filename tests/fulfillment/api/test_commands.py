"""What an operator types, and what comes of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from services.fulfillment.api.commands import make_commands
from services.fulfillment.flow import operator
from services.fulfillment.flow.flush import FlushReport, Stopped
from services.fulfillment.flow.operator import Retriggered
from services.fulfillment.machine import FulfillmentState

UNTIL = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
REPORT = FlushReport(Stopped.GATE_CLOSED, UNTIL, attempted=3, delivered=1, failed=1, put_back=1, mails_sent=1)


@dataclass
class Typed:
    """A command line: what the commands asked of the slice, and what they showed."""

    asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    shown: list[tuple[Any, bool]] = field(default_factory=list)
    actor: str = "op@desk"

    def in_process(self, line: object, work: Callable[[Any], Awaitable[Any]]) -> Any:
        assert line is self
        pending = work(self)
        with pytest.raises(StopIteration) as done:
            pending.send(None)
        return done.value.value

    async def flush(self) -> FlushReport:
        self.asked.append(("flush", (), {}))
        return REPORT

    def show(self, result: object, *, as_json: bool) -> None:
        self.shown.append((result, as_json))

    def run(self, *arguments: str) -> Result:
        app = typer.Typer()
        app.add_typer(make_commands(self.in_process))
        return CliRunner().invoke(app, arguments, obj=self)


COUNTS = {"attempted": 3, "delivered": 1, "failed": 1, "put_back": 1, "mails_sent": 1, "mails_not_sent": 0}


@pytest.mark.parametrize("as_json", [False, True])
def test_flush_shows_counts_and_why_it_ended(as_json: bool) -> None:
    typed = Typed()
    assert typed.run("flush", *(["--json"] if as_json else [])).exit_code == 0
    assert typed.asked == [("flush", (), {})]
    assert typed.shown == [({"stopped": Stopped.GATE_CLOSED, "closed_until": UNTIL} | COUNTS, as_json)]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """A command line whose re-triggers are written down."""
    typed = Typed()

    async def retrigger(_: object, *given: Any, **named: Any) -> Retriggered:
        typed.asked.append(("retrigger", given, named))
        return Retriggered(given[0], FulfillmentState.FAILED, FulfillmentState.PENDING, REPORT)

    monkeypatch.setattr(operator, "retrigger", retrigger)
    return typed


def test_a_retrigger_says_who_typed_it_and_shows_how_the_purchase_stands(typed: Typed) -> None:
    assert typed.run("retrigger", "42").exit_code == 0
    assert typed.asked == [("retrigger", (42,), {"actor": "op@desk", "reason": None, "force": False})]
    ((shown, as_json),) = typed.shown
    assert shown == {"purchase": 42, "before": "failed", "after": "pending"} | {
        "stopped": "gate_closed",
        "closed_until": UNTIL,
        **COUNTS,
    }
    assert as_json is False


def test_force_and_its_reason_are_passed_on(typed: Typed) -> None:
    assert typed.run("retrigger", "42", "--force", "--reason", "mail never came", "--json").exit_code == 0
    ((_, _, named),) = typed.asked
    assert (named["force"], named["reason"]) == (True, "mail never came")
    assert typed.shown[0][1] is True


def test_attention_shows_what_needs_a_look(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_attention(fulfillment: object) -> list[str]:
        assert fulfillment is typed
        return ["what needs a look"]

    monkeypatch.setattr(operator, "list_attention", list_attention)
    assert typed.run("attention", "--json").exit_code == 0
    assert typed.shown == [(["what needs a look"], True)]


def test_a_purchase_is_a_number(typed: Typed) -> None:
    assert typed.run("retrigger", "octocat").exit_code == 2
    assert typed.asked == []
