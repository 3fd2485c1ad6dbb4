"""The command line holds ours and the slices' commands, at one level and each once."""

from dataclasses import replace

import typer
from typer.main import get_command

from services.__main__ import discover
from services.operations.command_line import make_app
from services.operations.terminal import Terminal
from tests.operations.conftest import TOY, log_sender

OURS = {
    *("up", "demo", "token", "migrate", "topics", "doctor", "serve", "consume", "sweep", "pause", "gate", "pages"),
    *("forget", "prune", "reference", "schemas", "openapi", "asyncapi"),
}


def names(terminal: Terminal) -> list[str]:
    command = get_command(make_app(terminal))
    return list(command.commands)


def test_every_command_of_this_folder_is_there() -> None:
    assert set(names(Terminal((), log_sender, {}))) == OURS


def test_a_slices_commands_stand_beside_ours() -> None:
    commands = typer.Typer()
    group = typer.Typer()

    @commands.command("wave")
    def wave() -> None:
        """Wave."""

    @group.command("deep")
    def deep() -> None:
        """Deep."""

    commands.add_typer(group, name="group")
    card = replace(TOY, commands=commands)
    assert set(names(Terminal((card,), log_sender, {}))) == OURS | {"wave", "group"}


def test_no_two_commands_of_this_release_share_a_name() -> None:
    # A command that comes later takes an equal name over without a word.
    brought = [name for service in discover() if service.commands for name in registered(service.commands)]
    assert {"flush", "retrigger", "replay", "unpark"} <= set(brought)
    assert sorted([*OURS, *brought]) == sorted(names(Terminal(discover(), log_sender, {})))


def registered(app: typer.Typer) -> list[str]:
    alone = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    return alone + [group.name for group in app.registered_groups if group.name]


def test_every_command_says_what_it_does() -> None:
    command = get_command(make_app(Terminal(discover(), log_sender, {})))
    for name, one in command.commands.items():
        assert one.help, name
