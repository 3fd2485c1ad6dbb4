"""The post office, over HTTP, and the sender's mail, over SMTP: both through the kernel's doors."""

from datetime import UTC, datetime

import httpx

from services.vendors.smtp import SmtpServer, text_mail
from tests.conformance.toy.flow import Outcome, Posted, Refused, Unknown


class PostOffice:
    """Knows a letter by its reference: handing the same one over twice posts it once."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def post(self, reference: str, address: str) -> Outcome:
        try:
            answer = await self._client.put(f"{self._url}/letters/{reference}", content=address)
        except httpx.HTTPError:
            return Unknown()
        match answer.status_code:
            case 200 | 201:
                return Posted(answer.text)
            case 422:
                return Refused(answer.text)
            case _:
                return Unknown()


async def tell(server: SmtpServer, reference: str) -> None:
    """Mail the sender; the Message-ID shows a repetition for what it is."""
    await server.send(
        text_mail(
            sender="office@example.com",
            to="sender@example.com",
            subject=f"Letter {reference}",
            text="It is on its way.",
            message_id=f"letter-{reference}",
            date=datetime(2026, 1, 1, tzinfo=UTC),
        )
    )
