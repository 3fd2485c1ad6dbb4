"""Plays every story on one stage and gives the verdict; progress on a terminal, none in a pipe."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console
from rich.table import Table

from services.kernel.errors import ServiceError
from services.operations.demo.fulfillment import FulfillmentStory
from services.operations.demo.stage import Note, Stage, TooLate, set_up
from services.operations.demo.verdict import Check, Told, Verdict
from services.operations.terminal import Terminal
from services.sandbox.embedded.leftovers import find_run_processes
from services.sandbox.embedded.process import run_id


class Story(Protocol):
    """One slice's story: ``told`` holds what was seen so far, also when the story breaks off."""

    told: Told

    async def play(self) -> Told: ...


STORIES: Final[tuple[Callable[[Stage, Note], Story], ...]] = (FulfillmentStory,)


async def play(terminal: Terminal, console: Console, *, json_path: Path | None, keep: Path | None) -> bool:
    """Play, print the verdict, write it to ``json_path``; whether all is as it must be.

    ``keep`` is a directory for data and logs that stays; without one a temporary directory is used and removed when
    the verdict is good.
    """
    started = time.monotonic()
    told: list[Told] = []
    checks: list[Check] = []
    # In a shell with the settings of a running installation, its processes carry the name of our run as well.
    strangers = {pid for pid, _ in find_run_processes(run_id())}
    directory = keep or Path(tempfile.mkdtemp(prefix="rowclaim-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # the database may run as another user below it
    with _progress(console) as note:
        note("starting PostgreSQL, the broker, the vendors, and our services")
        async with set_up(terminal, directory) as stage:
            try:
                for story_of in STORIES:
                    story = story_of(stage, note)
                    told.append(story.told)
                    await story.play()
            except (TooLate, ServiceError) as broken:
                checks.append(Check("the story went on", False, str(broken)))
            note("stopping the services")
            await stage.whole.stop_services()
            badly = ", ".join(stage.whole.ended_badly)
            checks.append(Check("every service ended in order", not badly, badly or "exit 0"))
    left = [(pid, line) for pid, line in find_run_processes(run_id()) if pid not in strangers]
    checks.append(Check("no process is left", not left, f"{left}" if left else "none"))
    verdict = Verdict(
        time.monotonic() - started, tuple(told), (*(check for story in told for check in story.checks), *checks)
    )
    show(console, verdict, directory)
    if json_path is not None:
        verdict.write(json_path)
    return verdict.ok


def show(console: Console, verdict: Verdict, directory: Path) -> None:
    """The verdict for a person: a table a story, what is wrong, one last line."""
    for story in verdict.told:
        table = Table(title=story.name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for heading in ("what happened", "purchases", "what came of it", "seconds"):
            table.add_column(heading, justify="right" if heading in ("purchases", "seconds") else "left")
        for scene in story.scenes:
            table.add_row(scene.title, str(scene.purchases), scene.came_of_it, f"{scene.seconds:.1f}")
        console.print(table)
        console.print("  ".join(f"{name} {figure}" for name, figure in story.figures.items()), highlight=False)
        console.print()
    for check in verdict.checks:
        if check.ok:
            console.print(f"[green]ok[/]      {check.name}", highlight=False)
        else:
            console.print(f"[red]FAILED[/]  {check.name}: {check.detail}", highlight=False)
    good = sum(check.ok for check in verdict.checks)
    word = "[bold green]ok[/]" if verdict.ok else "[bold red]failed[/]"
    console.print(f"\nverdict: {word}  {good} of {len(verdict.checks)} checks, {verdict.seconds:.1f} s")
    if not verdict.ok:
        console.print(f"logs: {directory}")


@contextmanager
def _progress(console: Console) -> Iterator[Note]:
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update
