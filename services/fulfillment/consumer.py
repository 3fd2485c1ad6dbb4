"""The card of fulfillment: what it is owed, what runs, and the one place where its gateways meet its flow."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeVar

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from services.fulfillment.api.commands import make_commands
from services.fulfillment.flow import events, forgetting
from services.fulfillment.flow.flush import COOLDOWN, SLICE, Fulfillment, Outside
from services.fulfillment.flow.invitations import check_invitations
from services.fulfillment.gateway.checkout import CheckoutSettings, open_checkout
from services.fulfillment.gateway.invite import InviteSettings, open_inviter, paces
from services.fulfillment.gateway.mail import open_mailer
from services.fulfillment.machine import PURCHASES
from services.kernel.auth import Auth
from services.kernel.deliveries import DeliveryWorker
from services.kernel.errors import Invariant
from services.kernel.inbox import Subscription
from services.kernel.jobs import Job, daily
from services.kernel.service import CommandLine, Consumption, Personal, Runtime, Service
from services.kernel.sweep import Sweep
from services.kernel.worker import Worker

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

T = TypeVar("T")

BATCH_MAX: Final = 20
"""Events handled with one flush. Small: a batch is held, and renewed, until its flush returned."""
SWEEP_EVERY_S: Final = 60.0
INVITATIONS_HOUR: Final = 4
"""Of the day, UTC, at which old invitations are asked about."""


class FulfillmentSettings(InviteSettings, CheckoutSettings):
    """``ROWCLAIM_FULFILLMENT_...``; what only a gateway needs is told by it."""

    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_FULFILLMENT_")

    stripe_api_key: SecretStr
    """Opens and reads Checkout Sessions and reads charges; a restricted key will do."""
    stripe_api_url: str | None = None
    """Unset: Stripe's own."""
    mail_from: str
    """A bare address; its domain also names our mails."""
    product_name: str
    """What the buyer reads in the mail."""
    attempt_bound_s: Annotated[float, Field(gt=0)] = 20.0
    """One attempt at one purchase, look-ups included: a vendor that hangs costs no more."""
    delivery_lease_s: Annotated[float, Field(ge=3)] = 30.0
    """A dead process's events are handled by another after this."""
    cooldown_s: Annotated[float, Field(ge=0)] = COOLDOWN.total_seconds()
    """How long after a failed attempt its buyer may not correct the username again."""
    sweep: bool = False
    """Flush every minute, unasked. Off: only an event or a person starts a flush."""


async def open_fulfillment(runtime: Runtime) -> Fulfillment:
    """Wire one process's fulfillment."""
    settings = runtime.slice_settings(FulfillmentSettings)
    gates = await runtime.gates(SERVICE.role, pace_s=paces(settings))
    checkout = open_checkout(
        settings.stripe_api_key, settings.stripe_api_url, gates, runtime.on_close, sale=settings.sale
    )
    inviter = open_inviter(settings, gates, runtime.on_close)
    mailer = open_mailer(runtime.settings.smtp_url, gates, sender=settings.mail_from, product=settings.product_name)
    return Fulfillment(
        db=await runtime.database(SERVICE.role),
        outside=Outside(inviter, checkout, mailer, gates, runtime.pager),
        attempt_bound_s=settings.attempt_bound_s,
        stopping=runtime.stopping,
        cooldown=timedelta(seconds=settings.cooldown_s),
    )


async def serve(runtime: Runtime, auth: Auth) -> "Sequence[BaseRoute]":
    """The routes of a serving process. They flush: at its stop the attempt in hand is waited for before anything that
    it uses is closed."""
    from services.fulfillment.api.routes import routes  # FastAPI: only where routes are asked for

    fulfillment = await open_fulfillment(runtime)
    runtime.on_close(fulfillment.drain)
    return routes(auth, lambda: fulfillment)


def describe(auth: Auth) -> "Sequence[BaseRoute]":
    """The same routes, wired to nothing."""
    from services.fulfillment.api.routes import routes

    def nothing() -> NoReturn:
        raise Invariant("route_unwired", SLICE)

    return routes(auth, nothing)


async def consume(runtime: Runtime) -> Consumption:
    """One worker over the events owed, the daily look at old invitations; the sweep over purchases only where an
    operator switched it on."""
    settings = runtime.slice_settings(FulfillmentSettings)
    fulfillment = await open_fulfillment(runtime)
    lease = timedelta(seconds=settings.delivery_lease_s)
    deliveries = DeliveryWorker(
        fulfillment.db, SLICE, partial(events.handle, fulfillment), lease=lease, batch_max=BATCH_MAX
    )

    async def flush() -> Mapping[str, int]:
        return (await fulfillment.flush()).counts()

    async def invitations(day: str) -> Mapping[str, object]:
        return await check_invitations(fulfillment)

    return Consumption(
        workers=[Worker("deliveries", deliveries.step)],
        jobs=[Job(name=f"{SLICE}.invitations", schedule=daily(hour=INVITATIONS_HOUR), run=invitations)],
        sweeps=[Sweep(f"{SLICE}.flush", SWEEP_EVERY_S, flush)] if settings.sweep else [],
    )


def in_process(line: CommandLine, work: Callable[[Fulfillment], Awaitable[T]]) -> T:
    """A command's work, in a process of its own. Ctrl-C must not strand the row of the attempt in hand."""

    async def opened(runtime: Runtime) -> T:
        return await work(await open_fulfillment(runtime))

    return line.run(SERVICE, opened, in_order=True)


async def traces(runtime: Runtime, user_id: str) -> frozenset[str]:
    return await forgetting.traces(await runtime.database(SERVICE.role), user_id)


async def blank(runtime: Runtime, user_id: str, *, dry_run: bool) -> Mapping[str, int]:
    return await forgetting.blank(await runtime.database(SERVICE.role), user_id, dry_run=dry_run)


SERVICE: Final = Service(
    name=SLICE,
    settings=FulfillmentSettings,
    machines=(PURCHASES,),
    subscriptions=(
        Subscription("stripe", "checkout.session.completed"),
        Subscription("stripe", "checkout.session.async_payment_succeeded"),
        *(Subscription("stripe", kind) for kind in events.TAKEN_BACK),
        Subscription("clerk", "user.created"),
        Subscription("clerk", "user.updated"),
    ),
    topics=("stripe.events.v1", "clerk.events.v1"),
    routes=serve,
    describe=describe,
    consume=consume,
    commands=make_commands(in_process),
    personal=Personal(traces, blank),
)
