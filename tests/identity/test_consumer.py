"""The card, and a process of the slice over the real inbox."""

from datetime import timedelta

import pytest

from services.identity.consumer import BATCH_MAX, SERVICE, IdentitySettings
from services.ingress.store import Arrival, arrive
from services.kernel import inbox
from services.kernel.deliveries import reap_deliveries
from services.kernel.errors import Stop
from services.kernel.pager import LogSender
from services.kernel.settings import load_settings, variables
from services.operations.environment import load
from services.operations.process import Process
from tests.fixtures.database import Clock, Connect, Connection, DatabaseUrl
from tests.identity.conftest import ROLE, USER, People, body, deleted, user


async def logs(_: Process) -> LogSender:
    return LogSender()


def test_the_card_says_what_identity_is_owed() -> None:
    assert (SERVICE.name, SERVICE.role, SERVICE.machines) == ("identity", ROLE, ())
    assert {(one.source, one.kind) for one in SERVICE.subscriptions} == {
        ("clerk", "user.created"),
        ("clerk", "user.updated"),
        ("clerk", "user.deleted"),
    }
    assert SERVICE.topics == ("clerk.events.v1",)


def test_it_needs_no_setting_of_its_own() -> None:
    assert set(variables(IdentitySettings)) == {"ROWCLAIM_IDENTITY_DELIVERY_LEASE_S"}
    assert load_settings(IdentitySettings, {}).delivery_lease_s == 30.0
    with pytest.raises(Stop, match="ROWCLAIM_IDENTITY_DELIVERY_LEASE_S"):
        load_settings(IdentitySettings, {"ROWCLAIM_IDENTITY_DELIVERY_LEASE_S": "1"})


async def test_stored_events_become_users_and_their_deliveries_end(
    connect: Connect, owner: Connection, people: People, database_url: DatabaseUrl
) -> None:
    loaded = load([SERVICE], [SERVICE], {"ROWCLAIM_DATABASE_URL": database_url()})
    async with Process.open("tests", [SERVICE], loaded, logs) as process:
        assert SERVICE.consume is not None
        consumption = await SERVICE.consume(process)
        assert (list(consumption.sweeps), list(consumption.jobs)) == ([], [])
        (worker,) = consumption.workers
        await inbox.subscribe(await connect(ROLE), SERVICE.name, SERVICE.subscriptions)
        many = [
            Arrival("clerk", f"msg_{nth}", "user.created", body("created", user(user_id=f"user_{nth}")))
            for nth in range(BATCH_MAX + 1)
        ]
        await arrive(await connect("rowclaim_ingress"), many)
        await arrive(
            await connect("rowclaim_ingress"),
            [
                Arrival("clerk", "msg_deleted", "user.deleted", deleted("user_0")),
                Arrival("clerk", "msg_unreadable", "user.updated", b"{}"),
                Arrival("clerk", "msg_session", "session.created", b"{}"),
            ],
        )
        assert [await worker.step() for _ in range(3)] == [BATCH_MAX, 3, 0]
    assert len(await people()) == BATCH_MAX + 1
    assert (await people())["user_0"] == (None, None, True)
    states = await owner.fetch(
        "select e.external_id, d.state, d.parked_reason from webhook_deliveries d join event_ids e on e.id = d.event_id"
        " where e.external_id in ('msg_7', 'msg_deleted', 'msg_unreadable', 'msg_session') order by 1"
    )
    assert [tuple(row) for row in states] == [
        ("msg_7", "done", None),
        ("msg_deleted", "done", None),
        ("msg_unreadable", "parked", "unreadable_body"),
    ]


async def test_a_replay_after_the_deletion_brings_nobody_back(
    connect: Connect, people: People, database_url: DatabaseUrl, owner: Connection, clock: Clock
) -> None:
    """The delivery of a dead process comes again after its lease, when the user is long gone."""
    loaded = load([SERVICE], [SERVICE], {"ROWCLAIM_DATABASE_URL": database_url()})
    db = await connect(ROLE)
    async with Process.open("tests", [SERVICE], loaded, logs) as process:
        assert SERVICE.consume is not None
        (worker,) = (await SERVICE.consume(process)).workers
        await inbox.subscribe(db, SERVICE.name, SERVICE.subscriptions)
        await arrive(
            await connect("rowclaim_ingress"), [Arrival("clerk", "msg_1", "user.created", body("created", user()))]
        )
        await owner.execute(
            "update webhook_deliveries set state = 'in_progress', edge = 'claim', claim_token = claim_token + 1,"
            " claimed_at = rowclaim_now(), lease_until = rowclaim_now() + interval '30 s'"
        )
        await arrive(await connect("rowclaim_ingress"), [Arrival("clerk", "msg_2", "user.deleted", deleted())])
        assert await worker.step() == 1
        await clock.shift(timedelta(seconds=31))
        assert len(await reap_deliveries(db)) == 1
        assert await worker.step() == 1
    assert await people() == {USER: (None, None, True)}
