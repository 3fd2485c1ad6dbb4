"""``POST /admin/vendors/{vendor}/gate/close`` and ``.../open``: what ``rowclaim gate`` does, for administrators."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import Depends, Path
from starlette.routing import BaseRoute

from schemas.gates import CloseGate, GateState, OpenGate
from services.kernel.auth import Access, Auth, Caller, caller, refusal
from services.kernel.db import Database
from services.kernel.errors import Invariant
from services.operations import gates
from services.operations.store import Gate

Who = Annotated[Caller, Depends(caller)]
Vendor = Annotated[str, Path(pattern="^[a-z][a-z0-9_]{0,62}$")]
"""A name is told again where it is unknown, so it is one that could be a vendor's, and no person's address."""
UNKNOWN: Final[dict[int | str, dict[str, Any]]] = {404: refusal("No code of this installation calls that vendor.")}
OPEN: Final[dict[int | str, dict[str, Any]]] = {409: refusal("The gate is open already.")}


def routes(database: Callable[[], Database], auth: Auth) -> Sequence[BaseRoute]:
    """``database``: of any role of the services' group."""
    admin = auth.routes(Access.ADMIN)

    @admin.post("/admin/vendors/{vendor}/gate/close", summary="Make no call to a vendor for a while", responses=UNKNOWN)
    async def close_gate(vendor: Vendor, body: CloseGate, who: Who) -> GateState:
        person = gates.Person(who.user_id, body.reason)
        (closed,) = await gates.close(database(), [vendor], person, minutes=body.minutes)
        return _told(closed)

    @admin.post("/admin/vendors/{vendor}/gate/open", summary="Call a vendor again", responses=UNKNOWN | OPEN)
    async def open_gate(vendor: Vendor, body: OpenGate, who: Who) -> GateState:
        (opened,) = await gates.reopen(database(), [vendor], gates.Person(who.user_id, body.reason))
        return _told(opened)

    return admin.routes


def described(auth: Auth) -> Sequence[BaseRoute]:
    """The same, wired to nothing."""

    def nowhere() -> Database:
        raise Invariant("route_unwired")

    return routes(nowhere, auth)


def _told(gate: Gate) -> GateState:
    return GateState(
        vendor=gate.vendor,
        closed_until=gate.closed_until,
        reason=gate.reason,
        closed_by=gate.closed_by,
        refusals=gate.refusals,
    )
