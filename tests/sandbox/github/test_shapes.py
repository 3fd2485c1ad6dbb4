"""Invitations age by the vendors' clock."""

from datetime import UTC, datetime, timedelta

from services.sandbox.github.shapes import Account, AccountType, Invitation, node_id

CREATED = datetime(2026, 3, 10, 12, tzinfo=UTC)


def test_an_invitation_dies_after_seven_days() -> None:
    person = Account(1, "octocat", AccountType.USER, CREATED)
    invitation = Invitation(2, person, person, "read", CREATED)
    assert not invitation.expired(CREATED + timedelta(days=7, seconds=-1))
    assert invitation.expired(CREATED + timedelta(days=7))


def test_node_ids_differ_by_kind_and_number() -> None:
    ids = {node_id("U", 1), node_id("U", 2), node_id("O", 1)}
    assert len(ids) == 3
    assert all(one.isascii() for one in ids)
