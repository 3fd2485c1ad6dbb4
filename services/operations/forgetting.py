"""``rowclaim forget USER``: a person's columns and the bodies that name them are blanked; ids, states, amounts stay.

The order is what makes it safe to be killed anywhere and run again, and what keeps a process that runs beside it from
writing the person back:

    1  every slice tells by what else the person is known; whatever of theirs is in progress refuses the whole
    2  who asked for it is written down
    3  bodies are blanked, while the slices still know what to look for; whoever claims one from here on finds it empty
    4  nobody is left who had read one before, or the command ends here and is run again
    5  every slice blanks its rows

A vendor keeps what it knows, and an event that it sends afterwards is a new one: run it again then.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote

import typer

from services.kernel.db import Tx
from services.kernel.errors import Retryable, Stop
from services.kernel.service import Personal, Service
from services.operations import retention_store as store
from services.operations.logs import configure_logging
from services.operations.process import Process
from services.operations.store import record_action
from services.operations.terminal import Terminal, run_async, said, working

PAGE: Final = 200
"""Bodies looked through by one statement; some are a megabyte, and it has five seconds."""
HELD_LOOKS: Final = 25
HELD_LOOK_S: Final = 0.2
"""A body that was read just before it was blanked is waited for so often, and so long each time: a handler takes less,
as a rule."""
WHOLE_BELOW: Final = 8
"""A trace of fewer characters is one only where it is a whole text of the body."""


def forget(
    context: typer.Context,
    user: Annotated[str, typer.Argument(help="The user's id.")],
    reason: Annotated[str, typer.Option("--reason", callback=said, help="Why; kept with your name. Name nobody else.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The counts as JSON.")] = False,
) -> None:
    """Blank what is kept of a person: columns of their rows, and stored events that name them. There is no way back."""
    terminal: Terminal = context.obj
    services = terminal.chosen(None, lambda service: service.personal)
    # No slice's own settings are asked for: nobody outside is called.
    loaded = terminal.load()
    configure_logging(loaded.settings.log_level, process="forget", run=loaded.settings.run)

    async def work() -> dict[str, object]:
        async with Process.open("forget", services, loaded, terminal.make_sender) as process:
            asked = Asked(user, terminal.actor, reason, dry_run)
            counts = await forget_person(process, services, asked)
            return {"user": user, "dry_run": dry_run, **counts}

    with working("forgetting"):
        forgotten = run_async(work())
    terminal.show(forgotten, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom somebody wants forgotten, who that is, and why."""

    user_id: str
    actor: str
    reason: str
    dry_run: bool


async def forget_person(process: Process, services: Sequence[Service], asked: Asked) -> dict[str, int]:
    """Rows blanked, by table. A dry run writes nothing, counts and refuses the same.

    Raises Stop("forget_unknown"), Retryable("forget_in_progress"): in the latter case it is to be run again.
    """
    tx = await process.database(store.RETENTION_ROLE)
    slices = [service.personal for service in services if service.personal is not None]
    known = frozenset[str]().union(*[await slice_.traces(process, asked.user_id) for slice_ in slices])
    person = Person(known | {asked.user_id})
    if (held := await find_held(tx, person)) is not None:
        raise Retryable("forget_in_progress", held)
    would = await _blank_rows(process, slices, asked.user_id, dry_run=True)
    if asked.dry_run or not known:
        would["event_bodies"] = await blank_bodies(tx, person, dry_run=True)
        if not known and not would["event_bodies"]:
            raise Stop("forget_unknown")
        if asked.dry_run:
            return would
    await _record(tx, asked, "forget", {})
    bodies = await blank_bodies(tx, person, dry_run=False)
    await until_nobody_holds_what_was_forgotten(tx)
    done = await _blank_rows(process, slices, asked.user_id, dry_run=False) | {"event_bodies": bodies}
    await _record(tx, asked, "forgotten", done)
    return done


async def _blank_rows(process: Process, slices: Iterable[Personal], user_id: str, *, dry_run: bool) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for slice_ in slices:
        counts.update(await slice_.blank(process, user_id, dry_run=dry_run))
    return dict(counts)


async def _record(tx: Tx, asked: Asked, verb: str, after: dict[str, int]) -> None:
    await record_action(
        tx, actor=asked.actor, verb=verb, target=f"user {asked.user_id}", reason=asked.reason, before={}, after=after
    )


# --------------------------------------------------------------------------------------------- what names the person
class Person:
    """By what a person is known: texts, as a body may hold them."""

    def __init__(self, traces: frozenset[str]) -> None:
        written = {form: trace for trace in sorted(traces) if trace for form in _forms(trace)}
        self.forms = [form.encode() for form in written]
        self._pattern = re.compile(b"|".join(_pattern(form, trace) for form, trace in written.items()))

    def is_named(self, body: bytes) -> bool:
        """Whether a body names this person, and not somebody whose id or address only contains theirs."""
        return self._pattern.search(body) is not None


def _forms(trace: str) -> set[str]:
    """A text as it is, as JSON escapes it, and as an address escapes it."""
    return {trace, json.dumps(trace)[1:-1], quote(trace, safe="")}


def _pattern(form: str, trace: str) -> bytes:
    text = re.escape(form.encode())
    if len(trace) < WHOLE_BELOW:
        return b'"' + text + b'"'
    # An escaped line break before it ends with a letter, and is none of its own.
    before, after = rb"(?:(?<![0-9A-Za-z])|(?<=\\[bfnrt]))", rb"(?![0-9A-Za-z])"
    if "@" in trace:  # mary.ann@example.com is somebody else than ann@example.com, and so is ann@example.com.au
        before, after = rb"(?:(?<![0-9A-Za-z._+-])|(?<=\\[bfnrt]))", rb"(?![0-9A-Za-z]|[.-][0-9A-Za-z])"
    return before + text + after


# ------------------------------------------------------------------------------- the bodies, and who may write back
async def blank_bodies(tx: Tx, person: Person, *, dry_run: bool, page: int = PAGE) -> int:
    """Blank every stored body that names the person, page by page, each in a commit of its own; how many."""
    blanked = after = 0
    while (last := await store.find_last_of_page(tx, after=after, page=page)) is not None:
        listed = await store.list_naming(tx, person.forms, after=after, last=last)
        found = [one for one in listed if person.is_named(one.body)]
        blanked += len(found) if dry_run else await store.blank_bodies(tx, found)
        after = last
    return blanked


async def find_held(tx: Tx, person: Person) -> str | None:
    """A delivery in progress whose body names the person, or None."""
    held = await store.list_held(tx, person.forms)
    return next((f"delivery {one.event_id}:{one.consumer}" for one in held if person.is_named(one.body)), None)


async def until_nobody_holds_what_was_forgotten(
    tx: Tx, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Return when no delivery of a blank body is in progress. Raises Retryable("forget_in_progress") if one stays.

    Whoever claimed it before it was blanked may have read it; who did so after finds it empty, and parks it at once.
    """
    for look in range(HELD_LOOKS, 0, -1):
        held = await store.find_forgotten_and_held(tx)
        if held is None:
            return
        if look == 1:
            raise Retryable("forget_in_progress", f"delivery {held}")
        await pause(HELD_LOOK_S)
