"""``rowclaim schemas`` and ``rowclaim asyncapi``: what others may rely on, written from the classes."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from schemas import publish
from services.kernel.errors import Stop
from services.operations.terminal import Terminal

GIT_S: Final = 30.0


def schemas(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is stale.")] = False,
    directory: Annotated[Path, typer.Option(help="Where the published files lie.")] = publish.DIRECTORY,
) -> None:
    """Write the JSON Schema of every topic and the AsyncAPI document; refuse what breaks a reader or a writer."""
    terminal: Terminal = context.obj
    promised = relied_on(directory) if check else [publish.read(directory)]
    if broken := sorted({reason for before in promised for reason in publish.broken(before, publish.render())}):
        raise Stop("schema_breaks", "; ".join(broken))
    if not check:
        terminal.show([{"file": str(directory / name)} for name in publish.write(directory)], as_json=False)
    elif stale := publish.stale(directory):
        raise Stop("schema_stale", ", ".join(stale))


def asyncapi() -> None:
    """The AsyncAPI document of all topics, to standard output."""
    typer.echo(publish.render()[publish.ASYNCAPI], nl=False)


def relied_on(directory: Path) -> list[Mapping[str, str]]:
    """The published files as they lie there, as the last commit has them and the last release, if git knows them."""
    release = _git(directory, "describe", "--tags", "--abbrev=0", "--match", "v*").strip()
    return [publish.read(directory), *(committed(directory, revision) for revision in ("HEAD", release) if revision)]


def committed(directory: Path, revision: str) -> dict[str, str]:
    """The files of a revision; none where there is no git, no clone, or no such folder then."""
    names = _git(directory, "ls-tree", "--name-only", revision, "./").split()
    return {name: _git(directory, "show", f"{revision}:./{name}") for name in names if name.endswith(".json")}


def _git(directory: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],  # noqa: S607 the developer's own git
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
