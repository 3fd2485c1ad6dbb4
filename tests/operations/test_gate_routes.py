"""An administrator closes and opens a vendor's gate over HTTP; who it was, and why, stands in the record."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.kernel.errors import Invariant
from services.operations import gate_routes, gates, web
from tests.fixtures.database import Connect
from tests.fixtures.tokens import bearer, make_guard, token

ADMIN = bearer(token("user_admin", role="admin"))
CLOSE = "/admin/vendors/github/gate/close"
OPEN = "/admin/vendors/github/gate/open"


@pytest.fixture
async def http(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(gates, "VENDORS", {"github"})
    database = await connect("rowclaim_ingress")

    async def raised(error: Invariant) -> None:
        raise error

    app = web.make_app(gate_routes.routes(lambda: database, make_guard()), {}, raised)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=ADMIN) as client:
        yield client


async def test_a_gate_is_closed_and_opened_by_an_administrator(http: httpx.AsyncClient, owner: Any) -> None:
    answer = await http.post(CLOSE, json={"reason": "  token rotated ", "minutes": 30})
    assert answer.status_code == 200
    until = answer.json().pop("closedUntil")
    assert until.endswith("Z")
    assert answer.json() == {
        "vendor": "github",
        "closedUntil": until,
        "reason": "token rotated",
        "closedBy": "user_admin",
        "refusals": 0,
    }
    assert await owner.fetchval("select closed_until = $1::text::timestamptz from vendor_gates", until)
    answer = await http.post(OPEN, json={"reason": "new token is in"})
    assert (answer.status_code, answer.json()["closedUntil"]) == (200, None)
    rows = await owner.fetch("select actor, verb, target, reason from admin_actions order by id")
    assert [tuple(row) for row in rows] == [
        ("user_admin", "close_gate", "gate github", "token rotated"),
        ("user_admin", "open_gate", "gate github", "new token is in"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (OPEN, {"reason": "r"}, 409, "gate_not_closed"),
        ("/admin/vendors/gihtub/gate/close", {"reason": "r"}, 404, "vendor_unknown"),
        ("/admin/vendors/gihtub/gate/open", {"reason": "r"}, 404, "vendor_unknown"),
        (CLOSE, {}, 422, "request_invalid"),
        (CLOSE, {"reason": " "}, 422, "request_invalid"),
        (CLOSE, {"reason": "r" * 501}, 422, "request_invalid"),
        (CLOSE, {"reason": "r", "minutes": 0}, 422, "request_invalid"),
        (CLOSE, {"reason": "r", "minutes": 1e9}, 422, "request_invalid"),
        (CLOSE, {"reason": "r", "hours": 1}, 422, "request_invalid"),
        (CLOSE, {"reason": "r", "minutes": "5"}, 422, "request_invalid"),
        (CLOSE, {"reason": "r", "minutes": True}, 422, "request_invalid"),
        ("/admin/vendors/ann@example.com/gate/close", {"reason": "r"}, 422, "request_invalid"),
        ("/admin/vendors/ann@example.com/gate/open", {"reason": "r"}, 422, "request_invalid"),
        (CLOSE, {"reason": "a\x00b"}, 422, "request_invalid"),
    ],
)
async def test_what_cannot_be_done_is_said_and_not_done(
    http: httpx.AsyncClient, owner: Any, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = await http.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "ann@" not in answer.text
    assert await owner.fetchval("select count(*) from admin_actions") == 0
    assert await owner.fetchval("select count(*) from vendor_gates") == 0


async def test_described_alone_they_are_wired_to_nothing() -> None:
    told: list[Invariant] = []

    async def tell(error: Invariant) -> None:
        told.append(error)

    app = web.make_app(gate_routes.described(make_guard()), {}, tell)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=ADMIN) as client:
        assert (await client.post(CLOSE, json={"reason": "r"})).json()["code"] == "route_unwired"
    assert [error.code.name for error in told] == ["route_unwired"]
