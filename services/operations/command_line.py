"""The command line: the commands of this folder, and those the slices bring along on their cards."""

from collections.abc import Callable

import typer

from services.operations.by_hand import gate, pages, pause
from services.operations.consuming import consume, sweep
from services.operations.demo.command import demo
from services.operations.doctor import doctor
from services.operations.forgetting import forget
from services.operations.migrating import migrate, topics
from services.operations.minting import token
from services.operations.openapi import openapi
from services.operations.pruning import prune
from services.operations.publishing import asyncapi, schemas
from services.operations.reference import reference
from services.operations.serving import serve
from services.operations.terminal import Terminal
from services.operations.up import up


def make_app(terminal: Terminal) -> typer.Typer:
    """One typer app. A slice's commands stand at the top level beside ours; two of one name are a mistake."""
    app = typer.Typer(
        name="rowclaim",
        help="Event-driven consumers that converge on idempotent claims of database rows.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    ours: list[Callable[..., None]] = [up, demo, token, migrate, topics, doctor, serve, consume, sweep, pause]
    ours += [forget, prune, reference, schemas, openapi, asyncapi]
    for command in ours:
        app.command()(command)
    app.add_typer(gate, name="gate")
    app.add_typer(pages, name="pages")
    for service in terminal.services:
        if service.commands is not None:
            app.add_typer(service.commands)
    return app
