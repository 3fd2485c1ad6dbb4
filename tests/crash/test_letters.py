"""The toy under the sweep; and flows broken on purpose, which the sweep must not let pass."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from services.kernel.claim import WORKER
from services.kernel.db import Database
from services.kernel.doors import Door
from services.vendors.http import http_client
from services.vendors.smtp import SmtpServer
from tests.conformance.test_letters import TOY
from tests.conformance.toy import store
from tests.conformance.toy.flow import LEASE, Outcome, Posted, flush
from tests.conformance.toy.gateway import PostOffice, tell
from tests.crash.child import Ended, Point
from tests.crash.outside import OutsideUrls, outside
from tests.crash.plugin import Record
from tests.crash.sweep import Make, World, sweep
from tests.fixtures.database import Server

REFERENCES = ("a", "b")
Flow = Callable[["Letters"], Awaitable[None]]


def plain_client() -> httpx.AsyncClient:
    """Without TLS, whose certificates take a fresh process 80 ms to read."""
    return http_client(httpx.AsyncHTTPTransport(verify=False))


async def as_designed(world: "Letters") -> None:
    async with plain_client() as client:
        database = await Database.connect(world.url(TOY.role), size_max=2)
        mail = SmtpServer(world.out.smtp)
        await flush(database, PostOffice(client, world.out.office), lambda reference: tell(mail, reference))
        await database.close()


@dataclass(frozen=True, slots=True)
class Letters(World):
    """Two letters due, a post office, a mail server."""

    server: Server
    database: str
    out: OutsideUrls
    runs: Flow = as_designed
    reaps: bool = True

    def url(self, role: str) -> str:
        return self.server.url(self.database, role=role)

    async def arrange(self) -> None:
        owner = await asyncpg.connect(self.server.url(self.database))
        await owner.execute(TOY.schema)
        await owner.close()
        database = await Database.connect(self.url(TOY.role))
        for reference in REFERENCES:
            assert await store.write(database, reference, "street 1")
        await database.close()

    async def flow(self) -> None:
        await self.runs(self)

    async def redrive(self) -> None:
        """The lease of whoever died is over, the reaper has come by, another worker flushes."""
        owner = await asyncpg.connect(self.server.url(self.database))
        await owner.execute(
            "update letters set lease_until = rowclaim_now() - interval '1 s' where state = 'in_progress'"
        )
        await owner.close()
        if self.reaps:
            database = await Database.connect(self.url(TOY.role))
            await store.reap(database, 100)
            await database.close()
        await self.runs(self)

    def judge(self, killed: tuple[Ended, ...]) -> list[str]:
        cuts = [end.crossed[-1] for end in killed]
        log = self.out.log()
        wrong = []
        if (states := asyncio.run(self.states())) != dict.fromkeys(REFERENCES, "posted"):
            wrong.append(f"rows ended {states}")
        if sorted(log.posted) != sorted(REFERENCES):
            wrong.append(f"the office posted {log.posted}")
        if len(log.asked) > len(REFERENCES) + sum(repeats(cut) for cut in cuts):
            wrong.append(f"the office was asked {log.asked}")
        lost = [reference for reference in REFERENCES if f"<letter-{reference}@example.com>" not in log.mails]
        if len(log.mails) != len(set(log.mails)):
            wrong.append(f"mails {log.mails}")
        if len(lost) != sum(loses_a_mail(cut) for cut in cuts):
            wrong.append(f"no mail for {lost}")
        return wrong

    async def states(self) -> dict[str, str]:
        owner = await asyncpg.connect(self.server.url(self.database))
        rows = await owner.fetch("select reference, state from letters order by reference")
        await owner.close()
        return {row["reference"]: row["state"] for row in rows}

    def seen_outside(self) -> Mapping[Door, int]:
        log = self.out.log()
        return {Door.HTTP: len(log.asked), Door.SMTP: len(log.mails)}


def repeats(cut: Point) -> bool:
    """Killed with the letter handed over and nothing written: only then is the office asked again."""
    return (cut.door, cut.moment) == (Door.HTTP, "after") or (cut.moment == "before" and "edge = 'post'" in cut.what)


def loses_a_mail(cut: Point) -> bool:
    """Killed with the outcome written and the mail not sent: a mail is never worth a second letter."""
    return (cut.door, cut.moment) == (Door.SMTP, "before") or (cut.moment == "after" and "edge = 'post'" in cut.what)


@pytest.fixture(scope="module")
def out() -> Iterator[OutsideUrls]:
    with outside() as urls:
        yield urls


@pytest.fixture
def make(migrated_server: Server, out: OutsideUrls) -> Callable[..., Make]:
    """``make(flow)()``: a world of its own for each kill."""

    def of(flow: Flow = as_designed, *, reaps: bool = True) -> Make:
        @contextmanager
        def world() -> Iterator[World]:
            out.forget()
            with migrated_server.copied() as name:
                letters = Letters(migrated_server, name, out, flow, reaps)
                asyncio.run(letters.arrange())
                yield letters

        return world

    return of


def test_no_kill_loses_or_doubles_a_letter(make: Callable[..., Make], record_points: Record) -> None:
    report = sweep(make())
    record_points("letters", report)
    assert report.faults == []
    assert report.points >= 20
    assert set(report.doors) == {Door.DATABASE, Door.HTTP, Door.SMTP}


# --------------------------------------------------------------------------------------------------- broken on purpose
async def hasty(world: Letters) -> None:
    """Writes the outcome before it has one."""
    database = await Database.connect(world.url(TOY.role))
    async with plain_client() as client:
        while claimed := await store.claim(database, 1, WORKER, LEASE):
            (letter,) = claimed
            await store.post(database, letter.id, letter.claim_token, "hoped for")
            await PostOffice(client, world.out.office).post(letter.reference, letter.address)
            await tell(SmtpServer(world.out.smtp), letter.reference)
    await database.close()


async def by_a_window(world: Letters) -> None:
    """Hands letters over by a connection of its own."""

    class Window(PostOffice):
        async def post(self, reference: str, address: str) -> Outcome:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(world.out.office).port)
            writer.write(f"PUT /letters/{reference} HTTP/1.1\r\nconnection: close\r\n\r\n".encode())
            stamp = (await reader.read()).decode().rpartition("\r\n")[2]
            writer.close()
            return Posted(stamp)

    database = await Database.connect(world.url(TOY.role))
    async with plain_client() as client:
        mail = SmtpServer(world.out.smtp)
        await flush(database, Window(client, ""), lambda reference: tell(mail, reference))
    await database.close()


async def never_ending(world: Letters) -> None:
    await as_designed(world)
    raise LookupError("planted")


def test_an_outcome_written_too_early_is_seen(make: Callable[..., Make]) -> None:
    faults = sweep(make(hasty), pairs=0, faults_max=1).faults
    assert any("after database" in fault and "the office posted" in fault for fault in faults)


def test_a_way_out_that_is_no_door_is_seen(make: Callable[..., Make]) -> None:
    faults = sweep(make(by_a_window), pairs=0, faults_max=1).faults
    assert "2 exchanges over http were seen outside, 0 at the door" in faults


def test_a_row_out_of_sight_is_seen(make: Callable[..., Make]) -> None:
    faults = sweep(make(reaps=False), pairs=0, faults_max=1).faults
    assert any("in_progress" in fault for fault in faults)


def test_a_flow_that_fails_by_itself_is_no_kill(make: Callable[..., Make]) -> None:
    with pytest.raises(AssertionError, match="planted"):
        sweep(make(never_ending))
