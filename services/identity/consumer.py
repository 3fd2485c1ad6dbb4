"""The card of identity: which events it is owed, and the one worker over them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.identity.flow import SLICE, handle
from services.kernel.deliveries import Delivery, DeliveryWorker, Verdict
from services.kernel.inbox import Subscription
from services.kernel.service import Consumption, Runtime, Service
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

    async def write(batch: Sequence[Delivery]) -> Mapping[int, Verdict]:
        return await handle(db, batch)

    deliveries = DeliveryWorker(db, SLICE, write, lease=lease, batch_max=BATCH_MAX)
    return Consumption(workers=[Worker("deliveries", deliveries.step)])


SERVICE: Final = Service(
    name=SLICE,
    settings=IdentitySettings,
    subscriptions=(
        Subscription("clerk", "user.created"),
        Subscription("clerk", "user.updated"),
        Subscription("clerk", "user.deleted"),
    ),
    topics=("clerk.events.v1",),
    consume=consume,
)
