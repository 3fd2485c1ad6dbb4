"""``POST /admin/vendors/{vendor}/gate/close`` and ``.../open``: what ``rowclaim gate`` does, for administrators."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends
from starlette.routing import BaseRoute

from schemas.gates import CloseGate, GateState, OpenGate
from services.kernel.auth import Access, Auth, Caller, caller
from services.kernel.db import Database
from services.kernel.errors import Invariant
from services.operations import gates
from services.operations.store import Gate

Who = Annotated[Caller, Depends(caller)]


def routes(database: Callable[[], Database], auth: Auth) -> Sequence[BaseRoute]:
    """``database``: of any role of the services' group."""
    admin = auth.routes(Access.ADMIN)

    @admin.post("/admin/vendors/{vendor}/gate/close", summary="Make no call to a vendor for a while")
    async def close_gate(vendor: str, body: CloseGate, who: Who) -> GateState:
        person = gates.Person(who.user_id, body.reason)
        (closed,) = await gates.close(database(), [vendor], person, minutes=body.minutes)
        return _told(closed)

    @admin.post("/admin/vendors/{vendor}/gate/open", summary="Call a vendor again")
    async def open_gate(vendor: str, body: OpenGate, who: Who) -> GateState:
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
