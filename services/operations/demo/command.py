"""``rowclaim demo``: the whole story on this machine, with a verdict."""

import os
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
    if json_path is not None and not (json_path.parent.is_dir() and os.access(json_path.parent, os.W_OK)):
        # Said before the story is played, not after it.
        raise typer.BadParameter(f"{json_path.parent} is no directory we may write to", param_hint="--json")
    from services.operations.demo.play import play  # the embedded servers' packages are there for this command only

    terminal: Terminal = context.obj
    if not run_async(play(terminal, OUT, json_path=json_path, keep=keep)):
        raise typer.Exit(1)
