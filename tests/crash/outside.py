"""A post office and a mail server in a process of their own: they outlive whoever talks to them, and write all down."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from services.sandbox.embedded.process import free_ports
from tests.crash.child import forked


@dataclass(frozen=True, slots=True)
class Log:
    """References in the order in which the office was asked, those it posted, and the Message-IDs of mails."""

    asked: list[str]
    posted: list[str]
    mails: list[str]


@dataclass(frozen=True, slots=True)
class OutsideUrls:
    office: str
    smtp: str

    def log(self) -> Log:
        with urllib.request.urlopen(f"{self.office}/log") as answer:  # noqa: S310 - our own loopback server
            return Log(**json.load(answer))

    def forget(self) -> None:
        urllib.request.urlopen(f"{self.office}/forget").close()  # noqa: S310 - the same


class Books:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.posted: dict[str, str] = {}
        self.mails: list[str] = []

    async def serve_office(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """HTTP enough for one client: PUT /letters/REFERENCE, GET /log, GET /forget."""
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path, _ = head.decode().split(" ", 2)
            lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
            await reader.readexactly(int(lines.get("content-length", 0)))
            body = self._answer(method, path).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            if lines.get("connection") == "close":
                break
        writer.close()

    def _answer(self, method: str, path: str) -> str:
        if path == "/log":
            return json.dumps({"asked": self.asked, "posted": list(self.posted), "mails": self.mails})
        if path == "/forget":
            self.__init__()  # type: ignore[misc]  # as new: what the constructor sets is all there is
            return ""
        assert method == "PUT"
        reference = path.rpartition("/")[2]
        self.asked.append(reference)
        return self.posted.setdefault(reference, f"stamp {len(self.posted) + 1}")

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd
        content: Any = envelope.content
        self.mails.append(str(message_from_bytes(content)["Message-ID"]))
        return "250 OK"


@contextmanager
def outside() -> Iterator[OutsideUrls]:
    """Both servers in a process of their own, until the block ends."""
    office_at, mail_at = free_ports(2)

    @asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        books = Books()
        loop = asyncio.get_running_loop()
        office = await asyncio.start_server(_quietly(books), "127.0.0.1", office_at)
        mail = await loop.create_server(lambda: SMTP(books, hostname="localhost"), "127.0.0.1", mail_at)
        async with office, mail:
            yield

    with forked(serving):
        yield OutsideUrls(f"http://127.0.0.1:{office_at}", f"smtp://127.0.0.1:{mail_at}")


def _quietly(books: Books) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await books.serve_office(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the client was killed: what this is for

    return serve
