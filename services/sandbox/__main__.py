"""``python -m services.sandbox --port N [--smtp-port M]``: the outside world as a process of its own.

Prints one line of JSON when it listens, with everything a setting needs; ends on SIGTERM or SIGINT, at once on the
second one.
"""

import argparse
import asyncio
import json
import os
import signal
import sys

import uvloop

from services.sandbox.github.world import DEFAULT_REPOSITORY, DEFAULT_TOKEN
from services.sandbox.stripe.api import DEFAULT_KEY
from services.sandbox.stripe.resources.prices import DEFAULT_PRICE
from services.sandbox.world import Urls, World


async def play(port: int, smtp_port: int | None) -> None:
    """Serve until told to stop."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    world = World()
    if smtp_port is not None:
        # Imported here: its server is in the optional group `embedded`, the vendors need nothing of it.
        from services.sandbox.embedded.mail import MailSink

        world.mail = MailSink(port=smtp_port or None)
        await world.mail.start()
    try:
        async with world.serve(port) as urls:
            sys.stdout.write(json.dumps(_ready(urls, world)) + "\n")
            sys.stdout.flush()
            await stop.wait()
    finally:
        if world.mail is not None:
            await world.mail.stop()


def _ready(urls: Urls, world: World) -> dict[str, object]:
    return {
        "ready": True,
        "pid": os.getpid(),
        "run": os.environ.get("ROWCLAIM_RUN"),
        "control_url": urls.control,
        "github_url": urls.github,
        "github_token": DEFAULT_TOKEN,
        "github_repository": DEFAULT_REPOSITORY,
        "stripe_url": urls.stripe,
        "stripe_api_key": DEFAULT_KEY,
        "clerk_issuer": urls.clerk,
        "stripe_price": DEFAULT_PRICE,
        "smtp_url": world.mail.url if world.mail is not None else None,
    }


def main() -> int:
    """Exit codes: 0 told to stop, 1 a port is taken."""
    parser = argparse.ArgumentParser(prog="python -m services.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="HTTP port on 127.0.0.1; 0 (the default) picks a free one")
    parser.add_argument("--smtp-port", type=int, help="also take mail on this port; 0 picks a free one")
    asked = parser.parse_args()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(play(asked.port, asked.smtp_port))
    except OSError as error:
        sys.stderr.write(f"the sandbox cannot listen: {error}; choose another port\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
