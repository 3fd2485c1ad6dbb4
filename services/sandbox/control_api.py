"""The control API: the hand behind the scenery.

``POST /control/<Command>`` carries a command's fields as JSON (see ``wire``) and answers its value. What cannot be
done answers 4xx with ``{"error": "..."}``, in words for the person who wrote the script. A few GETs read.
"""

import asyncio
import inspect
import json
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.sandbox import wire
from services.sandbox.clerk import ClerkEndpoint
from services.sandbox.github.shapes import Account, Repository
from services.sandbox.log import ENTRIES_MAX, Vendor
from services.sandbox.outbox import Delivery
from services.sandbox.stripe.books import Obj
from services.sandbox.stripe.refusals import StripeRefusal
from services.sandbox.stripe.resources.charges import dispute, refund
from services.sandbox.stripe.resources.checkout_sessions import open_session
from services.sandbox.stripe.resources.webhook_endpoints import active_secrets, create_endpoint, roll_secret

if TYPE_CHECKING:
    # The sink's server is in the optional group `embedded`; the vendors are played without it.
    from services.sandbox.embedded.mail import MailSink
    from services.sandbox.world import World

C = TypeVar("C", bound=wire.Command[Any])
R = TypeVar("R")
Run = Callable[["World", Any], Awaitable[object] | object]

RUNS: Final[dict[str, tuple[type[Any], Run]]] = {}


def on(command: type[C]) -> Callable[[Callable[["World", C], R]], Callable[["World", C], R]]:
    """Registers what a command does."""

    def register(run: Callable[["World", C], R]) -> Callable[["World", C], R]:
        RUNS[command.__name__] = (command, run)
        return run

    return register


def control_app(world: "World") -> Starlette:
    """The API over one world."""

    async def do(request: Request) -> Response:
        found = RUNS.get(request.path_params["command"])
        if found is None:
            return _refused(404, f"no command {request.path_params['command']!r}; there are {', '.join(sorted(RUNS))}")
        shape, run = found
        try:
            answer = run(world, wire.decode(shape, await request.body() or b"{}"))
            return _json(await answer if inspect.isawaitable(answer) else answer)
        except LookupError as error:
            return _refused(404, str(error.args[0]))
        except (ValueError, StripeRefusal) as error:
            return _refused(400, str(error))

    def read(show: Callable[[Request], object]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return _json(show(request))
            except ValueError as error:
                return _refused(400, str(error))

        return answer

    return Starlette(
        routes=[
            Route("/control/log", read(lambda request: _log(world, request))),
            Route("/control/deliveries", read(lambda _: world.outbox.deliveries)),
            Route("/control/faults", read(lambda _: world.faults.listing())),
            Route("/control/mails", read(lambda _: [_mail(one.parsed(), one) for one in _messages(world)])),
            Route("/control/counts", read(lambda _: _counts(world))),
            Route("/control/{command}", do, methods=["POST"]),
        ]
    )


def _json(value: object) -> Response:
    return Response(wire.encode(value), media_type="application/json")


def _refused(status: int, error: str) -> Response:
    return Response(json.dumps({"error": error}), status, media_type="application/json")


def _log(world: "World", request: Request) -> wire.LogPage:
    query = request.query_params
    entries = world.log.entries(
        Vendor(query["vendor"]) if "vendor" in query else None,
        method=query.get("method"),
        path_contains=query.get("path_contains"),
        since_seq=int(query.get("since_seq", "1")),
        limit=int(query.get("limit", ENTRIES_MAX)),
    )
    return wire.LogPage(world.log.first_seq, entries)


def _counts(world: "World") -> wire.Counts:
    return wire.Counts(
        run=os.environ.get("ROWCLAIM_RUN"),
        requests=world.log.last_seq,
        deliveries=len(world.outbox.deliveries),
        mails=len(_messages(world)),
        objects={name: len(rows) for name, rows in world.books.tables.items()},
    )


def _messages(world: "World") -> list[Any]:
    return world.mail.messages if world.mail is not None else []


def _mail(message: EmailMessage, received: Any) -> wire.Mail:
    text = message.get_body(("plain",))
    return wire.Mail(
        sender=received.sender,
        recipients=received.recipients,
        message_id=str(message["Message-ID"] or ""),
        subject=str(message["Subject"] or ""),
        text=text.get_content() if text is not None else "",
        raw_base64=b64encode(received.content).decode(),
    )


# ------------------------------------------------------------------------------------------------- clock and faults


@on(wire.AdvanceClock)
def _advance_clock(world: "World", wanted: wire.AdvanceClock) -> None:
    world.clock.advance(wanted.seconds)


@on(wire.AddFault)
def _add_fault(world: "World", wanted: wire.AddFault) -> str:
    return world.faults.add(wanted.fault)


@on(wire.ClearFaults)
def _clear_faults(world: "World", wanted: wire.ClearFaults) -> int:
    return world.faults.clear(wanted.fault_id)


# ----------------------------------------------------------------------------------------------------------- GitHub


def _account_state(account: Account) -> wire.AccountState:
    return wire.AccountState(account.id, account.login, account.type)


def _repository_state(world: "World", repository: Repository) -> wire.RepositoryState:
    now = world.clock.now()
    return wire.RepositoryState(
        repository.full_name,
        {world.github.accounts[number].login: role for number, role in repository.collaborators.items()},
        tuple(
            wire.InvitationState(
                id=one.id,
                login=one.invitee.login,
                account_id=one.invitee.id,
                permission=one.permission,
                created_at=one.created_at,
                expired=one.expired(now),
                notified=one.notified,
            )
            for one in repository.invitations.values()
        ),
    )


@on(wire.AddAccount)
def _add_account(world: "World", wanted: wire.AddAccount) -> wire.AccountState:
    return _account_state(
        world.github.add_account(wanted.login, wanted.account_type, account_id=wanted.account_id, name=wanted.name)
    )


@on(wire.RenameAccount)
def _rename_account(world: "World", wanted: wire.RenameAccount) -> wire.AccountState:
    return _account_state(world.github.rename_account(wanted.login, wanted.new_login))


@on(wire.DeleteAccount)
def _delete_account(world: "World", wanted: wire.DeleteAccount) -> None:
    world.github.delete_account(wanted.login)


@on(wire.AddRepository)
def _add_repository(world: "World", wanted: wire.AddRepository) -> wire.RepositoryState:
    repository = world.github.add_repository(wanted.full_name, invitations_per_day_max=wanted.invitations_per_day_max)
    return _repository_state(world, repository)


@on(wire.RenameRepository)
def _rename_repository(world: "World", wanted: wire.RenameRepository) -> wire.RepositoryState:
    return _repository_state(world, world.github.rename_repository(wanted.full_name, wanted.new_name))


@on(wire.ShowRepository)
def _show_repository(world: "World", wanted: wire.ShowRepository) -> wire.RepositoryState:
    return _repository_state(world, world.github.repository(wanted.full_name))


@on(wire.AddToken)
def _add_token(world: "World", wanted: wire.AddToken) -> None:
    world.github.add_token(wanted.secret, wanted.login, wanted.administers, sees=wanted.sees)


@on(wire.RevokeToken)
def _revoke_token(world: "World", wanted: wire.RevokeToken) -> None:
    world.github.revoke_token(wanted.secret)


@on(wire.AddCollaborator)
def _add_collaborator(world: "World", wanted: wire.AddCollaborator) -> None:
    world.github.add_collaborator(wanted.full_name, wanted.login, wanted.permission)


@on(wire.AddMember)
def _add_member(world: "World", wanted: wire.AddMember) -> None:
    world.github.add_member(wanted.full_name, wanted.login, wanted.role)


@on(wire.AcceptInvitation)
def _accept_invitation(world: "World", wanted: wire.AcceptInvitation) -> None:
    world.github.accept(wanted.full_name, wanted.login)


@on(wire.DeclineInvitation)
def _decline_invitation(world: "World", wanted: wire.DeclineInvitation) -> None:
    world.github.decline(wanted.full_name, wanted.login)


@on(wire.LimitGitHub)
def _limit_github(world: "World", wanted: wire.LimitGitHub) -> None:
    world.github_api.limit_per_hour = wanted.per_hour


# ----------------------------------------------------------------------------------------------------------- Stripe


def _endpoint_state(world: "World", endpoint: Obj) -> wire.StripeEndpoint:
    secrets = tuple(active_secrets(world.books, endpoint["id"]))
    return wire.StripeEndpoint(endpoint["id"], endpoint["url"], endpoint["api_version"], secrets)


@on(wire.CreateSession)
def _create_session(world: "World", wanted: wire.CreateSession) -> Obj:
    return open_session(world.books, wanted.params)


@on(wire.CompleteSession)
def _complete_session(world: "World", wanted: wire.CompleteSession) -> Obj:
    return world.buyer.complete(wanted.session_id, wanted.payment, email=wanted.email, name=wanted.name)


@on(wire.SettleSession)
def _settle_session(world: "World", wanted: wire.SettleSession) -> Obj:
    return world.buyer.settle(wanted.session_id, succeeded=wanted.succeeded)


@on(wire.LeaveSession)
def _leave_session(world: "World", wanted: wire.LeaveSession) -> Obj:
    return world.buyer.leave(wanted.session_id)


@on(wire.RefundCharge)
def _refund_charge(world: "World", wanted: wire.RefundCharge) -> Obj:
    return refund(world.books, wanted.session_id, wanted.amount)


@on(wire.DisputeCharge)
def _dispute_charge(world: "World", wanted: wire.DisputeCharge) -> Obj:
    return dispute(world.books, wanted.session_id, wanted.reason)


@on(wire.AddStripeEndpoint)
def _add_stripe_endpoint(world: "World", wanted: wire.AddStripeEndpoint) -> wire.StripeEndpoint:
    endpoint = create_endpoint(
        world.books, wanted.url, list(wanted.enabled_events), api_version=wanted.api_version, secret=wanted.secret
    )
    world.webhooks.posting[endpoint["id"]] = wanted.posting
    return _endpoint_state(world, endpoint)


@on(wire.SetPosting)
def _set_posting(world: "World", wanted: wire.SetPosting) -> wire.StripeEndpoint:
    endpoint = world.books.get("webhook_endpoint", wanted.endpoint_id)
    world.webhooks.posting[wanted.endpoint_id] = wanted.posting
    return _endpoint_state(world, endpoint)


@on(wire.RollSecret)
def _roll_secret(world: "World", wanted: wire.RollSecret) -> wire.StripeEndpoint:
    endpoint = world.books.get("webhook_endpoint", wanted.endpoint_id)
    roll_secret(world.books, wanted.endpoint_id, keep_old_s=wanted.keep_old_s, secret=wanted.secret)
    return _endpoint_state(world, endpoint)


@on(wire.WriteThinEvent)
def _write_thin_event(world: "World", wanted: wire.WriteThinEvent) -> Obj:
    related = None
    if wanted.object_name is not None and wanted.object_id is not None:
        related = world.books.get(wanted.object_name, wanted.object_id)
    return world.webhooks.thin_event(wanted.event_type, related)


@on(wire.DeliverStripe)
async def _deliver_stripe(world: "World", wanted: wire.DeliverStripe) -> list[Delivery]:
    return await world.webhooks.play(wanted.plan)


@on(wire.ListStripeEvents)
def _list_stripe_events(world: "World", wanted: wire.ListStripeEvents) -> list[Obj]:
    return [row for row in world.books.table("event").values() if wanted.event_type in (None, row["type"])]


# ------------------------------------------------------------------------------------------------------------ Clerk


@on(wire.AddClerkEndpoint)
def _add_clerk_endpoint(world: "World", wanted: wire.AddClerkEndpoint) -> ClerkEndpoint:
    return world.clerk.add_endpoint(wanted.url, wanted.secrets, posting=wanted.posting)


@on(wire.CreateClerkUser)
def _create_clerk_user(world: "World", wanted: wire.CreateClerkUser) -> Obj:
    return world.clerk.create_user(
        email=wanted.email,
        username=wanted.username,
        first_name=wanted.first_name,
        last_name=wanted.last_name,
        github_login=wanted.github_login,
        user_id=wanted.user_id,
        more_emails=wanted.more_emails,
        private_metadata=wanted.private_metadata,
        public_metadata=wanted.public_metadata,
        unsafe_metadata=wanted.unsafe_metadata,
    )


@on(wire.UpdateClerkUser)
def _update_clerk_user(world: "World", wanted: wire.UpdateClerkUser) -> Obj:
    return world.clerk.update_user(wanted.user_id, wanted.changes)


@on(wire.DeleteClerkUser)
def _delete_clerk_user(world: "World", wanted: wire.DeleteClerkUser) -> Obj:
    return world.clerk.delete_user(wanted.user_id)


@on(wire.MintToken)
def _mint_token(world: "World", wanted: wire.MintToken) -> str:
    return world.issuer.mint(
        wanted.user_id,
        role=wanted.role,
        expires_in_s=wanted.expires_in_s,
        signature=wanted.signature,
        claims=wanted.claims,
        header=wanted.header,
    )


@on(wire.RotateTokenKey)
def _rotate_token_key(world: "World", wanted: wire.RotateTokenKey) -> str:
    return world.issuer.rotate(keep_old=wanted.keep_old)


@on(wire.DeliverClerk)
async def _deliver_clerk(world: "World", wanted: wire.DeliverClerk) -> list[Delivery]:
    return await world.clerk.play(wanted.plan)


@on(wire.ListClerkMessages)
def _list_clerk_messages(world: "World", _: wire.ListClerkMessages) -> list[wire.ClerkMessageState]:
    return [wire.ClerkMessageState(one.id, one.type, json.loads(one.body)) for one in world.clerk.messages.values()]


# -------------------------------------------------------------------------------------------------- sending and mail


@on(wire.AwaitIdle)
async def _await_idle(world: "World", wanted: wire.AwaitIdle) -> bool:
    try:
        async with asyncio.timeout(wanted.within_s):
            await world.outbox.idle()
    except TimeoutError:
        return False
    return True


@on(wire.SetRetries)
def _set_retries(world: "World", wanted: wire.SetRetries) -> None:
    world.outbox.retry_after_s = wanted.after_s


def _sink(world: "World") -> "MailSink":
    if world.mail is None:
        raise LookupError("this sandbox hosts no SMTP sink; start it with --smtp-port")
    return world.mail


@on(wire.FailMail)
def _fail_mail(world: "World", wanted: wire.FailMail) -> None:
    sink = _sink(world)
    from services.sandbox.embedded.mail import MailFault

    sink.fail(MailFault(wanted.fault), times=wanted.times, recipient=wanted.recipient)


@on(wire.HealMail)
def _heal_mail(world: "World", _: wire.HealMail) -> None:
    _sink(world).heal()
