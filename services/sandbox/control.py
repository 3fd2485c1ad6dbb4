"""A typed client for the control API: what the demo and the tests script the outside world with.

``await control.do(AddAccount("octocat"))`` answers an ``AccountState``: every command knows its answer's type.
"""

from types import TracebackType
from typing import Final, TypeVar

import httpx

from services.sandbox.faults import ScriptedFault
from services.sandbox.log import LoggedRequest, Vendor
from services.sandbox.outbox import Delivery, trust
from services.sandbox.wire import Command, Counts, LogPage, Mail, decode, encode

R = TypeVar("R")
T = TypeVar("T")

ANSWER_BOUND_S: Final = 60
"""A plan of many deliveries is answered when the last one is."""


class SandboxRefused(Exception):
    """The sandbox could not do what it was asked; the message says why."""


class SandboxControl:
    """Speaks to a served World over HTTP. ``url`` is its ``/control``."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_BOUND_S, verify=trust(), trust_env=False)

    async def __aenter__(self) -> "SandboxControl":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def do(self, command: Command[R]) -> R:
        """Carry out a command. Raises SandboxRefused, or httpx.HTTPError when nobody answers."""
        response = await self._http.post(f"/{type(command).__name__}", content=encode(command))
        answer: R = decode(command.answer_shape(), _accepted(response))
        return answer

    async def log(
        self,
        vendor: Vendor | None = None,
        *,
        method: str | None = None,
        path_contains: str | None = None,
        since_seq: int = 1,
    ) -> list[LoggedRequest]:
        """The request log in order of arrival. Raises SandboxRefused when what is asked for was already let go."""
        asked = {"vendor": vendor, "method": method, "path_contains": path_contains, "since_seq": since_seq}
        page = await self._read(
            "/log", LogPage, {name: str(value) for name, value in asked.items() if value is not None}
        )
        if page.first_seq > since_seq:
            raise SandboxRefused(f"the request log begins at {page.first_seq}; older entries were let go")
        return page.entries

    async def deliveries(self) -> list[Delivery]:
        """Every webhook attempt, in the order they ended."""
        return await self._read("/deliveries", list[Delivery])

    async def faults(self) -> list[ScriptedFault]:
        """The script as it stands."""
        return await self._read("/faults", list[ScriptedFault])

    async def mails(self) -> list[Mail]:
        """What the SMTP sink took, oldest first."""
        return await self._read("/mails", list[Mail])

    async def counts(self) -> Counts:
        """How much of everything there is."""
        return await self._read("/counts", Counts)

    async def _read(self, path: str, shape: type[T], query: dict[str, str] | None = None) -> T:
        return decode(shape, _accepted(await self._http.get(path, params=query or {})))


def _accepted(response: httpx.Response) -> bytes:
    if response.is_success:
        return response.content
    try:
        raise SandboxRefused(response.json()["error"])
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxRefused(f"{response.status_code}: {response.text[:500]}") from error
