"""The whole outside world in one object: usable in a test's own process, or as a process of its own.

``/github/...``, ``/stripe/...`` and ``/clerk/...`` are the vendors; ``/control/...`` is the hand behind the scenery and
is not written into the request log.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from services.sandbox.clerk import Clerk
from services.sandbox.clock import SandboxClock
from services.sandbox.control_api import control_app
from services.sandbox.faults import FaultScript
from services.sandbox.github.api import GitHubApi
from services.sandbox.github.world import GitHubWorld
from services.sandbox.http import Door, Receive, Scope, Send
from services.sandbox.issuer import Issuer, IssuerApi
from services.sandbox.log import RequestLog, Vendor
from services.sandbox.outbox import Outbox
from services.sandbox.server import serving
from services.sandbox.stripe.api import StripeApi
from services.sandbox.stripe.books import Books
from services.sandbox.stripe.buyer import Buyer
from services.sandbox.stripe.resources.prices import seed_price
from services.sandbox.stripe.webhooks import Webhooks

if TYPE_CHECKING:
    # The sink's server is in the optional group `embedded`; the vendors are played without it.
    from services.sandbox.embedded.mail import MailSink


@dataclass(frozen=True, slots=True)
class Urls:
    """Where a served world is."""

    base: str

    @property
    def github(self) -> str:
        """What ``https://api.github.com`` is in production."""
        return f"{self.base}/github"

    @property
    def stripe(self) -> str:
        """What ``https://api.stripe.com`` is in production."""
        return f"{self.base}/stripe"

    @property
    def clerk(self) -> str:
        """The issuer of session tokens; its keys are at ``/.well-known/jwks.json`` below."""
        return f"{self.base}/clerk"

    @property
    def control(self) -> str:
        """For SandboxControl."""
        return f"{self.base}/control"


class World:
    """Everything outside, sharing one clock, one fault script, one request log and one outbox."""

    def __init__(self) -> None:
        self.clock = SandboxClock()
        self.log = RequestLog()
        self.faults = FaultScript()
        self.outbox = Outbox()
        self.github = GitHubWorld(self.clock)
        self.github.seed()
        self.github_api = GitHubApi(self.github, self.clock, self.faults)
        self.books = Books(self.clock)
        seed_price(self.books)
        self.stripe_api = StripeApi(self.books, self.clock, self.faults)
        self.buyer = Buyer(self.books)
        self.webhooks = Webhooks(self.books, self.outbox)
        self.clerk = Clerk(self.clock, self.outbox)
        self.issuer = Issuer()
        self.mail: MailSink | None = None
        """The SMTP sink, when this process hosts one."""
        self.closing = asyncio.Event()
        self._github_door = Door(Vendor.GITHUB, "/github", self.github_api, self.log, self.closing)
        self._stripe_door = Door(Vendor.STRIPE, "/stripe", self.stripe_api, self.log, self.closing)
        issuer_api = IssuerApi(self.issuer, self.clock, self.faults)
        self._clerk_door = Door(Vendor.CLERK, "/clerk", issuer_api, self.log, self.closing)
        self._control: Starlette = control_app(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Dispatches on the raw path: a framework's mount would decode it before the vendors see it."""
        raw_path: bytes = scope.get("raw_path", b"")
        if raw_path.startswith(b"/github/"):
            await self._github_door(scope, receive, send)
        elif raw_path.startswith(b"/stripe/"):
            await self._stripe_door(scope, receive, send)
        elif raw_path.startswith(b"/clerk/"):
            await self._clerk_door(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    @contextlib.asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[Urls]:
        """Listen on loopback while the block runs; port 0 picks a free one. OSError when the port is taken."""
        self.closing.clear()
        async with serving(self, port) as base:
            urls = Urls(base)
            self.issuer.url = urls.clerk
            try:
                yield urls
            finally:
                # Whoever hangs by script is let go, or the server would wait for them.
                self.closing.set()
                await self.outbox.close()
