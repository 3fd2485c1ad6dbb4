"""What every command shares: who is asked, how a result is shown, how an end is told."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
import typer

from services.kernel.errors import Invariant, Refusal, Retryable, ServiceError, Stop
from services.kernel.service import CommandLine, Runtime
from services.operations import terminal as terminal_module
from services.operations.command_line import make_app
from services.operations.terminal import Terminal, finish, show, working
from tests.operations.conftest import OTHER, TOY, MakeTerminal, RunCommand, ToySettings, log_sender


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Row:
    name: str
    colour: Colour
    at: datetime | None


ROWS = [Row("first [bold]", Colour.RED, datetime(2026, 12, 1, 9, 30, tzinfo=UTC)), Row("x" * 200, Colour.RED, None)]


def test_a_script_gets_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, as_json=True)
    assert json.loads(capsys.readouterr().out)[0] == {
        "name": "first [bold]",
        "colour": "red",
        "at": "2026-12-01T09:30:00+00:00",
    }
    show({"deliveries": {"owed": 2}, "none": None}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"deliveries": {"owed": 2}, "none": None}


def test_eyes_get_a_table_or_lines_and_nothing_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, as_json=False)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "colour", "at"]
    assert first.split() == ["first", "[bold]", "red", "2026-12-01T09:30:00+00:00"]
    assert second.split() == ["x" * 200, "red", "-"]
    show({"owed": {"recent": 2, "last": 0}, "applied": ["a", "b"], "made": []}, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["owed     recent=2 last=0", "applied  a, b", "made     -"]
    show([], as_json=False)
    assert capsys.readouterr().out == "none\n"
    show(ROWS[0], as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "name    first [bold]",
        "colour  red",
        "at      2026-12-01T09:30:00+00:00",
    ]


def commands(work: Callable[[typer.Context], None]) -> typer.Typer:
    app = typer.Typer()
    app.command("toy")(work)
    return app


def console_script(terminal: Terminal, *arguments: str) -> int:
    return finish(make_app(terminal), terminal, arguments)


def end(work: Callable[[typer.Context], None]) -> int:
    """Run a slice's command ``toy`` to its end, without any environment."""
    terminal = Terminal((replace(TOY, commands=commands(work)),), log_sender, {})
    return console_script(terminal, "toy")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Stop("setting_invalid", "ROWCLAIM_HTTP_PORT"), 78),
        (Retryable("database_unavailable", "TimeoutError"), 75),
        (Invariant("row_shape", "Row"), 70),
        (Refusal("gate_not_closed", "github"), 65),
        (Refusal("request_invalid", "path"), 2),
    ],
)
def test_a_listed_failure_is_its_code_and_what_to_do(
    error: ServiceError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_: typer.Context) -> None:
        raise error

    assert end(work) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [f"rowclaim: {error.code.name}: {error.detail}", f"  {error.code.sentence}"]


def test_what_nobody_foresaw_keeps_its_traceback() -> None:
    def work(_: typer.Context) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        end(work)


def test_other_ends() -> None:
    def interrupted(_: typer.Context) -> None:
        raise KeyboardInterrupt

    def exiting(_: typer.Context) -> None:
        raise typer.Exit(3)

    def well(_: typer.Context) -> None:
        return

    assert [end(work) for work in (interrupted, exiting, well)] == [130, 3, 0]


def test_a_wrong_command_line_is_refused_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal((TOY,), log_sender, {})
    assert console_script(terminal, "bogus") == 2
    assert "bogus" in capsys.readouterr().err
    assert console_script(terminal, "serve", "--bogus") == 2


async def test_a_slices_command_runs_in_a_process_of_its_own(
    make_terminal: MakeTerminal, run_command: RunCommand
) -> None:
    async def work(runtime: Runtime) -> dict[str, object]:
        database = await runtime.database(TOY.role)
        return {"role": await database.value("select current_user::text"), "is_paged": await runtime.pager.resolve("k")}

    def toy(context: typer.Context) -> None:
        line: CommandLine = context.obj
        result = line.run(TOY, work)
        line.show({**result, "actor": line.actor}, as_json=True)

    ended = await run_command(make_terminal(replace(TOY, commands=commands(toy))), "toy")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["role"], told["is_paged"]) == ("rowclaim_fulfillment", False)
    assert told["actor"]


async def test_only_the_slice_it_runs_must_be_set(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    async def work(runtime: Runtime) -> dict[str, str]:
        return {"colour": runtime.slice_settings(ToySettings).colour}

    def toy(context: typer.Context) -> None:
        line: CommandLine = context.obj
        line.show(line.run(TOY, work), as_json=True)

    card = replace(TOY, commands=commands(toy))
    ended = await run_command(make_terminal(card, OTHER, FULFILLMENT_COLOUR="blue"), "toy")
    assert (ended.code, json.loads(ended.out)) == (0, {"colour": "blue"})
    ended = await run_command(make_terminal(card, OTHER, FULFILLMENT_COLOR="blue"), "toy")
    assert ended.code == 78
    assert "did you mean ROWCLAIM_FULFILLMENT_COLOUR?" in ended.err


def test_a_slice_is_chosen_by_name() -> None:
    async def consume(_: Runtime) -> Any:
        raise NotImplementedError

    able = replace(TOY, consume=consume)
    terminal = Terminal((able, OTHER), log_sender, {})
    assert terminal.chosen(None, lambda service: service.consume) == (able,)
    assert terminal.chosen("ingress", lambda _: True) == (OTHER,)
    with pytest.raises(Stop, match="slice_unknown: ingress; there are: fulfillment") as stopped:
        terminal.chosen("ingress", lambda service: service.consume)
    assert stopped.value.code.exit == 64
    with pytest.raises(Stop, match="slice_unknown: none; there are: none"):
        terminal.chosen(None, lambda service: service.routes)


def test_a_pipe_sees_no_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with working("counting sheep") as done:
        done()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(terminal_module.ERR, "_force_terminal", True)
    with working("counting sheep"):
        pass
    assert capsys.readouterr().err.startswith("\x1b[")
