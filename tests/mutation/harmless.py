"""Mutants that no test can notice, because nothing that can happen is different; each with the reason.

One that a test does notice has no place here: the list is checked both ways.
"""

from collections.abc import Iterator
from typing import Final

PINNED: Final = "the lock that the CTE took pins the row's version; the token is compared for the plan's sake"
SAID_TWICE: Final = "said twice, for the scan and for the write: the other one still holds"
ONLY_HELD_ROWS_HAVE_A_LEASE: Final = "only a row in progress has a lease; the state is named so that its index is used"
PRUNES: Final = "an event has one body: the instant only tells the planner in which partition"
COARSE: Final = "it only spares the way here: what is found is looked at again, letter by letter"


CONTROLS: Final = ("control: a statement as it is", "control: the schema as it is")


def _all() -> Iterator[tuple[str, str]]:
    for control in CONTROLS:
        yield control, "nothing is gone: were a test to die here, none that dies elsewhere would tell anything"
    for claim in ("fulfillment.store.CLAIM_OLDEST", "fulfillment.store.CLAIM_DEFERRED"):
        yield f"{claim} without `p.claim_token = next.claim_token`", PINNED
    yield "kernel.deliveries.CLAIM_DELIVERIES without `d.claim_token = next.claim_token`", PINNED
    yield "operations.store.periods.CLAIM without `r.claim_token = next.claim_token`", PINNED
    yield "tests.conformance.toy.store.CLAIM without `l.claim_token = next.claim_token`", PINNED
    yield "operations.store.REAP_DELIVERIES without `d.claim_token = dead.claim_token`", PINNED
    yield "operations.store.periods.REAP without `r.claim_token = dead.claim_token`", PINNED
    yield "tests.conformance.toy.store.REAP without `l.claim_token = expired.claim_token`", PINNED
    for conjunct in ("lease_until < rowclaim_now()", "d.lease_until < rowclaim_now()"):
        yield f"operations.store.REAP_DELIVERIES without `{conjunct}`", SAID_TWICE
    yield "operations.store.REAP_DELIVERIES without `state = 'in_progress'`", ONLY_HELD_ROWS_HAVE_A_LEASE
    yield "operations.store.periods.REAP without `state = 'running'`", ONLY_HELD_ROWS_HAVE_A_LEASE
    yield "tests.conformance.toy.store.REAP without `state = 'in_progress'`", ONLY_HELD_ROWS_HAVE_A_LEASE
    yield (
        "kernel.deliveries.CLAIM_DELIVERIES without `next_attempt_at >= coalesce($5::timestamptz, '-infinity')`",
        "the floor only spares a scan: what lies below it may be claimed",
    )
    yield "kernel.deliveries.READ_EVENTS without `b.received_at = e.received_at`", PRUNES
    yield "ingress.store.STANDINGS without `b.received_at = e.received_at`", PRUNES
    for statement, bodies in (("FORGOTTEN_AND_HELD", "d"), ("HELD", "d"), ("BLANK", "u")):
        yield f"operations.retention_store.{statement} without `b.received_at = {bodies}.received_at`", PRUNES
    for statement, forms, body in (("NAMING", "$3", "body"), ("HELD", "$1", "b.body")):
        found = f"position(t.form in {body}) > 0"
        yield f"operations.retention_store.{statement} without `{found}`", COARSE
        listed = f"exists (select from unnest({forms}::bytea[]) as t (form) where {found})"
        yield f"operations.retention_store.{statement} without `{listed}`", COARSE
    yield (
        "operations.retention_store.PRUNE_DELIVERIES without `d.consumer = c.consumer`",
        "each row is judged by itself as it goes: another of the same event only goes a chunk earlier",
    )
    yield (
        "ingress.store.UNPARK without `d.state = 'parked'`",
        "the token was read while the row was parked, and every way out of that state takes a new one",
    )
    yield (
        "ingress.store.ARRIVE without `f.id is null`",
        "a fresh event is not in the snapshot that is searched: the condition only spares the search",
    )
    yield "kernel.gate.SUCCEED without `refusals > 0`", "it only spares a write that changes nothing"
    yield (
        "operations.store.OLD_TRANSACTIONS without `backend_type = 'client backend'`",
        "the server's own workers cannot be made to hold a transaction open",
    )
    yield (
        "identity.store.RECORD_SEEN without `users.deleted_at is null`",
        "a tombstone remembers no instant of Clerk's, and nothing is later than none; the reader is told all the same",
    )
    yield (
        "operations.store.CAUGHT_UP without `caught_up_at is null`",
        "it is only told of subscriptions that were not caught up with",
    )


HARMLESS: Final[dict[str, str]] = dict(_all())
