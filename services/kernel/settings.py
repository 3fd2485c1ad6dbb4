"""Settings are the environment, read once, validated before anything runs, and frozen.

A secret may stand in a file (``NAME_FILE``), and so may every address that can carry a password. No error and no
``repr`` shows a secret.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import PydanticBaseSettingsSource as Source

from services.kernel.errors import Stop

PREFIX: Final = "ROWCLAIM_"
FILE: Final = "_FILE"

# A stopping worker finishes the attempt in hand; between its bound and the end there must be room for the outcome's
# write and for closing. The orchestrator's SIGKILL comes after 60 s.
STOP_MARGIN_S: Final = 10.0
KILL_DELAY_S: Final = 60.0

Port = Annotated[int, Field(ge=1, le=65_535)]


def _listed(given: object) -> object:
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
"""Comma-separated secrets; any of them is good while one replaces another."""
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Comma-separated names."""


def _address(*schemes: str) -> AfterValidator:
    """An address of one of these schemes. The message never shows the address: it may hold a password."""

    def check(value: SecretStr) -> SecretStr:
        try:
            split = urlsplit(value.get_secret_value())
            _ = split.port
        except ValueError:
            raise ValueError("is no address") from None
        if split.scheme not in schemes:
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return value

    return AfterValidator(check)


class Environment(BaseSettings):
    """Reads nothing by itself: ``load_settings`` says from where."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: Source, *_others: Any, **_named: Any
    ) -> tuple[Source, ...]:
        return (init_settings,)


class Settings(Environment):
    """What every process shares. Durations in the unit of the name's end."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    database_url: Annotated[SecretStr, _address("postgres", "postgresql")]
    """``postgres://[user[:password]@]host:port/name?sslmode=...``; services replace the user by their login role."""
    database_password: SecretStr | None = None
    """The login role's password; unset: the one in the URL, if any."""

    kafka_bootstrap: str = "127.0.0.1:9092"
    """``host:port`` of the broker."""
    kafka_idempotent: bool = True
    """Whether the broker numbers what a producer sends; false for the embedded broker, which refuses it."""
    kafka_replication: PositiveInt = 1
    """Copies of each topic that ``rowclaim topics`` creates."""
    kafka_fetch_wait_ms: PositiveInt = 500
    """How long the broker holds an idle fetch; most of a ring's latency on the embedded broker."""
    kafka_session_timeout_ms: PositiveInt = 10_000
    """A dead consumer's partitions are given away after this; also how long the first join takes on some brokers."""
    kafka_heartbeat_ms: PositiveInt = 3_000
    """A consumer says this often that it lives; a third of the session timeout at most."""

    valkey_url: Annotated[SecretStr, _address("redis", "rediss", "unix")] | None = None
    """``redis://[:password@]host:port/number``."""
    smtp_url: Annotated[SecretStr, _address("smtp", "smtps")] = SecretStr("smtp://127.0.0.1:1025")
    """``smtp://[user:password@]host:port``; ``smtps`` for TLS from the first byte."""
    s3_url: Annotated[SecretStr, _address("http", "https")] | None = None
    """Endpoint of the object store; unset: none is used."""
    s3_access_key: SecretStr | None = None
    """Name of the key pair."""
    s3_secret_key: SecretStr | None = None
    """Secret of the key pair."""
    s3_bucket: str = "rowclaim-archive"
    """A bucket made with Object Lock."""

    http_host: str = "127.0.0.1"
    """The address to listen on."""
    http_port: Port = 8080
    """Where `rowclaim serve` answers."""
    http_body_bytes_max: Annotated[int, Field(ge=1024, le=16 * 1024 * 1024)] = 64 * 1024
    """The longest body of an API request; webhooks have a bound of their own."""
    http_rate_per_minute: PositiveInt = 120
    """API requests of one user, or without a token of one address; counted in Valkey, without it in each process."""
    health_port: Port | None = None
    """Where a consuming process answers /health and /metrics; unset: nowhere."""
    graceful_stop_s: Annotated[float, Field(gt=STOP_MARGIN_S, lt=KILL_DELAY_S)] = 45.0
    """From the first SIGTERM to giving up on the attempt in hand; below the orchestrator's kill delay of 60 s."""

    auth_issuer: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """The exact `iss` of the users' tokens; unset: nobody gets in, and authenticated routes answer 503."""
    auth_jwks_url: Annotated[SecretStr, _address("http", "https")] | None = None
    """Where the issuer publishes its keys; unset: the issuer and `/.well-known/jwks.json`."""
    auth_authorized_parties: Names = ()
    """Our own frontends' origins: the `azp` of a token must be one of them; unset: it may be any."""
    auth_role_claim: Annotated[str, Field(min_length=1)] = "role"
    """The claim that says `admin`; with dots a claim inside a claim, for example `public_metadata.role`."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of ``debug``, ``info``, ``warning``, ``error``."""
    pagerduty_routing_key: SecretStr | None = None
    """Unset: pages go to the log alone."""
    pagerduty_url: Annotated[SecretStr, _address("http", "https")] = SecretStr("https://events.pagerduty.com")
    """Base of the Events API v2."""
    run: str | None = None
    """The name of the run that started this process; every process we start carries it, so that none is left behind."""

    def database_url_as(self, role: str) -> str:
        """The database's address for a login role."""
        split, own = urlsplit(self.database_url_own), self.database_password
        password = split.password if own is None else quote(own.get_secret_value(), safe="")
        who = role if password is None else f"{role}:{password}"
        return split._replace(netloc=f"{who}@{split.netloc.rpartition('@')[2]}").geturl()

    @property
    def database_url_own(self) -> str:
        """The address as given: its own user migrates."""
        return self.database_url.get_secret_value()


class SliceSettings(Environment):
    """Base of a slice's own settings; a subclass sets ``env_prefix`` to ``ROWCLAIM_<SLICE>_``.

    A field ``attempt_bound_s`` is held to the graceful stop: an attempt must end before its process is given up.
    """


SettingsT = TypeVar("SettingsT", bound=Environment)


def variables(kind: type[Environment]) -> dict[str, str]:
    """Every environment variable of a settings class, and the field it fills; ``NAME_FILE`` only for secrets."""
    prefix = kind.model_config.get("env_prefix", "")
    plain = {f"{prefix}{name}".upper(): name for name in kind.model_fields}
    secret = {name for name, field in kind.model_fields.items() if "SecretStr" in str(field.annotation)}
    return plain | {f"{variable}{FILE}": name for variable, name in plain.items() if name in secret}


def load_settings(kind: type[SettingsT], environ: Mapping[str, str] = os.environ) -> SettingsT:
    """Read and validate one class of settings. Raises Stop("setting_invalid"), which names the variable alone."""
    given: dict[str, Any] = {}
    for variable, name in variables(kind).items():
        if variable not in environ:
            continue
        if name in given:
            raise Stop("setting_invalid", f"{variable.removesuffix(FILE)} and {variable} are both set; keep one")
        given[name] = _read(variable, environ[variable]) if variable.endswith(FILE) else environ[variable]
    prefix = kind.model_config.get("env_prefix", "")
    try:
        return kind(**given)
    except ValidationError as error:
        faults = [
            f"{prefix}{str(fault['loc'][0]).upper()}: "
            + ("is not set" if fault["type"] == "missing" else fault["msg"].removeprefix("Value error, "))
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        # "from None": the driver's error holds the values, and one of them may be a secret.
        raise Stop("setting_invalid", "; ".join(faults)) from None


def _read(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Stop("setting_invalid", f"{variable}: cannot be read ({type(error).__name__})") from None
