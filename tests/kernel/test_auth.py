"""Who calls, as a handler sees it; and a bare route that describes itself."""

import pytest
from starlette.requests import Request

from services.kernel.auth import CALLER, Caller, PublicRoute, caller, refusal, unwired
from services.kernel.errors import Invariant


def request(**scope: object) -> Request:
    return Request({"type": "http", "path": "/a", "headers": [], "server": ("test", 80)} | scope)


def test_a_handler_is_told_who_calls() -> None:
    who = Caller("user_1", "admin")
    assert caller(request(**{CALLER: who})) is who


@pytest.mark.parametrize("found", [{}, {CALLER: "user_1"}])
def test_where_anybody_may_call_nobody_is_known(found: dict[str, object]) -> None:
    with pytest.raises(Invariant, match="caller_unknown: /a"):
        caller(request(**found))


@pytest.mark.parametrize(("role", "is_admin"), [("admin", True), ("Admin", False), ("member", False), (None, False)])
def test_one_role_is_an_administrators(role: str | None, is_admin: bool) -> None:
    assert Caller("user_1", role).is_admin is is_admin


async def test_a_bare_route_carries_its_operation() -> None:
    route = PublicRoute(
        "/a", unwired, methods=("POST",), name="receive", operation={"responses": {"400": refusal("No.")}}
    )
    assert (route.path, route.methods) == ("/a", {"POST"})
    assert route.operation["operationId"] == "receive"
    assert route.operation["responses"]["400"]["description"] == "No."


async def test_a_route_that_is_only_described_does_nothing() -> None:
    with pytest.raises(Invariant, match="route_unwired: /a"):
        await unwired(request())
