"""A process's settings: those of the slices it runs, held against each other, and no name that nobody knows."""

from typing import Annotated

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from services.kernel.errors import Stop
from services.kernel.settings import Secrets, Settings, SliceSettings, load_settings
from services.operations.environment import SandboxSettings, hold_relations, kinds_of, load, refuse_unknown
from tests.operations.conftest import OTHER, TOY
from tests.operations.conftest import ToySettings as ColourSettings

GIVEN = {"ROWCLAIM_DATABASE_URL": "postgres://owner@db.internal:5433/rowclaim"}


class ToySettings(SliceSettings):
    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_TOY_")

    api_key: SecretStr
    keys: Secrets = ()
    attempt_bound_s: Annotated[float, Field(gt=0)] = 20.0


class PlainSettings(SliceSettings):
    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_PLAIN_")


def test_the_settings_of_the_slices_it_runs_are_asked_for_and_no_others() -> None:
    environ = GIVEN | {"ROWCLAIM_FULFILLMENT_COLOUR": "red"}
    assert load((TOY, OTHER), (), environ).own == {}
    assert load((TOY, OTHER), (TOY,), environ).own == {ColourSettings: ColourSettings(colour="red")}
    with pytest.raises(Stop, match="ROWCLAIM_INGRESS_NEEDED"):
        load((TOY, OTHER), (TOY, OTHER), environ)
    with pytest.raises(Stop, match="setting_unknown"):
        load((OTHER,), (), environ)


def test_a_name_nobody_knows_is_refused_with_the_nearest() -> None:
    environ = {"ROWCLAIM_HTPP_PORT": "1", "ROWCLAIM_TOY_API_KEI": "x", "ROWCLAIM_QZVXWJ": "", "PATH": "/bin"}
    with pytest.raises(Stop, match="setting_unknown") as stopped:
        refuse_unknown([Settings, ToySettings], environ)
    assert stopped.value.detail == (
        "ROWCLAIM_HTPP_PORT (did you mean ROWCLAIM_HTTP_PORT?), ROWCLAIM_QZVXWJ (no setting is like it),"
        " ROWCLAIM_TOY_API_KEI (did you mean ROWCLAIM_TOY_API_KEY?)"
    )
    assert stopped.value.code.exit == 78


def test_where_the_sandbox_is_is_no_slices_and_known_to_all() -> None:
    assert kinds_of((TOY, OTHER)) == [Settings, SandboxSettings, TOY.settings, OTHER.settings]
    load((TOY,), (), GIVEN | {"ROWCLAIM_SANDBOX_URL": "http://127.0.0.1:20000/control"})
    for url in ("127.0.0.1:20000", "ftp://127.0.0.1"):
        with pytest.raises(Stop, match="setting_invalid: ROWCLAIM_SANDBOX_URL"):
            load_settings(SandboxSettings, {"ROWCLAIM_SANDBOX_URL": url})


def test_letter_case_counts() -> None:
    with pytest.raises(Stop, match=r"ROWCLAIM_http_port .did you mean ROWCLAIM_HTTP_PORT"):
        refuse_unknown([Settings], {"ROWCLAIM_http_port": "1"})


def test_known_names_pass_also_those_of_an_idle_slice() -> None:
    refuse_unknown([Settings, ToySettings], GIVEN | {"ROWCLAIM_TOY_KEYS_FILE": "/run/keys", "ROWCLAIM_RUN": "r"})
    with pytest.raises(Stop, match="ROWCLAIM_TOY_KEYS"):
        refuse_unknown([Settings], {"ROWCLAIM_TOY_KEYS": "k"})


def test_an_attempt_ends_before_its_process_is_given_up() -> None:
    settings = load_settings(Settings, GIVEN | {"ROWCLAIM_GRACEFUL_STOP_S": "30.5"})
    toy = {"ROWCLAIM_TOY_API_KEY": "k"}
    plain = load_settings(PlainSettings, {})
    hold_relations(settings, [load_settings(ToySettings, toy | {"ROWCLAIM_TOY_ATTEMPT_BOUND_S": "20.4"}), plain])
    with pytest.raises(Stop, match=r"ROWCLAIM_TOY_ATTEMPT_BOUND_S .20.5. .* below ROWCLAIM_GRACEFUL_STOP_S .30.5."):
        hold_relations(settings, [load_settings(ToySettings, toy | {"ROWCLAIM_TOY_ATTEMPT_BOUND_S": "20.5"})])


def test_heartbeats_keep_a_session() -> None:
    hold_relations(load_settings(Settings, GIVEN | {"ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS": "9000"}), [])
    with pytest.raises(Stop, match=r"SESSION_TIMEOUT_MS .8999. must be at least three times"):
        hold_relations(load_settings(Settings, GIVEN | {"ROWCLAIM_KAFKA_SESSION_TIMEOUT_MS": "8999"}), [])
