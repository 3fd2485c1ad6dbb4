"""The SERVICE card: the webhooks' routes, the weekly partitions, and the operator's commands.

The sweeps over deliveries (pairs that are missing, leases whose holder died) run in every consuming process, whatever
its slices: they belong to all who are owed events, and need no process of ours to be alive.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated

import structlog
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict
from starlette.routing import BaseRoute

from services.ingress.api.commands import make_commands
from services.ingress.api.webhooks import described, routes
from services.ingress.flow.backfill import History
from services.ingress.flow.intake import Intake, Outside, Verifier
from services.ingress.gateway.clerk import ClerkVerifier, is_key
from services.ingress.gateway.history import open_history
from services.ingress.gateway.proof import TOLERANCE_S_MAX
from services.ingress.gateway.stripe import StripeVerifier
from services.ingress.machine import Source
from services.kernel.auth import Auth
from services.kernel.deliveries import DELIVERIES
from services.kernel.errors import Stop
from services.kernel.inbox import make_partitions, weeks_ahead
from services.kernel.jobs import Job, weekly
from services.kernel.service import Consumption, Runtime, Service
from services.kernel.settings import Secrets, SliceSettings

log = structlog.get_logger()


class IngressSettings(SliceSettings):
    """What the door needs. Two or more secrets of a sender are good at once, so that one can replace another."""

    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_INGRESS_")

    stripe_secrets: Secrets = ()
    """Signing secrets of Stripe's webhook endpoints (``whsec_...``); none: every request is refused."""
    clerk_secrets: Secrets = ()
    """Signing secrets of Clerk's (Svix) endpoints (``whsec_`` and base64); none: every request is refused."""
    signature_tolerance_s: Annotated[int, Field(ge=1, le=TOLERANCE_S_MAX)] = TOLERANCE_S_MAX
    """How old, or how far ahead, a signature may be. Nothing switches the check off."""
    body_bytes_max: Annotated[int, Field(ge=1024, le=16 * 1024 * 1024)] = 1024 * 1024
    """Stripe's largest events are some hundred kilobytes."""
    stripe_api_key: SecretStr | None = None
    """Lists Stripe's events for `rowclaim backfill`, and is needed for nothing else; a restricted key will do."""
    stripe_api_url: str | None = None
    """Unset: Stripe's own."""

    @field_validator("stripe_secrets")
    @classmethod
    def _of_stripe(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        # An API key put here by mistake would verify nothing, and would look as if it did.
        if not all(secret.get_secret_value().startswith("whsec_") for secret in secrets):
            raise ValueError("every secret begins with whsec_")
        return secrets

    @field_validator("clerk_secrets")
    @classmethod
    def _of_clerk(cls, secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if not all(is_key(secret.get_secret_value()) for secret in secrets):
            raise ValueError("every secret is whsec_ and base64")
        return secrets


def verifiers(settings: IngressSettings) -> Mapping[Source, Verifier]:
    """Each sender's verifier, with its active secrets."""
    stripe_secrets = [secret.get_secret_value() for secret in settings.stripe_secrets]
    clerk_secrets = [secret.get_secret_value() for secret in settings.clerk_secrets]
    for source, secrets in ((Source.STRIPE, stripe_secrets), (Source.CLERK, clerk_secrets)):
        if not secrets:
            log.warning("ingress.no_secret", source=source.value)
    return {
        Source.STRIPE: StripeVerifier(stripe_secrets, tolerance_s=settings.signature_tolerance_s),
        Source.CLERK: ClerkVerifier(clerk_secrets, tolerance_s=settings.signature_tolerance_s),
    }


async def serve(runtime: Runtime, _: Auth) -> Sequence[BaseRoute]:
    """The routes of a serving process. Partitions are made at every boot: one that only serves needs them too."""
    settings = runtime.slice_settings(IngressSettings)
    db = await runtime.database(SERVICE.role)
    await make_partitions(db)
    intake = Intake(db, Outside(verifiers=verifiers(settings), bell=runtime.doorbell))
    runtime.on_close(intake.close)
    return routes(intake, body_bytes_max=settings.body_bytes_max)


async def consume(runtime: Runtime) -> Consumption:
    """The job that keeps eight weeks of partitions ahead; on a Monday, so that a failure meets a working week."""
    db = await runtime.database(SERVICE.role)

    async def partition(_period: str) -> Mapping[str, object]:
        return {"made": await make_partitions(db), "weeks_ahead": await weeks_ahead(db)}

    job = Job(name="event_partitions", schedule=weekly(weekday=0, hour=6), run=partition, lease=timedelta(minutes=1))
    return Consumption(jobs=[job])


async def history(runtime: Runtime) -> History:
    """Stripe's list of its events. Raises Stop("backfill_unconfigured")."""
    settings = runtime.slice_settings(IngressSettings)
    if settings.stripe_api_key is None:
        raise Stop("backfill_unconfigured")
    gates = await runtime.gates(SERVICE.role, pace_s={})
    return open_history(settings.stripe_api_key, settings.stripe_api_url, gates, runtime.on_close)


SERVICE: Service = Service(
    name="ingress",
    settings=IngressSettings,
    machines=(DELIVERIES,),
    routes=serve,
    describe=lambda _: described(),
    consume=consume,
    commands=make_commands(lambda: SERVICE, history),
)
