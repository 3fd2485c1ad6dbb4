"""The product of this installation, GitHub invitations, in front of a scripted vendor."""

from typing import Any
from urllib.parse import unquote

import httpx
from pydantic import SecretStr

from services.fulfillment.flow.flush import Inviter
from services.fulfillment.gateway.invite import GATE, GitHubInviter, InviteSettings
from services.kernel.gate import Gates
from services.vendors.http import http_client
from tests.fulfillment.vendor import Says, Vendor

__all__ = ["GATE", "open_product"]

SETTINGS = InviteSettings(
    github_api_url="https://github.test",
    github_token=SecretStr("github_pat_test"),
    github_repository="acme-school/course-materials",
)


def open_product(vendor: Vendor, gates: Gates) -> Inviter:
    """The slice's gateway, whose every request the vendor answers."""

    async def answer(request: httpx.Request) -> httpx.Response:
        *_, kind, last = (unquote(part) for part in request.url.raw_path.decode().split("?")[0].split("/"))
        match request.method, kind:
            case "PUT", _:
                return _put(await vendor.asked(last))
            case "DELETE", _:
                vendor.removed.append(last)
                return httpx.Response(204)
        vendor.questions.append(last)
        names = {str(number): handle for handle, number in vendor.accounts.items()}
        if vendor.mute:
            return _json(503, message="Service unavailable")
        if last == "invitations":
            asked = [handle for handle in vendor.delivered if handle not in vendor.accepted]
            return httpx.Response(200, json=[_invitation(vendor, handle) for handle in asked])
        if kind == "collaborators" and last in vendor.accepted:
            return httpx.Response(204)
        if kind == "users" and last in vendor.accounts:
            return _json(200, login=last, id=vendor.accounts[last], type="User")
        if kind == "user" and last in names:
            return _json(200, login=names[last], id=int(last), type="User")
        return _json(404, message="Not Found")

    return GitHubInviter(SETTINGS, http_client(httpx.MockTransport(answer)), gates)


def _put(says: Says) -> httpx.Response:
    match says:
        case Says.YES:
            return httpx.Response(201, json=_invitation(Vendor(), "somebody"))
        case Says.HAD_IT:
            return httpx.Response(204)
        case Says.NO:  # and the look-up finds no account either
            return _json(404, message="Not Found")
        case Says.NO_BECAUSE:
            return _json(422, message="Validation Failed", errors=[{"code": "custom", "message": "could not be added"}])
        case Says.TROUBLE:
            return _json(503, message="Service unavailable")
        case Says.WAIT:
            return httpx.Response(429, headers={"retry-after": "30"}, json={"message": "slow down"})
        case Says.YOUR_FAULT:
            return _json(401, message="Bad credentials")
        case Says.CUT_OFF:
            raise httpx.ReadError("connection reset")
        case _:
            raise AssertionError(says)


def _json(status: int, **body: Any) -> httpx.Response:
    return httpx.Response(status, json=body)


def _invitation(vendor: Vendor, handle: str) -> dict[str, Any]:
    return {
        "id": 42,
        "invitee": {"id": vendor.accounts.get(handle, 7), "login": handle, "type": "User"},
        "html_url": "https://github.test/accept",
        "expired": handle in vendor.ran_out,
    }
