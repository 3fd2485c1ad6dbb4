"""Clerk: users that come and change, told by Svix-signed webhooks."""

import json
import secrets as random_secrets
import string
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from standardwebhooks import Webhook

from services.sandbox.clock import SandboxClock
from services.sandbox.outbox import Delivery, Outbox, Parcel, Plan, Posting, Sender

User: TypeAlias = dict[str, Any]

_LETTERS: Final = string.ascii_letters + string.digits


def new_secret() -> str:
    """A signing secret as Svix mints it."""
    return "whsec_" + b64encode(random_secrets.token_bytes(24)).decode()


def signed_headers(message_id: str, body: bytes, secrets: tuple[str, ...], signed_at_s: int) -> dict[str, str]:
    """``svix-*`` headers; one signature per secret, a space between them."""
    instant = datetime.fromtimestamp(signed_at_s, UTC)
    return {
        "svix-id": message_id,
        "svix-timestamp": str(signed_at_s),
        "svix-signature": " ".join(Webhook(secret).sign(message_id, instant, body.decode()) for secret in secrets),
    }


@dataclass(frozen=True, slots=True)
class ClerkEndpoint:
    """Who is told."""

    id: str
    url: str
    secrets: tuple[str, ...]
    """Newest first; more than one while a rotation runs."""
    posting: Posting


@dataclass(frozen=True, slots=True)
class ClerkMessage:
    """One event. Its id is the svix-id, the same in every retry and replay."""

    id: str
    type: str
    body: bytes


@dataclass(slots=True)
class Clerk:
    """Users by id, endpoints by id, and every message that was ever written."""

    clock: SandboxClock
    outbox: Outbox
    users: dict[str, User] = field(default_factory=dict)
    endpoints: dict[str, ClerkEndpoint] = field(default_factory=dict)
    messages: dict[str, ClerkMessage] = field(default_factory=dict)
    instance_id: str = field(default_factory=lambda: _new_id("ins"))

    def add_endpoint(
        self, url: str, secrets: tuple[str, ...] = (), *, posting: Posting = Posting.AUTO
    ) -> ClerkEndpoint:
        """A new endpoint, with a new secret when none is given."""
        endpoint = ClerkEndpoint(_new_id("ep"), url, secrets or (new_secret(),), posting)
        self.endpoints[endpoint.id] = endpoint
        return endpoint

    def create_user(
        self,
        *,
        email: str | None,
        username: str | None = None,
        first_name: str | None = None,
        last_name: str | None = None,
        github_login: str | None = None,
        user_id: str | None = None,
        more_emails: Sequence[str] = (),
        private_metadata: Mapping[str, Any] | None = None,
        public_metadata: Mapping[str, Any] | None = None,
        unsafe_metadata: Mapping[str, Any] | None = None,
    ) -> User:
        """A new user and ``user.created``. Without an e-mail nothing is primary, whatever ``more_emails`` says."""
        now_ms = self._now_ms()
        user = _user(user_id or _new_id("user"), now_ms)
        user.update({"username": username, "first_name": first_name, "last_name": last_name})
        if email is not None:
            user.update(_emails(email))
        user["email_addresses"] = [*map(_email, more_emails), *user["email_addresses"]]
        for name, given in (("private", private_metadata), ("public", public_metadata), ("unsafe", unsafe_metadata)):
            user[f"{name}_metadata"] = dict(given or {})
        if github_login is not None:
            user["external_accounts"] = [_github_account(github_login, email, now_ms)]
        self.users[user["id"]] = user
        self._write("user.created", user)
        return user

    def update_user(self, user_id: str, changes: Mapping[str, Any]) -> User:
        """Change top-level fields (``email`` replaces the addresses) and ``user.updated``. Raises LookupError."""
        user = self._user(user_id)
        if unknown := changes.keys() - user.keys() - {"email"}:
            raise ValueError(f"a Clerk user has no {', '.join(sorted(unknown))}")
        user.update({name: value for name, value in changes.items() if name != "email"})
        if "email" in changes:
            email = changes["email"]
            user.update(_emails(email) if email is not None else _NO_EMAILS)
        user["updated_at"] = max(self._now_ms(), user["updated_at"] + 1)
        self._write("user.updated", user)
        return user

    def delete_user(self, user_id: str) -> User:
        """The user is gone, and ``user.deleted`` says no more than that. Answers who it was. Raises LookupError."""
        user = self._user(user_id)
        del self.users[user_id]
        self._write("user.deleted", {"deleted": True, "id": user_id, "object": "user"})
        return user

    async def play(self, plan: Plan) -> list[Delivery]:
        """Carry out a plan over message ids. Raises LookupError for unknown ids."""
        parcels = [
            self._parcel(message, endpoint, plan)
            for message in (self._message(message_id) for message_id in plan.events)
            for endpoint in self._endpoints(plan.endpoints)
            for _ in range(plan.copies)
        ]
        return await self.outbox.play(parcels, plan)

    def _write(self, event_type: str, data: Mapping[str, Any]) -> None:
        body = {
            "data": data,
            "event_attributes": {"http_request": {"client_ip": "127.0.0.1", "user_agent": "rowclaim-sandbox"}},
            "instance_id": self.instance_id,
            "object": "event",
            "timestamp": self._now_ms(),
            "type": event_type,
        }
        message = ClerkMessage(_new_id("msg"), event_type, json.dumps(body, separators=(",", ":")).encode())
        self.messages[message.id] = message
        for endpoint in self.endpoints.values():
            if endpoint.posting is Posting.AUTO:
                self.outbox.post(self._parcel(message, endpoint))

    def _parcel(self, message: ClerkMessage, endpoint: ClerkEndpoint, plan: Plan | None = None) -> Parcel:
        secrets = plan.secrets if plan and plan.secrets is not None else endpoint.secrets
        age_s = plan.signed_ago_s if plan else 0

        def headers() -> dict[str, str]:
            return {
                "content-type": "application/json",
                "user-agent": "Svix-Webhooks/1.84.0 (sender-9YMgn; +https://www.svix.com/http-sender/)",
            } | signed_headers(message.id, message.body, secrets, int(time.time()) - age_s)

        return Parcel(Sender.CLERK, endpoint.id, message.id, message.type, endpoint.url, message.body, headers)

    def _user(self, user_id: str) -> User:
        if (user := self.users.get(user_id)) is None:
            raise LookupError(f"no Clerk user {user_id!r}; create it first")
        return user

    def _message(self, message_id: str) -> ClerkMessage:
        if (message := self.messages.get(message_id)) is None:
            raise LookupError(f"no Clerk message {message_id!r}")
        return message

    def _endpoints(self, wanted: tuple[str, ...]) -> list[ClerkEndpoint]:
        if unknown := set(wanted) - self.endpoints.keys():
            raise LookupError(f"no Clerk endpoint {', '.join(sorted(unknown))}")
        return [endpoint for endpoint in self.endpoints.values() if not wanted or endpoint.id in wanted]

    def _now_ms(self) -> int:
        return int(self.clock.now().timestamp() * 1000)


def _new_id(prefix: str) -> str:
    return f"{prefix}_2" + "".join(random_secrets.choice(_LETTERS) for _ in range(26))


def _user(user_id: str, now_ms: int) -> User:
    image = "https://img.clerk.com/preview.png"
    return {
        "backup_code_enabled": False,
        "banned": False,
        "create_organization_enabled": True,
        "created_at": now_ms,
        "delete_self_enabled": True,
        "email_addresses": [],
        "enterprise_accounts": [],
        "external_accounts": [],
        "external_id": None,
        "first_name": None,
        "has_image": False,
        "id": user_id,
        "image_url": image,
        "last_active_at": now_ms,
        "last_name": None,
        "last_sign_in_at": None,
        "locked": False,
        "mfa_disabled_at": None,
        "mfa_enabled_at": None,
        "object": "user",
        "passkeys": [],
        "password_enabled": True,
        "phone_numbers": [],
        "primary_email_address_id": None,
        "primary_phone_number_id": None,
        "primary_web3_wallet_id": None,
        "private_metadata": {},
        "profile_image_url": image,
        "public_metadata": {},
        "saml_accounts": [],
        "totp_enabled": False,
        "two_factor_enabled": False,
        "unsafe_metadata": {},
        "updated_at": now_ms,
        "username": None,
        "verification_attempts_remaining": 100,
        "web3_wallets": [],
    }


_NO_EMAILS: Final[Mapping[str, Any]] = {"email_addresses": [], "primary_email_address_id": None}


def _emails(primary: str) -> dict[str, Any]:
    """Two addresses, the primary one last: whoever takes the first one is wrong."""
    other = _email("old-" + primary)
    address = _email(primary)
    return {"email_addresses": [other, address], "primary_email_address_id": address["id"]}


def _email(address: str) -> dict[str, Any]:
    return {
        "id": _new_id("idn"),
        "object": "email_address",
        "email_address": address,
        "linked_to": [],
        "reserved": False,
        "verification": {
            "attempts": None,
            "expire_at": None,
            "object": "verification_ticket",
            "status": "verified",
            "strategy": "ticket",
        },
    }


def _github_account(login: str, email: str | None, now_ms: int) -> dict[str, Any]:
    return {
        "approved_scopes": "read:user user:email",
        "created_at": now_ms,
        "email_address": email or "",
        "first_name": "",
        "id": _new_id("eac"),
        "identification_id": _new_id("idn"),
        "image_url": "https://img.clerk.com/preview.png",
        "label": None,
        "last_name": "",
        "object": "external_account",
        "provider": "oauth_github",
        "provider_user_id": "1",
        "public_metadata": {},
        "updated_at": now_ms,
        "username": login,
        "verification": {"attempts": None, "expire_at": None, "status": "verified", "strategy": "oauth_github"},
    }
