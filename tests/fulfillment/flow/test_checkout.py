"""Before the money moves, in front of any product: this file runs unedited when the gateway is replaced."""

from datetime import timedelta
from typing import Any

import pytest
import structlog

from services.fulfillment.flow.checkout import check, open_session
from services.fulfillment.machine import (
    HandleKnown,
    HandleUnknown,
    HandleUnverified,
    KeyReused,
    NewSession,
    Opened,
    Pause,
    SessionMisconfigured,
    SessionOpened,
    SessionTrouble,
)
from services.kernel.errors import Refusal, Retryable
from tests.fixtures.database import Connection
from tests.fulfillment.conftest import Process, Start

OPENED = Opened("cs_test_opened", "https://stripe.test/pay")


async def buys(
    process: Process, handle: str | None = "octocat", *, user: str = "user_1", key: str | None = None
) -> Any:
    return await open_session(process.fulfillment, user, handle, client_key=key)


def unverified(logs: list[Any]) -> list[str]:
    return [line["code"] for line in logs if line["event"] == "fulfillment.handle.unverified"]


async def pages(owner: Connection) -> dict[str, bool]:
    """Every page, and whether it is over."""
    rows = await owner.fetch("select dedup_key, resolved_at is not null as over from pages")
    return {row["dedup_key"]: row["over"] for row in rows}


# -------------------------------------------------------------------------------------------------------- the check
@pytest.mark.promise("F55")
async def test_who_is_to_be_invited_is_written_on_the_session(start: Start) -> None:
    process = await start()
    process.vendor.checks["OctoCat"] = HandleKnown("octocat", 583231)
    with structlog.testing.capture_logs() as logs:
        assert await buys(process, "OctoCat") == OPENED
    assert process.vendor.checked == ["OctoCat"]
    assert process.sessions.opened == [NewSession("user_1", "octocat", 583231, None, None, None)]
    assert unverified(logs) == []


@pytest.mark.promise("F61")
async def test_who_has_no_account_pays_all_the_same(start: Start) -> None:
    process = await start()
    assert await buys(process, None) == OPENED
    assert process.vendor.checked == []
    assert process.sessions.opened == [NewSession("user_1", None, None, None, None, None)]


@pytest.mark.promise("F57")
@pytest.mark.parametrize("code", ["no_such_account", "not_a_person"])
async def test_what_the_vendor_denies_is_not_sold(start: Start, code: str) -> None:
    process = await start()
    process.vendor.checks["nobody"] = HandleUnknown(code)
    with pytest.raises(Refusal) as refused:
        await buys(process, "nobody")
    assert (refused.value.code.name, refused.value.code.status) == ("github_handle_unknown", 400)
    assert process.sessions.opened == []


@pytest.mark.promise("F60")
@pytest.mark.parametrize("our_fault", [False, True])
async def test_a_check_that_is_away_stops_no_sale(start: Start, owner: Connection, our_fault: bool) -> None:
    process = await start()
    process.vendor.checks["OctoCat"] = HandleUnverified("http_401", our_fault=our_fault)
    with structlog.testing.capture_logs() as logs:
        assert await buys(process, "OctoCat") == OPENED
    assert unverified(logs) == ["http_401"]
    assert process.sessions.opened == [NewSession("user_1", "OctoCat", None, None, None, None)]
    assert await pages(owner) == ({"fulfillment:handle_check": False} if our_fault else {})
    assert "octocat" not in str(logs).lower()
    # An answer of whatever kind is a token that works.
    for answer in (HandleKnown("octocat"), HandleUnknown("no_such_account")):
        await owner.execute("update pages set resolved_at = null")
        process.vendor.checks["OctoCat"] = answer
        try:
            await check(process.fulfillment, "OctoCat")
        except Refusal:
            assert isinstance(answer, HandleUnknown)
        assert await pages(owner) == ({"fulfillment:handle_check": True} if our_fault else {})


@pytest.mark.parametrize("wait", [timedelta(minutes=2), None])
async def test_a_check_that_is_refused_for_its_rate_closes_the_gate_for_everybody(
    start: Start, owner: Connection, wait: timedelta | None
) -> None:
    process = await start()
    process.vendor.checks["octocat"] = HandleUnverified("rate_limited", pause=Pause(wait))
    assert await buys(process) == OPENED
    gate = process.fulfillment.outside.inviter.gate
    left = "select extract(epoch from closed_until - rowclaim_now())::int from vendor_gates where vendor = $1"
    assert (wait or timedelta(minutes=1)).total_seconds() - 30 < await owner.fetchval(left, gate) <= 120
    assert await owner.fetchval("select refusals from vendor_gates where vendor = $1", gate) == (wait is None)


# ------------------------------------------------------------------------------------------------------ the session
async def test_the_buyer_is_named_as_identity_knows_them(start: Start, owner: Connection) -> None:
    await owner.execute(
        "insert into users (user_id, email, stripe_customer_id, clerk_updated_at, clerk_event_at,"
        "                   created_at, updated_at)"
        " values ('user_1', 'a@example.com', 'cus_1', now(), now(), now(), now()),"
        "        ('user_2', null, null, now(), now(), now(), now())"
    )
    process = await start()
    for user in ("user_1", "user_2", "user_3"):
        await buys(process, user=user)
    told = [(new.user_id, new.email, new.customer_id) for new in process.sessions.opened]
    assert told == [("user_1", "a@example.com", "cus_1"), ("user_2", None, None), ("user_3", None, None)]


async def test_the_idempotency_key_is_the_users_own(start: Start) -> None:
    """And another one while the check is away: what it could not verify is another request to the payments' vendor."""
    process = await start()
    process.vendor.checks |= {"octocat": HandleKnown("octocat", 1), "hubot": HandleKnown("hubot", 2)}

    async def key(user: str, client_key: str | None, handle: str | None = "octocat") -> str | None:
        await buys(process, handle, user=user, key=client_key)
        return process.sessions.opened[-1].idempotency_key

    first = await key("user_1", "a key")
    assert first == await key("user_1", "a key")
    assert first == await key("user_1", "a key", "hubot"), "the vendor sees a reused key, and refuses it"
    assert first == await key("user_1", "a key", None)
    process.vendor.checks["octocat"] = HandleUnverified("timed_out")
    keys = [first, await key("user_2", "a key"), await key("user_1", "b key"), await key("user_1", "a key")]
    assert len(set(keys)) == 4
    assert all(one is not None and "key" not in one and len(one) <= 100 for one in keys)
    assert await key("user_1", None) is None


async def test_a_repetition_after_the_buyer_became_known_opens_a_session(start: Start, owner: Connection) -> None:
    """What we have learnt of them meanwhile is on the request: to the payments' vendor it is not the same one."""
    process = await start()
    keys = []
    for email, customer in ((None, None), ("a@example.com", None), ("a@example.com", "cus_1"), (None, "cus_1")):
        await owner.execute(
            "insert into users (user_id, email, stripe_customer_id, clerk_updated_at, clerk_event_at, created_at,"
            " updated_at) values ('user_1', $1, $2, now(), now(), now(), now())"
            " on conflict (user_id) do update set email = excluded.email,"
            " stripe_customer_id = excluded.stripe_customer_id",
            email,
            customer,
        )
        for _ in range(2):
            await buys(process, key="a key")
        first, again = process.sessions.opened[-2:]
        assert first == again
        keys.append(first.idempotency_key)
    assert len(set(keys)) == 4


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\t", "é", "line\n"])
async def test_a_key_is_printable_and_short_or_refused_before_anybody_is_asked(start: Start, key: str) -> None:
    process = await start()
    with pytest.raises(Refusal, match="idempotency_key_invalid"):
        await buys(process, key=key)
    assert (process.vendor.checked, process.sessions.opened) == ([], [])
    assert await buys(process, key="~ " * 100) == OPENED


@pytest.mark.parametrize(
    ("says", "kind", "code", "paged"),
    [
        (KeyReused(), Refusal, "idempotency_key_reused", False),
        (SessionTrouble("timed_out"), Retryable, "checkout_unavailable", False),
        (SessionMisconfigured("checkout_unconfigured"), Refusal, "checkout_unconfigured", False),
        (SessionMisconfigured("api_key_expired"), Retryable, "checkout_unavailable", True),
    ],
)
async def test_a_session_that_is_not_opened_says_why(
    start: Start, owner: Connection, says: SessionOpened, kind: type[Exception], code: str, paged: bool
) -> None:
    process = await start()
    process.sessions.says = says
    with pytest.raises(kind, match=code):
        await buys(process)
    assert await pages(owner) == ({"fulfillment:checkout": False} if paged else {})
    assert await process.gates.closed_until("stripe") is None, "what is paid already is still read"
    process.sessions.says = OPENED
    await buys(process)
    assert await pages(owner) == ({"fulfillment:checkout": True} if paged else {})
