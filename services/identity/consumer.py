"""The card of identity: which events it is owed, the one worker over them, and how it forgets a person."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.identity import flow
from services.kernel.deliveries import DeliveryWorker
from services.kernel.inbox import Subscription
from services.kernel.service import Consumption, Personal, Runtime, Service
from services.kernel.settings import SliceSettings
from services.kernel.worker import Worker

BATCH_MAX: Final = 200
"""Events written with two statements: an import of a shop's users is a matter of seconds."""


class IdentitySettings(SliceSettings):
    """``ROWCLAIM_IDENTITY_...``; nobody outside is called, so nobody's key is needed."""

    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_IDENTITY_")

    delivery_lease_s: Annotated[float, Field(ge=3)] = 30.0
    """A dead process's events are handled by another after this."""


async def consume(runtime: Runtime) -> Consumption:
    """One worker over the events owed."""
    db = await runtime.database(SERVICE.role)
    lease = timedelta(seconds=runtime.slice_settings(IdentitySettings).delivery_lease_s)

    deliveries = DeliveryWorker(db, flow.SLICE, partial(flow.handle, db), lease=lease, batch_max=BATCH_MAX)
    return Consumption(workers=[Worker("deliveries", deliveries.step)])


async def traces(runtime: Runtime, user_id: str) -> frozenset[str]:
    return await flow.traces(await runtime.database(SERVICE.role), user_id)


async def blank(runtime: Runtime, user_id: str, *, dry_run: bool) -> Mapping[str, int]:
    return await flow.blank(await runtime.database(SERVICE.role), user_id, dry_run=dry_run)


SERVICE: Final = Service(
    name=flow.SLICE,
    settings=IdentitySettings,
    subscriptions=(
        Subscription("clerk", "user.created"),
        Subscription("clerk", "user.updated"),
        Subscription("clerk", "user.deleted"),
    ),
    topics=("clerk.events.v1",),
    consume=consume,
    personal=Personal(traces, blank),
)
