"""``rowclaim demo``: the whole story on this machine, with a verdict."""

from pathlib import Path
from typing import Annotated

import typer

from services.operations.terminal import OUT, Terminal, run_async


def demo(
    context: typer.Context,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the verdict to this file.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep data and logs in this directory.")] = None,
) -> None:
    """Play the whole story on embedded servers, each service its own process; exit 0 only if all is as it must be."""
    from services.operations.demo.play import play  # the embedded servers' packages are there for this command only

    terminal: Terminal = context.obj
    if not run_async(play(terminal, OUT, json_path=json_path, keep=keep)):
        raise typer.Exit(1)
