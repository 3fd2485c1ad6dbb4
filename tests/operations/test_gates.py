"""Gates on a person's word: act and record in one commit, vendors that nobody calls refused, all of them paused."""

from datetime import timedelta
from typing import Any

import pytest

from services.kernel.errors import Refusal, Retryable
from services.kernel.gate import Gates
from services.operations import gates
from services.operations.gates import Person
from tests.fixtures.database import Clock, Connect

ANN = Person("ann", "an incident")
ROLE = "rowclaim_ingress"


@pytest.fixture(autouse=True)
def vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this installation calls."""
    monkeypatch.setattr(gates, "VENDORS", {"github", "stripe", "jwks", "pagerduty"})


async def closed(owner: Any) -> list[str]:
    rows = await owner.fetch("select vendor from vendor_gates where closed_until > rowclaim_now() order by 1")
    return [row["vendor"] for row in rows]


async def recorded(owner: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(row) for row in await owner.fetch("select actor, verb, target, reason from admin_actions order by id")
    ]


async def test_every_vendor_that_is_called_has_a_gate_to_close(connect: Connect, owner: Any) -> None:
    db = await connect(ROLE)
    assert [(gate.vendor, gate.closed_until) for gate in await gates.list_known(db)] == [
        ("github", None),
        ("jwks", None),
        ("pagerduty", None),
        ("stripe", None),
    ]
    (shut,) = await gates.close(db, ["github"], ANN, minutes=30)
    assert (shut.vendor, shut.reason, shut.closed_by) == ("github", "an incident", "ann")
    assert await closed(owner) == ["github"]
    wait = await owner.fetchval("select closed_until - rowclaim_now() from vendor_gates")
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30)
    assert await recorded(owner) == [("ann", "close_gate", "gate github", "an incident")]


@pytest.mark.parametrize("named", [["gihtub"], ["github", "gihtub"], [""]])
async def test_a_vendor_that_nobody_calls_is_unknown_and_nothing_is_written(
    connect: Connect, owner: Any, named: list[str]
) -> None:
    db = await connect(ROLE)
    for acting in (gates.close(db, named, ANN, minutes=1), gates.reopen(db, named, ANN)):
        with pytest.raises(Refusal, match="vendor_unknown"):
            await acting
    assert (await closed(owner), await recorded(owner)) == ([], [])


async def test_a_vendor_of_an_older_release_is_known_by_its_row(connect: Connect, owner: Any) -> None:
    db = await connect(ROLE)
    await Gates(db).close("retired", timedelta(hours=1), "quota", "fulfillment")
    (opened,) = await gates.reopen(db, ["retired"], ANN)
    assert (opened.vendor, opened.closed_until) == ("retired", None)


async def test_an_open_gate_is_not_opened(connect: Connect, owner: Any, clock: Clock) -> None:
    db = await connect(ROLE)
    await gates.close(db, ["stripe"], ANN, minutes=15)
    with pytest.raises(Refusal, match="gate_not_closed: github"):
        await gates.reopen(db, ["stripe", "github"], ANN)
    assert await closed(owner) == ["stripe"], "all or nothing"
    await clock.shift(timedelta(minutes=16))
    with pytest.raises(Refusal, match="gate_not_closed: stripe"):
        await gates.reopen(db, ["stripe"], ANN)
    assert len(await recorded(owner)) == 1


async def test_all_are_paused_and_resumed_but_who_wakes_people_and_lets_them_in(connect: Connect, owner: Any) -> None:
    db = await connect(ROLE)
    await gates.close(db, [], ANN, minutes=15)
    assert await closed(owner) == ["github", "stripe"]
    with pytest.raises(Retryable, match="gate_closed: stripe"):
        await Gates(await connect("rowclaim_fulfillment")).admit("stripe")
    await gates.close(db, ["jwks"], ANN, minutes=15)
    opened = await gates.reopen(db, [], Person("bea", "over"))
    assert [gate.vendor for gate in opened] == ["github", "jwks", "stripe"]
    assert await closed(owner) == []
    assert await recorded(owner) == [
        ("ann", "close_gate", "gate github", "an incident"),
        ("ann", "close_gate", "gate stripe", "an incident"),
        ("ann", "close_gate", "gate jwks", "an incident"),
        ("bea", "open_gate", "gate github", "over"),
        ("bea", "open_gate", "gate jwks", "over"),
        ("bea", "open_gate", "gate stripe", "over"),
    ]
    assert await gates.reopen(db, [], ANN) == []


async def test_what_a_vendors_refusal_closed_is_not_resumed_unnamed(connect: Connect, owner: Any) -> None:
    db = await connect(ROLE)
    await Gates(db).close("github", timedelta(hours=1), "rate_limited", "fulfillment")
    await gates.close(db, [], ANN, minutes=15)
    await gates.reopen(db, [], ANN)
    assert await closed(owner) == ["github"], "an hour is longer than the pause was"
    await gates.reopen(db, ["github"], ANN)
    assert await closed(owner) == []


async def test_by_hand_means_this_gate_closed_by_that_person_until_now(
    connect: Connect, owner: Any, clock: Clock
) -> None:
    db = await connect(ROLE)
    await gates.close(db, ["stripe"], ANN, minutes=15)
    await gates.reopen(db, ["stripe"], Person("fulfillment", "namesake of a slice"))
    await Gates(db).close("stripe", timedelta(hours=1), "rate_limited", "fulfillment")
    await Gates(db).close("github", timedelta(hours=1), "by a script that keeps no record", "ann")
    assert await gates.reopen(db, [], ANN) == []
    assert await closed(owner) == ["github", "stripe"]
    await gates.close(db, ["jwks"], ANN, minutes=15)
    await clock.shift(timedelta(minutes=16))
    assert await gates.reopen(db, [], ANN) == [], "its time was over"


async def test_what_cannot_be_recorded_is_not_done(connect: Connect, owner: Any) -> None:
    db = await connect(ROLE)
    await owner.execute("revoke insert on admin_actions from rowclaim_service")
    with pytest.raises(Exception, match="permission denied for table admin_actions"):
        await gates.close(db, [], ANN, minutes=15)
    assert await closed(owner) == []
