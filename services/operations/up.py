"""``rowclaim up``: everything on this machine, until Ctrl-C."""

import asyncio
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from services.kernel.errors import Stop
from services.operations.environment import kinds_of, refuse_unknown
from services.operations.installation import Installation, installation
from services.operations.logs import configure_logging
from services.operations.process import signals
from services.operations.terminal import Terminal, run_async, working


def up(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep databases and objects here; unset: gone at the end.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print where everything is as one line of JSON.")] = False,
) -> None:
    """Start embedded servers, the vendors' sandbox, HTTP and consumers, and stay until Ctrl-C."""
    terminal: Terminal = context.obj
    configure_logging("info", process="up", run=None)
    refuse_unknown(kinds_of(terminal.services), terminal.environ)
    if data is not None:
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"{data}: {error.strerror}", param_hint="--data") from error
        run_async(stay(terminal, data, as_json=as_json))
        return
    with tempfile.TemporaryDirectory(prefix="rc-", dir="/tmp", ignore_cleanup_errors=True) as kept:
        run_async(stay(terminal, Path(kept), as_json=as_json))


async def stay(terminal: Terminal, data: Path, *, as_json: bool) -> None:
    """Bring everything up, tell where it is, and watch until told to stop; a stop during the start abandons it."""
    stopping, opened = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        with working("starting servers and services") as done:
            async with installation(terminal, data) as whole:
                opened.set()
                done()
                terminal.show(places(whole), as_json=as_json)
                await whole.watch(stopping)
            if whole.ended_badly:
                raise Stop("service_ended", "; ".join(whole.ended_badly))

    with signals(stopping):
        living = asyncio.ensure_future(live())
        told = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({living, told}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.is_set():
            living.cancel()
        try:
            await living
        except asyncio.CancelledError:
            if not stopping.is_set():
                raise
        finally:
            told.cancel()


def places(whole: Installation) -> dict[str, str]:
    """Where everything is. Every address is on this machine and every key is the sandbox's own."""
    settings, said = whole.settings, whole.sandbox
    return {
        "http": whole.http_url,
        "health_of_consumers": whole.health_url,
        "database": settings["ROWCLAIM_DATABASE_URL"],
        "broker": settings["ROWCLAIM_KAFKA_BOOTSTRAP"],
        "valkey": settings["ROWCLAIM_VALKEY_URL"],
        "objects": settings["ROWCLAIM_S3_URL"],
        "mail": settings["ROWCLAIM_SMTP_URL"],
        "stripe": said["stripe_url"],
        "github": said["github_url"],
        "control": said["control_url"],
        "logs": str(whole.log_dir),
        "settings": str(whole.settings_file),
        "call": f". {shlex.quote(str(whole.settings_file))} && curl --header"
        f' "authorization: Bearer $(rowclaim token user_1)" {whole.http_url}/fulfillment',
        "run": settings["ROWCLAIM_RUN"],
    }
