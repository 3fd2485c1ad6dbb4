"""The card: what settings it takes, what it wires, and the job that keeps partitions ahead."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import httpx
import pytest
import structlog
from starlette.applications import Starlette
from starlette.routing import Route

from services.ingress.consumer import SERVICE, IngressSettings, consume, serve, verifiers
from services.ingress.machine import Rejected, Source, Verified
from services.kernel import inbox
from services.kernel.db import Database
from services.kernel.deliveries import DELIVERIES
from services.kernel.errors import Stop
from services.kernel.service import Runtime, verify_machine
from services.kernel.settings import load_settings
from services.operations.access import undetermined
from tests.fixtures.database import Clock, Connect
from tests.ingress.conftest import RecordingBell
from tests.ingress.signing import (
    CLERK_NEW,
    CLERK_OLD,
    NEW,
    OLD,
    clerk_event,
    clerk_headers,
    stripe_event,
    stripe_headers,
)

PREFIX = "ROWCLAIM_INGRESS_"


def loaded(**variables: str) -> IngressSettings:
    return load_settings(IngressSettings, {PREFIX + name: value for name, value in variables.items()})


def test_secrets_are_lists_and_everything_has_a_default() -> None:
    settings = loaded(STRIPE_SECRETS=f"{OLD}, {NEW},", CLERK_SECRETS=CLERK_NEW)
    assert [secret.get_secret_value() for secret in settings.stripe_secrets] == [OLD, NEW]
    assert [secret.get_secret_value() for secret in settings.clerk_secrets] == [CLERK_NEW]
    assert (settings.signature_tolerance_s, settings.body_bytes_max) == (300, 1024 * 1024)
    assert loaded() == loaded(STRIPE_SECRETS="", CLERK_SECRETS=" , ")


@pytest.mark.promise("F89")
@pytest.mark.parametrize("tolerance", ["0", "-1", "301", "86400", "inf", ""])
def test_no_setting_switches_the_tolerance_off(tolerance: str) -> None:
    with pytest.raises(Stop, match="setting_invalid: ROWCLAIM_INGRESS_SIGNATURE_TOLERANCE_S"):
        loaded(SIGNATURE_TOLERANCE_S=tolerance)
    assert loaded(SIGNATURE_TOLERANCE_S="60").signature_tolerance_s == 60


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STRIPE_SECRETS", "sk_live_an_api_key"),
        ("STRIPE_SECRETS", f"{NEW},sk_live_an_api_key"),
        ("CLERK_SECRETS", "whsec_no base64"),
        ("CLERK_SECRETS", f"{CLERK_NEW},whsec_"),
    ],
)
def test_what_is_no_secret_is_refused_without_showing_it(name: str, value: str) -> None:
    with pytest.raises(Stop, match=f"setting_invalid: {PREFIX}{name}") as refused:
        loaded(**{name: value})
    assert "an_api_key" not in str(refused.value)
    assert "base64 of" not in str(refused.value)
    assert CLERK_NEW not in str(refused.value)


@pytest.mark.promise("F90")
def test_each_sender_has_its_own_secrets_and_none_believes_nothing() -> None:
    stripe_body, clerk_body = stripe_event(), clerk_event()
    with structlog.testing.capture_logs() as lines:
        made = verifiers(loaded(STRIPE_SECRETS=f"{OLD},{NEW}", CLERK_SECRETS=f"{CLERK_OLD},{CLERK_NEW}"))
    assert lines == []
    assert isinstance(made[Source.STRIPE].verify(stripe_headers(stripe_body, OLD), stripe_body), Verified)
    assert isinstance(made[Source.CLERK].verify(clerk_headers(clerk_body, [CLERK_OLD]), clerk_body), Verified)
    with structlog.testing.capture_logs() as lines:
        made = verifiers(loaded())
    assert [line["source"] for line in lines if line["event"] == "ingress.no_secret"] == ["stripe", "clerk"]
    assert isinstance(made[Source.STRIPE].verify(stripe_headers(stripe_body, OLD), stripe_body), Rejected)
    assert isinstance(made[Source.CLERK].verify(clerk_headers(clerk_body, [CLERK_OLD]), clerk_body), Rejected)


def test_the_tolerance_set_is_the_one_applied() -> None:
    body = stripe_event()
    made = verifiers(loaded(STRIPE_SECRETS=NEW, CLERK_SECRETS=CLERK_NEW, SIGNATURE_TOLERANCE_S="60"))
    assert isinstance(made[Source.STRIPE].verify(stripe_headers(body, offset_s=-70), body), Rejected)
    assert isinstance(made[Source.CLERK].verify(clerk_headers(body, offset_s=+70), body), Rejected)


# ------------------------------------------------------------------------------------------------------------ wired


@dataclass
class Process:
    """What a process lends the slice."""

    connect: Connect
    settings: IngressSettings
    doorbell: RecordingBell = field(default_factory=RecordingBell)
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    def slice_settings(self, kind: type[IngressSettings]) -> IngressSettings:
        assert kind is IngressSettings
        return self.settings

    async def database(self, role: str) -> Database:
        return await self.connect(role)

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        self.closers.append(close)


async def test_a_serving_process_takes_events_by_its_settings(connect: Connect, clock: Clock) -> None:
    await clock.shift(timedelta(weeks=30))
    process = Process(connect, loaded(STRIPE_SECRETS=NEW, BODY_BYTES_MAX="2048"))
    routes = await serve(cast(Runtime, process), undetermined())
    reader = await connect("rowclaim_reader")
    assert await inbox.weeks_ahead(reader) == inbox.PARTITION_WEEKS, "made at boot"
    assert sorted((cast(Route, route).path, cast(Route, route).methods) for route in routes) == [
        ("/webhooks/clerk", {"POST"}),
        ("/webhooks/stripe", {"POST"}),
    ]
    body = stripe_event(padding="x" * 1000)
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as http:
        answer = await http.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
        assert answer.status_code == 202
    assert await reader.value("select array_agg(external_id) from event_ids") == ["evt_1"]
    (close,) = process.closers
    await close()


async def test_the_weekly_job_keeps_partitions_ahead(connect: Connect, clock: Clock) -> None:
    (job,) = (await consume(cast(Runtime, Process(connect, loaded())))).jobs
    assert (job.name, job.schedule.every) == ("event_partitions", timedelta(weeks=1))
    assert await job.run("2026-11-30") == {"made": 0, "weeks_ahead": 8}
    await clock.shift(timedelta(weeks=3))
    assert await job.run("2026-12-21") == {"made": 3, "weeks_ahead": 8}


async def test_the_database_knows_the_cards_machine(connect: Connect) -> None:
    db = await connect(SERVICE.role)
    assert SERVICE.role == "rowclaim_ingress"
    assert SERVICE.machines == (DELIVERIES,)
    for machine in SERVICE.machines:
        await verify_machine(db, machine)
