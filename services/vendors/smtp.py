"""Mail over SMTP: one connection a mail, bounded, and no way for a value to become a header.

Sending is at-least-once by nature: a server may take a message and drop the line before it says so. A deterministic
Message-ID lets the receiver see a repetition for what it is.
"""

import re
import socket
from dataclasses import dataclass
from datetime import datetime
from email.errors import HeaderParseError, MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final
from urllib.parse import unquote, urlsplit

import aiosmtplib

from services.kernel.doors import Crossing, Door

STEP_S: Final = 10.0
ADDRESS_CHARS_MAX: Final = 254
HEADER_CHARS_MAX: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MESSAGE_ID_PART: Final = re.compile(r"[A-Za-z0-9._-]{1,120}")


class Unmailable(ValueError):
    """A value that must not stand in a header."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A server took the message."""


@dataclass(frozen=True, slots=True)
class NotAccepted:
    """``code``: the server's reply code, or what became of the line. The message may have been taken all the same."""

    code: str


def text_mail(*, sender: str, to: str, subject: str, text: str, message_id: str, date: datetime) -> EmailMessage:
    """A plain text mail. ``message_id``: the part before the @; the sender's domain follows it. Raises Unmailable."""
    if _CONTROL.search(subject) or not 1 <= len(subject) <= HEADER_CHARS_MAX:
        raise Unmailable("subject")
    if _MESSAGE_ID_PART.fullmatch(message_id) is None:
        raise Unmailable("message_id")
    message = EmailMessage(policy=SMTP)
    author = _address(sender, "sender")
    message["From"] = author
    message["To"] = _address(to, "to")
    message["Subject"] = subject
    message["Date"] = date
    message["Message-ID"] = f"<{message_id}@{author.domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text, cte="quoted-printable")  # seven bits: no server may refuse or rewrite it
    return message


def _address(text: str, what: str) -> Address:
    """One address and nothing else: no list, no group, no display name, no line break."""
    if _CONTROL.search(text) or len(text) > ADDRESS_CHARS_MAX or text.count("@") != 1:
        raise Unmailable(what)
    try:
        address = Address(addr_spec=text)
    except (ValueError, IndexError, HeaderParseError, MessageError) as error:
        raise Unmailable(what) from error
    if not address.username or not address.domain or address.addr_spec != text:
        raise Unmailable(what)
    return address


class SmtpServer:
    """``smtp://[user:password@]host[:port]`` (STARTTLS where it is offered) or ``smtps://`` (TLS from the start)."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        self._tls = split.scheme == "smtps"
        self._host = split.hostname or "localhost"
        self._port = split.port or (465 if self._tls else 25)
        self._user = unquote(split.username) if split.username else None
        self._password = unquote(split.password) if split.password else None

    async def send(self, message: EmailMessage) -> Accepted | NotAccepted:
        """Hand a message over. Every failure is an answer; the caller bounds the whole."""
        try:
            with Crossing(Door.SMTP, "send"):
                await aiosmtplib.send(
                    message,
                    hostname=self._host,
                    port=self._port,
                    username=self._user,
                    password=self._password,
                    use_tls=self._tls,
                    local_hostname=socket.gethostname(),
                    timeout=STEP_S,
                )
        except aiosmtplib.SMTPResponseException as error:
            return NotAccepted(str(error.code))
        except aiosmtplib.SMTPRecipientsRefused as error:
            return NotAccepted(str(error.recipients[0].code))
        except (aiosmtplib.SMTPException, OSError, UnicodeError) as error:
            return NotAccepted(type(error).__name__)
        return Accepted()
