"""PagerDuty's Events API v2 as a page sender: one POST a page, recognised by its dedup key when repeated.

Each opening of a page is an incident of its own: the key sent is ours and the row's id, so that a late "opened" of an
earlier page can never touch the incident of a later one.
"""

from datetime import timedelta
from http import HTTPStatus
from typing import Final

import httpx
import structlog
from pydantic import SecretStr

from services.kernel.gate import Gates, vendor
from services.kernel.pager import Page

log = structlog.get_logger()

CALL_S: Final = 5.0
SOURCE: Final = "rowclaim"
RATE_LIMITED: Final = timedelta(seconds=30)


class PagerDuty:
    """A page sender (``operations.paging``) over HTTP."""

    def __init__(self, client: httpx.AsyncClient, gates: Gates, *, url: SecretStr, routing_key: SecretStr) -> None:
        self.gates = gates
        self._client = client
        self._url = f"{url.get_secret_value().rstrip('/')}/v2/enqueue"
        self._routing_key = routing_key

    async def send(self, page: Page) -> bool:
        """Whether PagerDuty took it. Raises Retryable("gate_closed"), TimeoutError: the page is sent again later."""
        try:
            answer = await self.enqueue(page)
        except httpx.HTTPError as error:  # an answer that cannot be unpacked is none
            log.warning("pagerduty.unreachable", page=page.id, error=type(error).__name__)
            return False
        if answer.status_code == HTTPStatus.ACCEPTED:
            return True
        if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            await self.gates.close("pagerduty", RATE_LIMITED, "rate_limited", "pager")
        # A refused routing key or event is our configuration's fault: loud in the log, and the page stays unsent.
        log.error("pagerduty.refused", page=page.id, status=answer.status_code)
        return False

    @vendor("pagerduty", bound_s=CALL_S)
    async def enqueue(self, page: Page) -> httpx.Response:
        event: dict[str, object] = {
            "routing_key": self._routing_key.get_secret_value(),
            "event_action": "resolve" if page.resolved else "trigger",
            "dedup_key": f"{page.dedup_key}#{page.id}"[-255:],
        }
        if not page.resolved:
            event["payload"] = {"summary": page.summary, "source": SOURCE, "severity": page.severity.value}
        return await self._client.post(self._url, json=event)
