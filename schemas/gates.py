"""The bodies of the gates' routes."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from schemas.http import Answer, Asked, Reason

MINUTES: Final = 15.0
MINUTES_MIN: Final = 0.1
MINUTES_MAX: Final = 60.0 * 24 * 7


class CloseGate(Asked):
    """Make no call to a vendor for a while."""

    reason: Reason
    minutes: Annotated[float, Field(strict=True, ge=MINUTES_MIN, le=MINUTES_MAX)] = MINUTES


class OpenGate(Asked):
    """Call a vendor again."""

    reason: Reason


class GateState(Answer):
    """A vendor's gate; ``closedUntil`` null: open."""

    vendor: str
    closed_until: datetime | None
    reason: str | None
    closed_by: str | None
    refusals: int
