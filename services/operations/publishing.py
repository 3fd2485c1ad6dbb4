"""``rowclaim schemas`` and ``rowclaim asyncapi``: what others may rely on, written from the classes."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from schemas import publish
from services.kernel.errors import Stop
from services.operations.terminal import Terminal


def schemas(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is stale.")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", help="Also fail if the files of this directory would break.")
    ] = None,
) -> None:
    """Write schemas/published. A change that breaks who wrote or read by the former files is refused."""
    terminal: Terminal = context.obj
    for former in [publish.DIRECTORY, *([against] if against is not None else [])]:
        if reasons := publish.broken(publish.read(former), publish.render()):
            raise Stop("schema_breaks", "; ".join(reasons))
    if not check:
        terminal.show([{"written": name} for name in publish.write()], as_json=False)
    elif stale := publish.stale():
        raise Stop("schemas_stale", ", ".join(stale))


def asyncapi() -> None:
    """Print the AsyncAPI document of every topic."""
    sys.stdout.write(publish.render()[publish.ASYNCAPI])
