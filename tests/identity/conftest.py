"""What the slice's tests share: Clerk's events as the ingress hands them over, and a look at the rows."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from services.kernel.deliveries import Delivery
from tests.fixtures.database import Connection

ROLE = "rowclaim_identity"
USER = "user_2ada"
Person = tuple[str | None, str | None, bool]
"""E-mail, customer, and whether they are deleted."""
People = Callable[[], Awaitable[Mapping[str, Person]]]


def user(
    email: str | None = "ada@example.com", *, at: int = 1000, user_id: str = USER, customer: Any = None, **fields: Any
) -> dict[str, Any]:
    """A user as Clerk writes them, the primary address last; ``at``: their ``updated_at`` in milliseconds."""
    addresses = [{"id": "idn_old", "email_address": "old@example.com"}]
    if email is not None:
        addresses.append({"id": "idn_primary", "email_address": email})
    return {
        "object": "user",
        "id": user_id,
        "updated_at": at,
        "email_addresses": addresses,
        "primary_email_address_id": None if email is None else "idn_primary",
        "private_metadata": {} if customer is None else {"stripe_customer_id": customer},
        "public_metadata": {},
        "unsafe_metadata": {},
    } | fields


def body(kind: str, data: Mapping[str, Any], *, told: int = 1000) -> bytes:
    """An event's body; ``told``: when Clerk wrote it, in milliseconds."""
    event = {"data": data, "object": "event", "type": f"user.{kind}", "timestamp": told, "instance_id": "ins_1"}
    return json.dumps(event).encode()


def deleted(user_id: str = USER, *, told: int = 1000) -> bytes:
    """All that Clerk says of a user that is gone."""
    return body("deleted", {"id": user_id, "object": "user", "deleted": True}, told=told)


def delivery(event_id: int, content: bytes | None) -> Delivery:
    """An event as the inbox hands it over."""
    return Delivery(event_id, 1, 1, "clerk", f"msg_{event_id}", "user.updated", content)


@pytest.fixture
def people(owner: Connection) -> People:
    """Everybody's row, past every service."""

    async def look() -> Mapping[str, Person]:
        rows = await owner.fetch("select user_id, email, stripe_customer_id, deleted_at is not null from users")
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    return look
