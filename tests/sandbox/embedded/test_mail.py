import asyncio
from email.message import EmailMessage

import aiosmtplib
import pytest
import uvloop

from services.sandbox.embedded.mail import MailFault, MailSink
from tests.waiting import wait_until

BUYER = "buyer@example.test"


def message(subject: str = "Your invite") -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.test", BUYER, subject
    mail["Message-ID"] = "<purchase-1@example.test>"
    mail.set_content("Wëlcome.\n.\nA line with one dot came before this one.\n")
    return mail


async def send(sink: MailSink, *, to: str = BUYER, timeout_s: float = 10) -> None:
    await aiosmtplib.send(
        message(), hostname="127.0.0.1", port=sink.port, recipients=[to], start_tls=False, timeout=timeout_s
    )


async def test_keeps_what_it_accepts(mail_sink: MailSink) -> None:
    await send(mail_sink)
    [mail] = mail_sink.messages
    assert (mail.sender, mail.recipients) == ("shop@example.test", (BUYER,))
    parsed = mail.parsed()
    assert (parsed["Message-ID"], parsed["Subject"]) == ("<purchase-1@example.test>", "Your invite")
    assert parsed.get_content().splitlines() == message().get_content().splitlines()


async def test_takes_addresses_beyond_ascii(mail_sink: MailSink) -> None:
    await send(mail_sink, to="jörg@example.test")
    assert mail_sink.messages[0].recipients == ("jörg@example.test",)


async def test_refuses_a_recipient_for_good(mail_sink: MailSink) -> None:
    mail_sink.fail(MailFault.REFUSE_RECIPIENT)
    with pytest.raises(aiosmtplib.SMTPRecipientsRefused) as refused:
        await send(mail_sink)
    assert [recipient.code for recipient in refused.value.recipients] == [550]
    assert mail_sink.messages == []


async def test_defers_as_often_as_told_and_then_accepts(mail_sink: MailSink) -> None:
    mail_sink.fail(MailFault.DEFER_DATA, times=2)
    for _ in range(2):
        with pytest.raises(aiosmtplib.SMTPDataError) as deferred:
            await send(mail_sink)
        assert deferred.value.code == 451
    await send(mail_sink)
    assert len(mail_sink.messages) == 1


async def test_fails_for_one_address_alone_until_healed(mail_sink: MailSink) -> None:
    mail_sink.fail(MailFault.REFUSE_RECIPIENT, recipient="other@example.test")
    await send(mail_sink)
    with pytest.raises(aiosmtplib.SMTPRecipientsRefused):
        await send(mail_sink, to="other@example.test")
    mail_sink.heal()
    await send(mail_sink, to="other@example.test")
    assert [mail.recipients for mail in mail_sink.messages] == [(BUYER,), ("other@example.test",)]


async def test_hangs_without_keeping_anything_until_the_client_gives_up(mail_sink: MailSink) -> None:
    mail_sink.fail(MailFault.HANG)
    with pytest.raises(aiosmtplib.SMTPTimeoutError):
        await send(mail_sink, timeout_s=0.3)
    assert mail_sink.messages == []


async def test_accepts_and_drops_so_that_the_sender_cannot_know(mail_sink: MailSink) -> None:
    mail_sink.fail(MailFault.ACCEPT_THEN_DROP, times=1)
    with pytest.raises(aiosmtplib.SMTPServerDisconnected):
        await send(mail_sink)
    assert len(mail_sink.messages) == 1
    await send(mail_sink)  # the retry that a sender owes is kept too, under the same Message-ID
    assert [mail.parsed()["Message-ID"] for mail in mail_sink.messages] == ["<purchase-1@example.test>"] * 2


def test_serves_drops_and_stops_on_the_other_event_loop_too() -> None:
    """Our services run on uvloop, whose transports are no subclass of asyncio's."""

    async def drop_and_hang() -> None:
        sink = MailSink()
        await sink.start()
        sink.fail(MailFault.ACCEPT_THEN_DROP)
        with pytest.raises(aiosmtplib.SMTPServerDisconnected):
            await send(sink)
        sink.fail(MailFault.HANG)
        sending = asyncio.create_task(send(sink))
        await wait_until(lambda: sink._open, within_s=5, what="the client is connected")
        await sink.stop()
        with pytest.raises(aiosmtplib.SMTPServerDisconnected):
            await sending
        assert len(sink.messages) == 1

    uvloop.run(asyncio.wait_for(drop_and_hang(), 20))


async def test_stops_with_a_conversation_hanging_and_starts_again_on_its_port() -> None:
    sink = MailSink()
    await sink.stop()  # before any start: nothing to do
    await sink.start()
    sink.fail(MailFault.HANG)
    sending = asyncio.create_task(send(sink, timeout_s=60))
    await wait_until(lambda: sink._open, within_s=5, what="the client is connected")
    async with asyncio.timeout(5):
        await sink.stop()
        with pytest.raises(aiosmtplib.SMTPServerDisconnected):
            await sending
    address = sink.url
    with pytest.raises(aiosmtplib.SMTPConnectError):
        await send(sink)
    sink.heal()
    await sink.start()
    await send(sink)
    assert (sink.url, len(sink.messages)) == (address, 1)
    await sink.stop()


def test_has_no_address_before_its_first_start() -> None:
    with pytest.raises(RuntimeError, match="no port before its first start"):
        _ = MailSink().url
