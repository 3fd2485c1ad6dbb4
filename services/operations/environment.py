"""A process's settings: everybody's and those of the slices it runs, held against each other, and no name unknown.

A name that begins with ``ROWCLAIM_`` and names no setting is refused with the nearest known one, because a misspelt
setting is a default that nobody chose.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import AnyHttpUrl
from pydantic_settings import SettingsConfigDict

from services.kernel.errors import Stop
from services.kernel.service import Service
from services.kernel.settings import (
    PREFIX,
    STOP_MARGIN_S,
    Environment,
    Settings,
    SliceSettings,
    load_settings,
    variables,
)


class SandboxSettings(Environment):
    """What only the commands for newcomers need; no service reads it."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}SANDBOX_")

    url: AnyHttpUrl | None = None
    """The control API of the sandbox that stands in the vendors' place; unset: none does."""


def kinds_of(known: Iterable[Service]) -> list[type[Environment]]:
    """Every class of settings of an installation of these slices."""
    return [Settings, SandboxSettings, *(service.settings for service in known)]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings of a process: everybody's and each slice's own."""

    settings: Settings
    own: Mapping[type[SliceSettings], SliceSettings]


def load(known: Iterable[Service], needed: Iterable[Service] = (), environ: Mapping[str, str] = os.environ) -> Loaded:
    """The settings of a process that runs ``needed``: valid, relations held, no name that nobody of ``known`` has.

    What an idle slice would need is not asked for: a process that migrates holds no vendor's key.
    """
    refuse_unknown(kinds_of(known), environ)
    settings = load_settings(Settings, environ)
    own = {service.settings: load_settings(service.settings, environ) for service in needed}
    hold_relations(settings, own.values())
    return Loaded(settings, own)


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
    """Raise Stop("setting_invalid") when heartbeats cannot keep a session, or an attempt outlasts the graceful stop."""
    if settings.kafka_heartbeat_ms * 3 > settings.kafka_session_timeout_ms:
        lives = f"{PREFIX}KAFKA_SESSION_TIMEOUT_MS ({settings.kafka_session_timeout_ms})"
        raise Stop("setting_invalid", f"{lives} must be at least three times {PREFIX}KAFKA_HEARTBEAT_MS")
    for own in slices:
        bound_s = getattr(own, "attempt_bound_s", None)
        if bound_s is not None and bound_s + STOP_MARGIN_S >= settings.graceful_stop_s:
            prefix = own.model_config.get("env_prefix", "")
            raise Stop(
                "setting_invalid",
                f"{prefix}ATTEMPT_BOUND_S ({bound_s:g}) + {STOP_MARGIN_S:g} must stay below"
                f" {PREFIX}GRACEFUL_STOP_S ({settings.graceful_stop_s:g})",
            )
