"""Once a day: whether an invitation that nobody took up for a week was accepted after all, or has run out.

Read-only towards the vendor. What it learns is written only over the very delivery it asked about: a purchase that was
sent again meanwhile has another invitation, with a week of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, assert_never

import structlog

from services.fulfillment import store
from services.fulfillment.flow.flush import CONFIG_PAUSE, SLICE, Fulfillment, Stopped, close_gate
from services.fulfillment.machine import Accepted, Config, Expired, InvitationQuery, Open, Pause, Transient
from services.kernel.gate import Closed
from services.kernel.pager import Severity
from services.kernel.telemetry import unit_of_work

log = structlog.get_logger()

INVITATION_LASTS: Final = timedelta(days=7)
PAGE_SIZE: Final = 100


async def check_invitations(fulfillment: Fulfillment) -> Mapping[str, object]:
    """Ask about every delivered purchase whose invitation is a week old and undecided, oldest first.

    A vendor that refuses us, answers two questions in a row with nothing, or whose gate is closed, ends the run: the
    next one begins anew. The report is counts, and why the run ended.
    """
    run = _Run(fulfillment)
    after: store.UndecidedInvitation | None = None
    while page := await store.list_undecided(fulfillment.db, INVITATION_LASTS, after=after, limit=PAGE_SIZE):
        for invitation in page:
            with unit_of_work(row_kind="purchase", row_id=invitation.id, claim_token=invitation.claim_token):
                stopped = await run.check(invitation)
            if stopped is not None:
                return {"stopped": stopped, **run.counts}
        after = page[-1]
    return {"stopped": Stopped.DRAINED, **run.counts}


@dataclass(slots=True)
class _Run:
    fulfillment: Fulfillment
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("asked", "accepted", "expired", "open", "unanswered", "changed_meanwhile"), 0
        )
    )
    unanswered_in_row: int = 0

    async def check(self, invitation: store.UndecidedInvitation) -> Stopped | None:
        """Ask about one invitation and write what is known of it; why the run ends, or None: it goes on."""
        outside, db = self.fulfillment.outside, self.fulfillment.db
        if isinstance(await outside.gates.reserve(outside.inviter.gate), Closed):
            return Stopped.GATE_CLOSED
        self.counts["asked"] += 1
        query = InvitationQuery(invitation.github_handle, invitation.invited_account_id, invitation.invitation_id)
        standing = await outside.inviter.standing(query)
        self.unanswered_in_row = self.unanswered_in_row + 1 if isinstance(standing, Transient) else 0
        match standing:
            case Accepted():
                self._count("accepted", written=await store.accept_invitation(db, invitation))
            case Expired():
                self._count("expired", written=await store.expire_invitation(db, invitation, INVITATION_LASTS))
            case Open():
                self.counts["open"] += 1
            case Transient(code, pause=pause):
                log.warning("fulfillment.invitation_not_read", code=code)
                self.counts["unanswered"] += 1
                if pause is not None:
                    await close_gate(outside.gates, outside.inviter.gate, pause, code)
                # One alone is passed over: an account that the vendor never answers for must not hide all younger ones.
                return Stopped.TRANSIENT if pause is not None or self.unanswered_in_row > 1 else None
            case Config(code, wait=wait):
                log.error("fulfillment.invitation_not_read", code=code)
                await close_gate(outside.gates, outside.inviter.gate, Pause(wait or CONFIG_PAUSE), code)
                await outside.pager.page(
                    f"{SLICE}:{outside.inviter.gate}",
                    Severity.ERROR,
                    f"Invitations are not checked: {outside.inviter.gate} says {code} at purchase {invitation.id}.",
                )
                return Stopped.CONFIG
            case never:
                assert_never(never)
        return None

    def _count(self, decided: str, *, written: bool) -> None:
        self.counts[decided if written else "changed_meanwhile"] += 1
