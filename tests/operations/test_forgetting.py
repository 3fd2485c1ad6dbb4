"""``rowclaim forget``: what is blanked, in which order, what refuses it, and that a second run completes a first."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from services.ingress import store as ingress_store
from services.ingress.store import Arrival
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import Delivery, DeliveryWorker, Done, Verdict, claim_deliveries, finish_deliveries
from services.kernel.errors import Retryable
from services.kernel.inbox import Subscription
from services.kernel.service import Personal, Runtime, Service
from services.operations import forgetting
from services.operations.forgetting import Person, blank_bodies, until_nobody_holds_what_was_forgotten
from tests.fixtures.database import Connect, Connection, DatabaseUrl
from tests.operations.conftest import MakeTerminal, OtherSettings, RunCommand, ToySettings

KIND = "paid"
FORGET = ("forget", "user_ann", "--reason", "asked by letter", "--json")


# ------------------------------------------------------------------------------------------------- what names a person
@pytest.mark.parametrize(
    "body",
    [
        '{"id": "user_2ann"}',
        '{"text": "order-user_2ann-7"}',
        '{"email":"ann@example.com"}',
        '{"from": "Ann <ann@example.com>"}',
        '{"text": "Mail ann@example.com."}',
        '{"text": "line\\nann@example.com\\nline"}',
        '{"url": "https://example.com/?mail=ann%40example.com&x=1"}',
        '{"name": "J\\u00fcrgen Example"}',
        '{"name": "Jürgen Example"}',
        '{"short": "u7"}',
        "user_2ann",
    ],
)
def test_a_body_that_names_a_person_does(body: str) -> None:
    person = Person(frozenset({"user_2ann", "ann@example.com", "Jürgen Example", "u7"}))
    assert person.is_named(body.encode())
    assert any(form in body.encode() for form in person.forms), "the coarse look finds it too"


@pytest.mark.parametrize(
    "body",
    [
        '{"id": "user_2anna"}',
        '{"id": "xuser_2ann"}',
        '{"email": "joann@example.com"}',
        '{"email": "mary.ann@example.com"}',
        '{"email": "mary-ann@example.com"}',
        '{"email": "ann@example.com.au"}',
        '{"email": "ann@example.commerce"}',
        '{"text": "u7 is short", "id": "u77"}',
        "{}",
        "",
    ],
)
def test_a_body_that_names_somebody_else_does_not(body: str) -> None:
    assert not Person(frozenset({"user_2ann", "ann@example.com", "u7"})).is_named(body.encode())


def test_nothing_is_no_trace() -> None:
    assert not Person(frozenset({"", "user_ann"})).is_named(b'{"id": "", "user": "user_bob"}')


# ------------------------------------------------------------------------------------------------------------ the toys
@dataclass
class Rows:
    """A slice's rows by user, each with an address: what a slice may know of people."""

    addresses: dict[str, str | None]
    held: bool = False
    done: list[tuple[str, bool]] = field(default_factory=list)
    dies: bool = False

    async def traces(self, _: Runtime, user_id: str) -> frozenset[str]:
        if user_id not in self.addresses:
            return frozenset()
        address = self.addresses[user_id]
        return frozenset({user_id} if address is None else {user_id, address})

    async def blank(self, _: Runtime, user_id: str, *, dry_run: bool) -> Mapping[str, int]:
        self.done.append((user_id, dry_run))
        if self.held:
            raise Retryable("forget_in_progress", "row 7")
        if self.dies and not dry_run:
            raise Retryable("database_unavailable")
        known = self.addresses.get(user_id) is not None
        if known and not dry_run:
            self.addresses[user_id] = None
        return {"rows": int(known)}

    def card(self, name: str = "fulfillment") -> Service:
        return Service(name=name, settings=ToySettings, personal=Personal(self.traces, self.blank))


@pytest.fixture
def rows() -> Rows:
    return Rows({"user_ann": "ann@example.com", "user_bob": "bob@example.com"})


@pytest.fixture
async def retention(connect: Connect) -> Database:
    return await connect("rowclaim_retention")


BODIES = {
    "by_id": b'{"user": "user_ann"}',
    "by_address": b'{"email": "ann@example.com"}',
    "of_another": b'{"email": "joann@example.com", "user": "user_bob"}',
    "of_nobody": b"{}",
}


@pytest.fixture
async def events(connect: Connect) -> dict[str, int]:
    """Stored events by name, owed to fulfillment."""
    await inbox.subscribe(await connect("rowclaim_fulfillment"), "fulfillment", [Subscription("stripe", KIND)])
    ingress = await connect("rowclaim_ingress")
    arrived = await ingress_store.arrive(ingress, [Arrival("stripe", n, KIND, body) for n, body in BODIES.items()])
    return {name: arrived["stripe", name].event_id or 0 for name in BODIES}


async def bodies(owner: Connection) -> dict[str, bytes]:
    query = "select e.external_id, b.body from event_ids e join event_bodies b on b.event_id = e.id"
    return {row["external_id"]: row["body"] for row in await owner.fetch(query)}


async def actions(owner: Connection) -> list[tuple[str, str, str, str, Any]]:
    rows = await owner.fetch("select actor, verb, target, reason, before, after from admin_actions order by id")
    assert all(row["before"] == "{}" for row in rows)
    return [(r["actor"], r["verb"], r["target"], r["reason"], json.loads(r["after"])) for r in rows]


FORGOTTEN = BODIES | {"by_id": b"", "by_address": b""}


# --------------------------------------------------------------------------------------------------------- the command
async def test_a_person_is_blanked_in_every_slice_and_every_body(
    make_terminal: MakeTerminal, run_command: RunCommand, rows: Rows, events: dict[str, int], owner: Connection
) -> None:
    also = Rows({"user_ann": "Ann Example"})
    line = make_terminal(rows.card(), also.card("ingress"))
    ended = await run_command(line, *FORGET)
    assert ended.code == 0, ended.err
    counts = {"rows": 2, "event_bodies": 2}
    assert json.loads(ended.out) == {"user": "user_ann", "dry_run": False, **counts}
    assert (rows.addresses, also.addresses) == ({"user_ann": None, "user_bob": "bob@example.com"}, {"user_ann": None})
    assert await bodies(owner) == FORGOTTEN
    asked = (line.actor, "forget", "user user_ann", "asked by letter", {})
    assert await actions(owner) == [asked, (line.actor, "forgotten", *asked[2:4], counts)]
    assert "example.com" not in str(await owner.fetch("select actor, target, before, after from admin_actions"))
    assert await owner.fetchval("select count(*) from webhook_deliveries where state = 'pending'") == 4

    again = await run_command(line, *FORGET)
    assert (again.code, json.loads(again.out)["event_bodies"], json.loads(again.out)["rows"]) == (0, 0, 0)


async def test_a_dry_run_counts_the_same_and_writes_nothing(
    make_terminal: MakeTerminal, run_command: RunCommand, rows: Rows, events: dict[str, int], owner: Connection
) -> None:
    ended = await run_command(make_terminal(rows.card()), *FORGET, "--dry-run")
    assert (ended.code, json.loads(ended.out)) == (
        0,
        {"user": "user_ann", "dry_run": True, "rows": 1, "event_bodies": 2},
    )
    assert rows.done == [("user_ann", True)]
    assert await bodies(owner) == BODIES
    assert await actions(owner) == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
async def test_whom_nobody_knows_is_refused(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    rows: Rows,
    events: dict[str, int],
    owner: Connection,
    more: tuple[str, ...],
) -> None:
    ended = await run_command(make_terminal(rows.card()), "forget", "user_an", "--reason", "r", *more)
    assert (ended.code, ended.err.splitlines()[0]) == (65, "rowclaim: forget_unknown")
    assert await bodies(owner) == BODIES
    assert await actions(owner) == []


async def test_whom_only_a_stored_event_names_is_forgotten_there(
    make_terminal: MakeTerminal, run_command: RunCommand, events: dict[str, int], owner: Connection
) -> None:
    line = make_terminal(Rows({}).card())
    dry = await run_command(line, *FORGET, "--dry-run")
    ended = await run_command(line, *FORGET)
    assert json.loads(dry.out)["event_bodies"] == json.loads(ended.out)["event_bodies"] == 1
    assert await bodies(owner) == BODIES | {"by_id": b""}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
async def test_what_a_slice_has_in_progress_refuses_before_anything_is_written(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    rows: Rows,
    events: dict[str, int],
    owner: Connection,
    more: tuple[str, ...],
) -> None:
    rows.held = True
    ended = await run_command(make_terminal(rows.card()), *FORGET, *more)
    assert (ended.code, ended.err.splitlines()[0]) == (75, "rowclaim: forget_in_progress: row 7")
    assert await bodies(owner) == BODIES
    assert await actions(owner) == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
async def test_an_event_in_progress_refuses_before_anything_is_written(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    rows: Rows,
    events: dict[str, int],
    owner: Connection,
    connect: Connect,
    more: tuple[str, ...],
) -> None:
    """Whoever works on it has read the person, and may write them anywhere. Others' events do not matter."""
    db = await connect("rowclaim_fulfillment")
    claimed = await claim_deliveries(db, "fulfillment", limit=9, lease=timedelta(minutes=1), floor=None)
    mine = [one for one in claimed if one.event_id == events["by_address"]]
    await finish_deliveries(db, "fulfillment", [(one, Done()) for one in claimed if one.event_id == events["by_id"]])
    line = make_terminal(rows.card())
    ended = await run_command(line, *FORGET, *more)
    told = f"rowclaim: forget_in_progress: delivery {events['by_address']}:fulfillment"
    assert (ended.code, ended.err.splitlines()[0]) == (75, told)
    assert (rows.done, await bodies(owner), await actions(owner)) == ([], BODIES, [])
    await finish_deliveries(db, "fulfillment", [(one, Done()) for one in mine])
    assert (await run_command(line, *FORGET)).code == 0
    assert await bodies(owner) == FORGOTTEN


async def test_killed_before_the_rows_were_blanked_a_second_run_still_knows_what_to_look_for(
    make_terminal: MakeTerminal, run_command: RunCommand, rows: Rows, events: dict[str, int], owner: Connection
) -> None:
    rows.dies = True
    line = make_terminal(rows.card())
    assert (await run_command(line, *FORGET)).code == 75
    assert [action[1] for action in await actions(owner)] == ["forget"], "who asked stands before anything is blanked"
    assert (await bodies(owner), rows.addresses["user_ann"]) == (FORGOTTEN, "ann@example.com")
    rows.dies = False
    assert (await run_command(line, *FORGET)).code == 0
    assert rows.addresses["user_ann"] is None
    assert [action[1] for action in await actions(owner)] == ["forget", "forget", "forgotten"]


async def test_killed_between_two_bodies_a_second_run_blanks_the_rest(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    rows: Rows,
    events: dict[str, int],
    owner: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blank, blanked = forgetting.store.blank_bodies, 0
    monkeypatch.setattr(forgetting, "blank_bodies", partial(blank_bodies, page=1))

    async def once(tx: Any, naming: Sequence[Any]) -> int:
        nonlocal blanked
        if blanked:
            raise Retryable("database_unavailable")
        blanked += await blank(tx, naming)
        return blanked

    monkeypatch.setattr(forgetting.store, "blank_bodies", once)
    line = make_terminal(rows.card())
    assert (await run_command(line, *FORGET)).code == 75
    assert list((await bodies(owner)).values()).count(b"") == 1
    assert rows.addresses["user_ann"] == "ann@example.com"
    monkeypatch.setattr(forgetting.store, "blank_bodies", blank)
    assert (await run_command(line, *FORGET)).code == 0
    assert await bodies(owner) == FORGOTTEN


@pytest.mark.parametrize("arguments", [("forget", "user_ann"), ("forget", "user_ann", "--reason", " "), ("forget",)])
async def test_nothing_is_forgotten_without_a_name_and_a_reason(
    make_terminal: MakeTerminal, run_command: RunCommand, rows: Rows, arguments: tuple[str, ...]
) -> None:
    assert (await run_command(make_terminal(rows.card()), *arguments)).code == 2
    assert rows.done == []


async def test_nobody_is_asked_for_a_vendors_key(make_terminal: MakeTerminal, run_command: RunCommand) -> None:
    """Forgetting calls nobody outside: the slices' own settings are not read."""
    rows = Rows({"user_ann": None})
    card = Service(name="ingress", settings=OtherSettings, personal=Personal(rows.traces, rows.blank))
    ended = await run_command(make_terminal(card), *FORGET)
    assert ended.code == 0, ended.err


async def test_an_installation_whose_slices_know_nobody_says_so(
    make_terminal: MakeTerminal, run_command: RunCommand
) -> None:
    ended = await run_command(make_terminal(), *FORGET)
    assert (ended.code, ended.err.splitlines()[0]) == (64, "rowclaim: slice_unknown: none; there are: none")


# ---------------------------------------------------------------------------------------------- bodies, page by page
@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_every_page_is_looked_through(
    retention: Database, events: dict[str, int], owner: Connection, page: int
) -> None:
    person = Person(frozenset({"user_ann", "ann@example.com"}))
    assert await blank_bodies(retention, person, dry_run=True, page=page) == 2
    assert await bodies(owner) == BODIES
    assert await blank_bodies(retention, person, dry_run=False, page=page) == 2
    assert await bodies(owner) == FORGOTTEN
    assert await blank_bodies(retention, person, dry_run=False, page=page) == 0


async def test_a_forgotten_event_that_was_owed_is_shown_and_never_handled(
    retention: Database, events: dict[str, int], owner: Connection, connect: Connect
) -> None:
    await blank_bodies(retention, Person(frozenset({"user_ann", "ann@example.com"})), dry_run=False)
    seen: list[str] = []

    async def handle(batch: Sequence[Delivery]) -> dict[int, Verdict]:
        seen.extend(delivery.external_id for delivery in batch)
        return {delivery.event_id: Done() for delivery in batch}

    db = await connect("rowclaim_fulfillment")
    await DeliveryWorker(db, "fulfillment", handle, lease=timedelta(seconds=30), batch_max=9).step()
    assert sorted(seen) == ["of_another", "of_nobody"]
    shown = await owner.fetch("select id, why from desk.ingress_parked order by id")
    names = [f"{events[name]}:fulfillment" for name in ("by_address", "by_id")]
    assert sorted(tuple(row) for row in shown) == sorted((name, "forgotten") for name in names)


# --------------------------------------------------------------------------------------------------- who may write back
async def test_who_read_a_body_before_it_was_blanked_is_waited_for(
    retention: Database, events: dict[str, int], connect: Connect
) -> None:
    db = await connect("rowclaim_fulfillment")
    claimed = await claim_deliveries(db, "fulfillment", limit=9, lease=timedelta(minutes=1), floor=None)
    mine = [one for one in claimed if one.event_id == events["by_id"]]
    await blank_bodies(retention, Person(frozenset({"user_ann"})), dry_run=False)
    waits = 0

    async def finish(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            await finish_deliveries(db, "fulfillment", [(one, Done()) for one in mine])
        await asyncio.sleep(0)

    await until_nobody_holds_what_was_forgotten(retention, pause=finish)
    assert waits == 3, "others' deliveries in progress are not waited for"


async def test_who_keeps_it_for_long_ends_the_command_before_the_rows_are_blanked(
    retention: Database, events: dict[str, int], connect: Connect
) -> None:
    db = await connect("rowclaim_fulfillment")
    await claim_deliveries(db, "fulfillment", limit=9, lease=timedelta(minutes=1), floor=None)
    await blank_bodies(retention, Person(frozenset({"user_ann"})), dry_run=False)
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    with pytest.raises(Retryable, match=f"forget_in_progress: delivery {events['by_id']}:fulfillment"):
        await until_nobody_holds_what_was_forgotten(retention, pause=pause)
    assert 4 < sum(waits) <= 5


async def test_a_claim_between_the_look_and_the_blanking_is_noticed(
    make_terminal: MakeTerminal,
    run_command: RunCommand,
    rows: Rows,
    events: dict[str, int],
    database_url: DatabaseUrl,
    owner: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has read the body; until it ended, the rows are not blanked, or it might write the person back after that."""
    monkeypatch.setattr(forgetting, "HELD_LOOK_S", 0.0)
    look = forgetting.find_held

    async def then_claimed(tx: Any, person: Person) -> str | None:
        held = await look(tx, person)
        db = await Database.connect(database_url("rowclaim_fulfillment"), size_max=1)
        await claim_deliveries(db, "fulfillment", limit=9, lease=timedelta(minutes=1), floor=None)
        await db.close()
        return held

    monkeypatch.setattr(forgetting, "find_held", then_claimed)
    ended = await run_command(make_terminal(rows.card()), *FORGET)
    assert (ended.code, "forget_in_progress" in ended.err) == (75, True)
    assert (await bodies(owner), rows.addresses["user_ann"]) == (FORGOTTEN, "ann@example.com")
    assert rows.done == [("user_ann", True)]
