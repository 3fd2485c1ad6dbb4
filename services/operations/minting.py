"""``rowclaim token``: a session token of the sandbox's issuer, to call the API of ``rowclaim up`` with."""

import sys
from typing import Annotated

import httpx
import typer

from services.kernel.errors import Stop
from services.kernel.settings import load_settings
from services.operations.environment import SandboxSettings, kinds_of, refuse_unknown
from services.operations.terminal import Terminal, run_async

MINUTES_MAX = 60 * 24 * 365


def _somebody(user: str) -> str:
    if not user.strip() or not user.isprintable():
        raise typer.BadParameter("a token that names nobody is refused everywhere")
    return user


def token(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", callback=_somebody, help="Whose token: the user's id.")],
    role: Annotated[
        str | None, typer.Option("--role", help="What the token says its user is; `admin` may act.")
    ] = None,
    minutes: Annotated[int, typer.Option("--minutes", min=1, max=MINUTES_MAX, help="How long it is good.")] = 60,
) -> None:
    """Print a session token that the sandbox of this installation signs. In production its issuer alone makes them."""
    terminal: Terminal = context.obj
    refuse_unknown(kinds_of(terminal.services), terminal.environ)
    url = load_settings(SandboxSettings, terminal.environ).url
    if url is None:
        raise Stop("sandbox_unconfigured")
    # Nothing but the token: it is what a shell puts into a header.
    sys.stdout.write(run_async(mint(str(url), user, role, minutes)) + "\n")


async def mint(url: str, user: str, role: str | None, minutes: int) -> str:
    """Ask the sandbox. Raises Stop("sandbox_unreachable")."""
    from services.sandbox.control import SandboxControl, SandboxRefused
    from services.sandbox.wire import MintToken

    async with SandboxControl(url) as control:
        try:
            return await control.do(MintToken(user, role=role, expires_in_s=minutes * 60))
        except (httpx.HTTPError, SandboxRefused) as error:
            raise Stop("sandbox_unreachable", f"{url}: {error}") from error
