"""The mail to a buyer, through a real SMTP server: after the delivery, at nobody's cost, and never twice the same."""

from datetime import UTC, datetime

import pytest
from aiosmtpd.smtp import Envelope, Session

from services.fulfillment.flow.operator import retrigger
from services.fulfillment.gateway.mail import SmtpMailer
from services.fulfillment.machine import AccessMail, FulfillmentState, MailAnswer, MailNotSent, MailSent
from services.kernel.errors import Retryable
from services.kernel.gate import Gates
from services.sandbox.embedded.mail import MailFault, MailSink
from services.vendors import smtp
from services.vendors.smtp import SmtpServer
from tests.fixtures.database import Connection, DatabaseUrl
from tests.fixtures.fulfillment import House
from tests.fulfillment.conftest import Purchases
from tests.fulfillment.gateway.test_invite import OpenGates

DELIVERED = FulfillmentState.DELIVERED.value
AT = datetime(2026, 11, 30, 12, tzinfo=UTC)


class LookingSink(MailSink):
    """A mail server that looks at the database when a mail arrives."""

    def __init__(self, owner: Connection) -> None:
        super().__init__()
        self._owner = owner
        self.seen: list[str] = []

    async def handle_DATA(self, server: object, session: Session, envelope: Envelope) -> str:  # noqa: N802 the protocol finds its hooks by these names
        self.seen += [
            r["fulfillment_state"] for r in await self._owner.fetch("select fulfillment_state from purchases")
        ]
        return await super().handle_DATA(server, session, envelope)


@pytest.mark.promise("F49")
async def test_the_purchase_reads_delivered_when_its_mail_arrives(
    house: House, purchases: Purchases, owner: Connection, database_url: DatabaseUrl
) -> None:
    sink = LookingSink(owner)
    await sink.start()
    await purchases.add("octocat")
    async with house.process(ROWCLAIM_SMTP_URL=sink.url) as fulfillment:
        report = await fulfillment.flush()
    await sink.stop()
    assert (report.mails_sent, sink.seen) == (1, [DELIVERED])


@pytest.mark.promise("F50")
@pytest.mark.parametrize("fault", list(MailFault))
async def test_a_mail_server_that_refuses_or_hangs_costs_nobody_their_access(
    house: House, purchases: Purchases, fault: MailFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtp, "STEP_S", 0.2)
    house.world.github.add_account("second")
    for login in ("octocat", "second"):
        await purchases.add(login)
    house.sink.fail(fault)
    async with house.process() as fulfillment:
        report = await fulfillment.flush()
    assert await purchases.states() == [DELIVERED, DELIVERED]
    assert (report.delivered, report.mails_sent, report.mails_not_sent) == (2, 0, 2)


async def test_a_mail_server_that_is_away_costs_nobody_their_access(house: House, purchases: Purchases) -> None:
    await house.sink.stop()
    await purchases.add("octocat")
    async with house.process() as fulfillment:
        assert (await fulfillment.flush()).mails_not_sent == 1
    assert await purchases.states() == [DELIVERED]
    await house.sink.start()


@pytest.mark.promise("F52")
async def test_a_forced_resend_is_a_second_mail_and_no_claim_of_its_own(
    house: House, purchases: Purchases, owner: Connection
) -> None:
    purchase = await purchases.add("octocat", email="octocat@example.com")
    async with house.process() as fulfillment:
        await fulfillment.flush()
        await retrigger(fulfillment, purchase, actor="op@desk", reason="never came", force=True)
    first, second = house.sink.messages
    assert first.recipients == second.recipients == ("octocat@example.com",)
    ids = [mail.parsed()["Message-ID"] for mail in house.sink.messages]
    assert ids == [f"<purchase-{purchase}-1@acme-school.example>", f"<purchase-{purchase}-2@acme-school.example>"]
    tables = await owner.fetch("select relname from pg_class where relkind in ('r', 'p') and relname like '%email%'")
    assert tables == []


async def test_what_a_buyer_reads(house: House, purchases: Purchases) -> None:
    purchase = await purchases.add("octocat", email="octocat@example.com")
    async with house.process() as fulfillment:
        await fulfillment.flush()
    (received,) = house.sink.messages
    mail = received.parsed()
    assert (mail["From"], mail["To"]) == ("courses@acme-school.example", "octocat@example.com")
    assert mail["Subject"] == "Your access to Course materials"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Date"].datetime.replace(tzinfo=UTC) == (await purchases.row(purchase))[
        "fulfillment_attempted_at"
    ].replace(microsecond=0)
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().split("\n")[0].strip() == "Thank you for buying Course materials."
    assert "https://github.com/acme-school/course-materials/invitations" in mail.get_content()


def _mailer(sink: MailSink, *, product: str = "Course materials", gates: Gates | None = None) -> SmtpMailer:
    return SmtpMailer(
        SmtpServer(sink.url), gates or Gates(OpenGates()), sender="courses@acme-school.example", product=product
    )


@pytest.mark.parametrize(
    ("to", "product", "answer"),
    [
        ("buyer@example.com", "Course materials", MailSent()),
        ("no address", "Course materials", MailNotSent("unmailable_to")),
        ("a@example.com\r\nBcc: b@example.com", "Course materials", MailNotSent("unmailable_to")),
        ("buyer@example.com", "Course\r\nBcc: b@example.com", MailNotSent("unmailable_subject")),
    ],
)
async def test_no_value_becomes_a_header(sink: MailSink, to: str, product: str, answer: MailAnswer) -> None:
    assert await _mailer(sink, product=product).send(AccessMail(1, 1, AT, to, "there it is")) == answer
    assert len(sink.messages) == (answer == MailSent())


async def test_a_closed_gate_is_no_exception(sink: MailSink) -> None:
    class Closed(OpenGates):
        async def value(self, query: str, *args: object) -> object:
            raise Retryable("gate_closed")

    mailer = _mailer(sink, gates=Gates(Closed()))
    assert await mailer.send(AccessMail(1, 1, AT, "buyer@example.com", "x")) == MailNotSent("gate_closed")


async def test_a_server_that_takes_for_ever_is_no_exception(sink: MailSink, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(self: SmtpServer, message: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(SmtpServer, "send", endless)
    assert await _mailer(sink).send(AccessMail(1, 1, AT, "buyer@example.com", "x")) == MailNotSent("timed_out")
