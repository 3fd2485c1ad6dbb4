"""``rowclaim``: finds each slice's SERVICE card and wires what only the whole may know. Nothing is edited here for a
new slice.
"""

import importlib
import importlib.util
import pkgutil
import sys
from typing import Final

import services
from services.kernel.service import Service
from services.operations.command_line import make_app
from services.operations.paging import LogSender, PageSender
from services.operations.process import Process
from services.operations.terminal import Terminal, finish
from services.operations.tokens import Keys
from services.vendors.http import http_client
from services.vendors.jwks import BODY_BYTES_MAX, Jwks
from services.vendors.pagerduty import PagerDuty

PUBLISHED_AT: Final = "/.well-known/jwks.json"


def discover() -> tuple[Service, ...]:
    """The card of every ``services/<slice>/consumer.py``, by name."""
    cards: list[Service] = []
    for folder in pkgutil.iter_modules(services.__path__):
        name = f"services.{folder.name}.consumer"
        if folder.ispkg and importlib.util.find_spec(name) is not None:
            cards.append(importlib.import_module(name).SERVICE)
    return tuple(sorted(cards, key=lambda card: card.name))


async def page_sender(process: Process) -> PageSender:
    """PagerDuty where a routing key is set, else the log."""
    settings = process.settings
    if settings.pagerduty_routing_key is None:
        return LogSender()
    client = http_client()
    process.on_close(client.aclose)
    gates = await process.gates(process.own_role, pace_s={})
    return PagerDuty(client, gates, url=settings.pagerduty_url, routing_key=settings.pagerduty_routing_key)


async def issuer_keys(process: Process) -> Keys:
    """The keys that the issuer of the users' tokens publishes."""
    settings = process.settings
    given = settings.auth_jwks_url
    url = given.get_secret_value() if given else f"{(settings.auth_issuer or '').rstrip('/')}{PUBLISHED_AT}"
    client = http_client(body_bytes_max=BODY_BYTES_MAX)
    process.on_close(client.aclose)
    keys = Jwks(client, await process.gates(process.own_role, pace_s={}), url)
    process.on_close(keys.aclose)
    return keys


def main() -> None:
    """The console script."""
    terminal = Terminal(discover(), page_sender, make_keys=issuer_keys)
    sys.exit(finish(make_app(terminal), terminal))


if __name__ == "__main__":
    main()
