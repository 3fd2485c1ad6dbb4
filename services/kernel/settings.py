"""Settings are the environment, read once, validated before anything runs, and frozen.

Every name begins with ``ROWCLAIM_``; a name that begins so and names no setting is refused with the nearest known one,
because a misspelt setting is a default that nobody chose. A secret may stand in a file (``NAME_FILE``), and so may
every address that can carry a password. No error and no ``repr`` shows a secret.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from services.kernel.errors import Stop

PREFIX: Final = "ROWCLAIM_"
FILE: Final = "_FILE"

# A stopping worker finishes the attempt in hand; between its bound and the end there must be room for the outcome's
# write and for closing. The orchestrator's SIGKILL comes after 60 s.
STOP_MARGIN_S: Final = 10.0
KILL_DELAY_S: Final = 60.0

Port = Annotated[int, Field(ge=1, le=65_535)]


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
"""Comma-separated secrets; any of them is good while one replaces another."""


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
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
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
    health_port: Port | None = None
    """Where a consuming process answers /health and /metrics; unset: nowhere."""
    graceful_stop_s: Annotated[float, Field(gt=STOP_MARGIN_S, lt=KILL_DELAY_S)] = 45.0
    """From the first SIGTERM to giving up on the attempt in hand; below the orchestrator's kill delay of 60 s."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of ``debug``, ``info``, ``warning``, ``error``."""
    pagerduty_routing_key: SecretStr | None = None
    """Unset: pages go to the log alone."""
    pagerduty_url: Annotated[SecretStr, _address("http", "https")] = SecretStr("https://events.pagerduty.com")
    """Base of the Events API v2."""
    run: str | None = None
    """The name of the run that started this process; every process we start carries it, so that none is left behind."""

    @model_validator(mode="after")
    def _sessions_outlive_heartbeats(self) -> Self:
        if self.kafka_heartbeat_ms * 3 > self.kafka_session_timeout_ms:
            raise ValueError(
                "ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS must be at least three times ROWCLAIM_KAFKA_HEARTBEAT_MS"
            )
        return self

    def database_url_as(self, role: str) -> str:
        """The database's address for a login role."""
        return _with_user(self.database_url, role, self.database_password)

    @property
    def database_url_own(self) -> str:
        """The address as given: its own user migrates."""
        return self.database_url.get_secret_value()


class SliceSettings(Environment):
    """Base of a slice's own settings; a subclass sets ``env_prefix`` to ``ROWCLAIM_<SLICE>_``.

    A field ``attempt_bound_s`` is held to the graceful stop: an attempt must end before its process is given up.
    """


SettingsT = TypeVar("SettingsT", bound=Environment)


def _with_user(url: SecretStr, user: str, password: SecretStr | None) -> str:
    split = urlsplit(url.get_secret_value())
    secret = split.password if password is None else quote(password.get_secret_value(), safe="")
    who = quote(user, safe="") if secret is None else f"{quote(user, safe='')}:{secret}"
    return split._replace(netloc=f"{who}@{split.netloc.rpartition('@')[2]}").geturl()


def variables(kind: type[Environment]) -> dict[str, str]:
    """Every environment variable of a settings class, and the field it fills; ``NAME_FILE`` only for secrets."""
    prefix = kind.model_config.get("env_prefix", "")
    named: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        named[f"{prefix}{name}".upper()] = name
        if is_secret(field.annotation):
            named[f"{prefix}{name}{FILE}".upper()] = name
    return named


def is_secret(annotation: object) -> bool:
    return "SecretStr" in str(annotation)


def load_settings(kind: type[SettingsT], environ: Mapping[str, str] = os.environ) -> SettingsT:
    """Read and validate one class of settings. Raises Stop("setting_invalid"), which names the variable alone."""
    given: dict[str, Any] = {}
    for variable, name in variables(kind).items():
        if variable not in environ:
            continue
        if name in given:
            raise Stop("setting_invalid", f"{variable.removesuffix(FILE)} and {variable} are both set; keep one")
        given[name] = _read(variable, environ[variable]) if variable.endswith(FILE) else environ[variable]
    try:
        return kind(**given)
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        faults = [
            ": ".join(
                [
                    *(f"{prefix}{str(name).upper()}" for name in fault["loc"][:1]),
                    fault["msg"].split("Value error, ")[-1],
                ]
            )
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        # "from None": the driver's error holds the values, and one of them may be a secret.
        raise Stop("setting_invalid", "; ".join(faults)) from None


def _read(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Stop("setting_invalid", f"{variable}: cannot be read ({type(error).__name__})") from None


def refuse_unknown(kinds: Iterable[type[Environment]], environ: Mapping[str, str] = os.environ) -> None:
    """Raise Stop("setting_unknown") for ``ROWCLAIM_`` names that no class has, each with the nearest known name."""
    known = {variable.removeprefix(PREFIX) for kind in kinds for variable in variables(kind)}
    unknown = {name for name in environ if name.startswith(PREFIX)} - {PREFIX + name for name in known}
    faults: list[str] = []
    for name in sorted(unknown):
        near = difflib.get_close_matches(name.removeprefix(PREFIX).upper(), known, n=1)
        faults.append(f"{name} (did you mean {PREFIX}{near[0]}?)" if near else f"{name} (no setting is like it)")
    if faults:
        raise Stop("setting_unknown", ", ".join(faults))


def hold_relations(settings: Settings, slices: Iterable[SliceSettings]) -> None:
    """Raise Stop("setting_invalid") when an attempt of a slice could outlast the graceful stop."""
    for own in slices:
        bound_s = getattr(own, "attempt_bound_s", None)
        if bound_s is not None and bound_s + STOP_MARGIN_S >= settings.graceful_stop_s:
            prefix = own.model_config.get("env_prefix", "")
            raise Stop(
                "setting_invalid",
                f"{prefix}ATTEMPT_BOUND_S ({bound_s:g}) + {STOP_MARGIN_S:g} must stay below"
                f" {PREFIX}GRACEFUL_STOP_S ({settings.graceful_stop_s:g})",
            )
