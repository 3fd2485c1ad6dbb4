"""Mail: composed so that no value becomes a header, sent so that every failure is an answer."""

from datetime import UTC, datetime
from email.message import EmailMessage

import pytest

from services.kernel import doors
from services.kernel.doors import Door, Moment
from services.sandbox.embedded.mail import MailFault, MailSink
from services.vendors import smtp
from services.vendors.smtp import Accepted, NotAccepted, SmtpServer, Unmailable, text_mail

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


def mail(**changes: str) -> EmailMessage:
    given = {
        "sender": "courses@acme-school.example",
        "to": "buyer@example.com",
        "subject": "Your access",
        "text": "There it is.\n",
        "message_id": "purchase-1-1",
    } | changes
    return text_mail(date=AT, **given)


@pytest.fixture
async def sink() -> MailSink:
    return MailSink()


def test_a_mail_is_complete_and_plain() -> None:
    message = mail()
    assert message["Message-ID"] == "<purchase-1-1@acme-school.example>"
    assert message["Date"] == "Mon, 30 Nov 2026 12:00:00 +0000"
    assert message.get_content_type() == "text/plain"
    assert bytes(message).count(b"\r\n\r\n") == 1


def test_the_same_mail_is_the_same_bytes() -> None:
    assert bytes(mail()) == bytes(mail())


@pytest.mark.parametrize(
    "to",
    [
        *("", "buyer", "@example.com", "buyer@", "a@b@c", "a@example.com, b@example.com", "Buyer <a@example.com>"),
        *(
            "a@example.com\nBcc: x@example.com",
            "a@example.com\r\n",
            "a\x00@example.com",
            "a b@example.com",
            "a@ b.example",
        ),
        *(
            "group: a@example.com;",
            "a@example.com;",
            "<a@example.com>",
            "a@example.com (comment)",
            "x" * 250 + "@b.example",
        ),
        *("a@exa\u2028mple.com", "a,b@example.com"),
    ],
)
def test_what_is_not_exactly_one_address_is_refused(to: str) -> None:
    for where in ("to", "sender"):
        with pytest.raises(Unmailable, match=where):
            mail(**{where: to})


@pytest.mark.parametrize("to", ["a.b+c@example.com", "a@sub.example.com", "'a'@example.com", "a_b-c@example.co"])
def test_ordinary_addresses_are_taken_as_they_are(to: str) -> None:
    assert str(mail(to=to)["To"]) == to


@pytest.mark.parametrize("subject", ["", "a\nBcc: x@example.com", "a\rb", "a\x00b", "a\u2029b", "x" * 201])
def test_a_subject_is_one_line_of_bounded_length(subject: str) -> None:
    with pytest.raises(Unmailable, match="subject"):
        mail(subject=subject)


@pytest.mark.parametrize("message_id", ["", "a b", "a@b", "a>", "x" * 121, "a\n"])
def test_a_message_id_is_of_plain_characters(message_id: str) -> None:
    with pytest.raises(Unmailable, match="message_id"):
        mail(message_id=message_id)


def test_letters_of_any_language_are_written_so_that_every_server_takes_them() -> None:
    message = mail(subject="Kursunterlagen für Zoë", text="Grüße, 世界\n")
    raw = bytes(message)
    assert raw.isascii()
    assert message["Subject"] == "Kursunterlagen für Zoë"
    assert message.get_content().strip() == "Grüße, 世界"


async def test_a_mail_crosses_the_door_once_and_arrives(sink: MailSink) -> None:
    await sink.start()
    crossed: list[tuple[Door, Moment]] = []
    before = doors.watch(lambda door, what, moment: crossed.append((door, moment)))
    try:
        assert await SmtpServer(sink.url).send(mail()) == Accepted()
    finally:
        doors.watch(before)
        await sink.stop()
    assert crossed == [(Door.SMTP, "before"), (Door.SMTP, "after")]
    (received,) = sink.messages
    assert (received.sender, received.recipients) == ("courses@acme-school.example", ("buyer@example.com",))
    assert received.parsed()["Message-ID"] == "<purchase-1-1@acme-school.example>"


@pytest.mark.parametrize(
    ("fault", "answer", "kept"),
    [
        (MailFault.REFUSE_RECIPIENT, NotAccepted("550"), 0),
        (MailFault.DEFER_DATA, NotAccepted("451"), 0),
        (MailFault.HANG, NotAccepted("SMTPReadTimeoutError"), 0),
        # The one that cannot be told from a failure: the server has the mail, and we do not know.
        (MailFault.ACCEPT_THEN_DROP, NotAccepted("SMTPServerDisconnected"), 1),
    ],
)
async def test_every_failure_is_an_answer(
    sink: MailSink, fault: MailFault, answer: NotAccepted, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtp, "STEP_S", 0.2)
    await sink.start()
    sink.fail(fault)
    assert await SmtpServer(sink.url).send(mail()) == answer
    assert len(sink.messages) == kept
    await sink.stop()
    assert await SmtpServer(sink.url).send(mail()) == NotAccepted("SMTPConnectError")


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "user", "password"),
    [
        ("smtp://mail.example", "mail.example", 25, False, None, None),
        ("smtp://127.0.0.1:1025", "127.0.0.1", 1025, False, None, None),
        ("smtps://mail.example", "mail.example", 465, True, None, None),
        ("smtps://u%40x:p%3Aw@mail.example:4650", "mail.example", 4650, True, "u@x", "p:w"),
    ],
)
async def test_a_server_is_named_by_its_address(
    url: str, host: str, port: int, tls: bool, user: str | None, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    async def send(message: EmailMessage, **named: object) -> None:
        given.update(named)

    monkeypatch.setattr(smtp.aiosmtplib, "send", send)
    assert await SmtpServer(url).send(mail()) == Accepted()
    assert (given["hostname"], given["port"], given["use_tls"]) == (host, port, tls)
    assert (given["username"], given["password"]) == (user, password)
    assert given["timeout"] == smtp.STEP_S
