"""Clerk's events, verified by the Standard Webhooks library."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from services.sandbox.clerk import new_secret
from services.sandbox.outbox import Plan, Posting
from services.sandbox.world import World
from tests.sandbox.receiver import Received, Receiver


def verified(request: Received, secret: str) -> Any:
    """The library reads ``webhook-*`` headers only."""
    headers = {name.replace("svix-", "webhook-"): value for name, value in request.headers.items()}
    return Webhook(secret).verify(request.body, headers)


def user_id(world: World) -> str:
    return next(iter(world.clerk.users))


async def test_a_new_user_is_told_signed(world: World, receiver: Receiver) -> None:
    endpoint = world.clerk.add_endpoint(receiver.url)
    user = world.clerk.create_user(email="ada@example.com", username="ada", first_name="Ada", github_login="octocat")
    await world.outbox.idle()
    (request,) = receiver.requests
    event = verified(request, endpoint.secrets[0])
    assert (event["type"], event["object"], event["data"]["id"]) == ("user.created", "event", user["id"])
    assert event["instance_id"] == world.clerk.instance_id
    assert request.headers["svix-id"] in world.clerk.messages
    assert event["data"]["external_accounts"][0]["username"] == "octocat"
    assert event["data"]["first_name"] == "Ada"
    now_ms = datetime.now(UTC).timestamp() * 1000
    assert event["data"]["created_at"] == pytest.approx(now_ms, abs=60_000)
    with pytest.raises(WebhookVerificationError):
        verified(request, new_secret())


async def test_the_primary_address_is_not_the_first(world: World) -> None:
    user = world.clerk.create_user(email="ada@example.com")
    by_id = {one["id"]: one["email_address"] for one in user["email_addresses"]}
    assert by_id[user["primary_email_address_id"]] == "ada@example.com"
    assert user["email_addresses"][0]["email_address"] != "ada@example.com"


async def test_a_user_may_have_no_address(world: World) -> None:
    user = world.clerk.create_user(email=None, user_id="user_2fixed")
    assert (user["id"], user["email_addresses"], user["primary_email_address_id"]) == ("user_2fixed", [], None)


async def test_a_user_may_have_more_addresses_and_metadata_of_three_kinds(world: World) -> None:
    user = world.clerk.create_user(
        email="ada@example.com",
        more_emails=("ada@work.example", "ada@home.example"),
        private_metadata={"stripe_customer_id": "cus_1"},
        public_metadata={"tier": 1},
        unsafe_metadata={"theme": "dark"},
    )
    addresses = [one["email_address"] for one in user["email_addresses"]]
    assert addresses == ["ada@work.example", "ada@home.example", "old-ada@example.com", "ada@example.com"]
    assert user["primary_email_address_id"] == user["email_addresses"][-1]["id"]
    assert (user["private_metadata"], user["public_metadata"]) == ({"stripe_customer_id": "cus_1"}, {"tier": 1})
    assert user["unsafe_metadata"] == {"theme": "dark"}
    other = world.clerk.create_user(email=None, more_emails=("bob@example.com",))
    assert (len(other["email_addresses"]), other["primary_email_address_id"]) == (1, None)
    assert (other["private_metadata"], other["public_metadata"], other["unsafe_metadata"]) == ({}, {}, {})
    emptied = world.clerk.update_user(user["id"], {"email": None})
    assert (emptied["email_addresses"], emptied["primary_email_address_id"]) == ([], None)


async def test_a_deletion_tells_the_id_and_no_more(world: World, receiver: Receiver) -> None:
    endpoint = world.clerk.add_endpoint(receiver.url)
    user = world.clerk.create_user(email="ada@example.com")
    assert world.clerk.delete_user(user["id"]) == user
    await world.outbox.idle()
    told = [verified(request, endpoint.secrets[0]) for request in receiver.requests]
    (gone,) = [event for event in told if event["type"] == "user.deleted"]
    assert gone["data"] == {"deleted": True, "id": user["id"], "object": "user"}
    for act in (lambda: world.clerk.delete_user(user["id"]), lambda: world.clerk.update_user(user["id"], {})):
        with pytest.raises(LookupError, match="no Clerk user"):
            act()


async def test_changes_are_ordered_by_updated_at(world: World, receiver: Receiver) -> None:
    world.clerk.add_endpoint(receiver.url)
    world.clerk.create_user(email="old@example.com")
    world.clerk.update_user(user_id(world), {"email": "new@example.com", "username": "new"})
    world.clerk.update_user(user_id(world), {"public_metadata": {"tier": 1}})
    await world.outbox.idle()
    bodies = sorted((json.loads(request.body) for request in receiver.requests), key=lambda b: b["data"]["updated_at"])
    assert [body["type"] for body in bodies] == ["user.created", "user.updated", "user.updated"]
    assert len({body["data"]["updated_at"] for body in bodies}) == 3
    assert [body["data"]["username"] for body in bodies] == [None, "new", "new"]
    assert bodies[2]["data"]["public_metadata"] == {"tier": 1}
    addresses = {one["email_address"] for one in bodies[2]["data"]["email_addresses"]}
    assert "new@example.com" in addresses
    assert "old@example.com" not in addresses


async def test_a_rotation_signs_with_both(world: World, receiver: Receiver) -> None:
    old, new = new_secret(), new_secret()
    world.clerk.add_endpoint(receiver.url, (new, old))
    world.clerk.create_user(email="a@example.com")
    await world.outbox.idle()
    assert len(receiver.requests[0].headers["svix-signature"].split(" ")) == 2
    assert verified(receiver.requests[0], old) == verified(receiver.requests[0], new)


async def test_a_held_endpoint_is_told_by_a_plan_only(world: World, receiver: Receiver) -> None:
    endpoint = world.clerk.add_endpoint(receiver.url, posting=Posting.HELD)
    world.clerk.create_user(email="a@example.com")
    world.clerk.update_user(user_id(world), {"username": "b"})
    await world.outbox.idle()
    assert receiver.requests == []
    created, updated = world.clerk.messages
    await world.clerk.play(Plan((updated, created), copies=2))
    ids = [request.headers["svix-id"] for request in receiver.requests]
    assert ids == [updated, updated, created, created], "a retry keeps its id"
    assert verified(receiver.requests[0], endpoint.secrets[0])["type"] == "user.updated"


@pytest.mark.parametrize(("ago_s", "passes"), [(0, True), (295, True), (-295, True), (305, False), (-305, False)])
async def test_a_signature_can_be_old_or_from_the_future(
    world: World, receiver: Receiver, ago_s: int, passes: bool
) -> None:
    endpoint = world.clerk.add_endpoint(receiver.url, posting=Posting.HELD)
    world.clerk.create_user(email="a@example.com")
    await world.clerk.play(Plan(tuple(world.clerk.messages), signed_ago_s=ago_s))
    try:
        verified(receiver.requests[0], endpoint.secrets[0])
    except WebhookVerificationError:
        assert not passes
    else:
        assert passes


async def test_copies_at_one_instant_and_wrong_secrets(world: World, receiver: Receiver) -> None:
    endpoint = world.clerk.add_endpoint(receiver.url, posting=Posting.HELD)
    world.clerk.create_user(email="a@example.com")
    receiver.barrier = asyncio.Barrier(3)
    plan = Plan(tuple(world.clerk.messages), (endpoint.id,), copies=3, simultaneous=True, secrets=(new_secret(),))
    assert [one.status for one in await world.clerk.play(plan)] == [200] * 3
    with pytest.raises(WebhookVerificationError):
        verified(receiver.requests[0], endpoint.secrets[0])


async def test_what_does_not_exist_is_named(world: World) -> None:
    with pytest.raises(LookupError, match="no Clerk user 'user_none'"):
        world.clerk.update_user("user_none", {})
    world.clerk.create_user(email=None)
    with pytest.raises(ValueError, match="has no shoe_size"):
        world.clerk.update_user(user_id(world), {"shoe_size": 43, "username": "x"})
    assert world.clerk.users[user_id(world)]["username"] is None, "nothing was changed"
    with pytest.raises(LookupError, match="no Clerk message 'msg_none'"):
        await world.clerk.play(Plan(("msg_none",)))
    with pytest.raises(LookupError, match="no Clerk endpoint ep_none"):
        await world.clerk.play(Plan(tuple(world.clerk.messages), ("ep_none",)))
