"""The mail a buyer gets once they have access. It knows no product: what was delivered is told by the instructions."""

from typing import Final, assert_never

from pydantic import SecretStr

from services.fulfillment.machine import AccessMail, MailAnswer, MailNotSent, MailSent
from services.kernel.errors import Retryable
from services.kernel.gate import Gates, vendor
from services.vendors.smtp import Accepted, NotAccepted, SmtpServer, Unmailable, text_mail

SEND_BOUND_S: Final = 10.0


def open_mailer(smtp_url: SecretStr, gates: Gates, *, sender: str, product: str) -> "SmtpMailer":
    """Mail through the installation's SMTP server; a connection a mail, so there is nothing to close."""
    return SmtpMailer(SmtpServer(smtp_url.get_secret_value()), gates, sender=sender, product=product)


class SmtpMailer:
    """The flow's ``Mailer``."""

    def __init__(self, server: SmtpServer, gates: Gates, *, sender: str, product: str) -> None:
        self._server = server
        self._sender = sender
        self._product = product
        self.gates = gates

    async def send(self, mail: AccessMail) -> MailAnswer:
        """Send one mail; every failure is an answer."""
        try:
            answer = await self._send(mail)
        except TimeoutError:
            return MailNotSent("timed_out")
        except Retryable as error:
            return MailNotSent(error.code.name)
        except Unmailable as error:
            return MailNotSent(f"unmailable_{error}")
        match answer:
            case Accepted():
                return MailSent()
            case NotAccepted(code):
                return MailNotSent(code)
            case never:
                assert_never(never)

    @vendor("smtp", bound_s=SEND_BOUND_S)
    async def _send(self, mail: AccessMail) -> Accepted | NotAccepted:
        message = text_mail(
            sender=self._sender,
            to=mail.to,
            subject=f"Your access to {self._product}",
            text=f"Thank you for buying {self._product}.\n\n{mail.instructions}\n",
            # The attempt is part of it: a forced re-send is a new mail and must not be swallowed as a repetition.
            message_id=f"purchase-{mail.purchase_id}-{mail.attempt}",
            date=mail.attempted_at,
        )
        return await self._server.send(message)
