"""An SMTP server that keeps what it gets in memory and fails on request, on the running loop and without a thread."""

import asyncio
import email
import email.policy
from dataclasses import dataclass
from email.message import EmailMessage
from enum import StrEnum
from typing import cast

from services.sandbox.embedded.packages import MAIL_PACKAGE, PackageMissing
from services.sandbox.embedded.process import free_port

try:
    from aiosmtpd.smtp import SMTP, Envelope, Session
except (
    ModuleNotFoundError
) as error:  # the one package of the group that is imported: say how to get it, as for the rest
    raise PackageMissing(MAIL_PACKAGE) from error


class MailFault(StrEnum):
    REFUSE_RECIPIENT = "refuse_recipient"
    """550 at RCPT: this address does not exist, and never will."""
    DEFER_DATA = "defer_data"
    """451 at DATA: not now."""
    HANG = "hang"
    """The message is read and never answered."""
    ACCEPT_THEN_DROP = "accept_then_drop"
    """The message is kept, and the connection is cut before the answer: the sender cannot know."""


@dataclass(frozen=True, slots=True)
class ReceivedMail:
    """One accepted message: envelope addresses as given, content as received (CRLF line ends)."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes

    def parsed(self) -> EmailMessage:
        return email.message_from_bytes(self.content, policy=email.policy.SMTPUTF8)


@dataclass(slots=True)
class _Switch:
    fault: MailFault
    times: int | None  # None: until healed
    recipient: str | None  # None: everybody


class MailSink:
    """Listens on 127.0.0.1:`port` (drawn when not given); `messages` holds what was accepted, oldest first."""

    def __init__(self, *, port: int | None = None) -> None:
        self.messages: list[ReceivedMail] = []
        self._port = port
        self._switch: _Switch | None = None
        self._open: set[_Conversation] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the mail sink has no port before its first start")
        return self._port

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the running loop. A stopped sink starts again on the same port."""
        loop = asyncio.get_running_loop()
        if self._port is None:
            self._port = free_port()
        # in two steps: cancelled between them, the server is known and `stop` closes it
        self._server = await loop.create_server(
            lambda: _Conversation(self, loop), "127.0.0.1", self._port, start_serving=False
        )
        await self._server.start_serving()

    async def stop(self) -> None:
        """Stop listening and cut what is open, hanging conversations too. The messages stay."""
        if self._server is None:
            return
        self._server.close()
        for conversation in list(self._open):
            conversation.cut()
            await conversation.ended.wait()
        await self._server.wait_closed()
        self._server = None

    def fail(self, fault: MailFault, *, times: int | None = None, recipient: str | None = None) -> None:
        """From now on: `fault`, for the next `times` messages or until `heal`, for one address or for all."""
        self._switch = _Switch(fault, times, recipient)

    def heal(self) -> None:
        self._switch = None

    async def handle_RCPT(  # noqa: N802 - the protocol finds its hooks by these names
        self, server: "_Conversation", session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self._fails([address], MailFault.REFUSE_RECIPIENT):
            return "550 5.1.1 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(  # noqa: N802 - the same
        self, server: "_Conversation", session: Session, envelope: Envelope
    ) -> str:
        recipients = envelope.rcpt_tos
        if self._fails(recipients, MailFault.DEFER_DATA):
            return "451 4.3.0 try again later"
        if self._fails(recipients, MailFault.HANG):
            await asyncio.Event().wait()  # until the client gives up or the sink stops
        content = envelope.original_content or b""
        self.messages.append(ReceivedMail(envelope.mail_from or "", tuple(recipients), content))
        if self._fails(recipients, MailFault.ACCEPT_THEN_DROP):
            server.cut()
            await asyncio.Event().wait()  # no answer: the loss of the connection ends this task
        return "250 2.0.0 kept"

    def _fails(self, recipients: list[str], fault: MailFault) -> bool:
        switch = self._switch
        if switch is None or switch.fault is not fault or switch.recipient not in (None, *recipients):
            return False
        if switch.times is not None:
            switch.times -= 1
            if switch.times == 0:
                self._switch = None
        return True


class _Conversation(SMTP):
    """One client's connection, known to its sink while it is open."""

    def __init__(self, sink: MailSink, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(sink, hostname="localhost", enable_SMTPUTF8=True, loop=loop)
        self._sink = sink
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # not a matter of isinstance: another loop's transports only look like asyncio's
        self._connection = cast(asyncio.Transport, transport)
        self._sink._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._sink._open.discard(self)
        self.ended.set()

    def cut(self) -> None:
        """Close without a word; what was still to be sent is dropped."""
        self._connection.abort()
