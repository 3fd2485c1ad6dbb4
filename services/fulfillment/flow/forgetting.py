"""A buyer is forgotten: what was paid and whether it was delivered stays, who it was does not.

A purchase that still owes its invitation is owed to nobody then: the next flush finds no username and refuses it.
"""

from collections.abc import Mapping

from services.fulfillment import store
from services.kernel.db import Tx
from services.kernel.errors import Retryable


async def traces(tx: Tx, user_id: str) -> frozenset[str]:
    """The user's id, if a purchase is theirs, and what else stored events may name them by."""
    found = await store.list_traces(tx, user_id)
    return frozenset({user_id, *found} if found else ())


async def blank(tx: Tx, user_id: str, *, dry_run: bool) -> Mapping[str, int]:
    """Blank a user's purchases; how many held something. A dry run writes nothing, counts and refuses the same.

    Raises Retryable("forget_in_progress"): the outcome of an attempt would write the person back.
    """
    done = await store.blank_purchases(tx, user_id, dry_run=dry_run)
    if done.in_progress is not None:
        raise Retryable(
            "forget_in_progress",
            f"purchase {done.in_progress}; if its process died, `rowclaim retrigger {done.in_progress} --force` first",
        )
    if not dry_run and done.blanked != done.personal:
        raise Retryable("forget_in_progress", "a purchase was claimed meanwhile")
    return {"purchases": done.personal}
