"""Settings: read once, validated by name, secrets never shown, misspelt names refused."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from services.kernel.errors import Stop
from services.kernel.settings import (
    Secrets,
    Settings,
    SliceSettings,
    load_settings,
    variables,
)

URL = "postgres://owner:letmein@db.internal:5433/rowclaim?sslmode=require"
GIVEN = {"ROWCLAIM_DATABASE_URL": URL}


class ToySettings(SliceSettings):
    model_config = SettingsConfigDict(env_prefix="ROWCLAIM_TOY_")

    api_key: SecretStr
    keys: Secrets = ()


def test_what_is_set_is_taken_and_the_rest_has_its_default() -> None:
    settings = load_settings(Settings, GIVEN | {"ROWCLAIM_HTTP_PORT": "9000", "ROWCLAIM_KAFKA_IDEMPOTENT": "false"})
    assert (settings.http_port, settings.kafka_idempotent) == (9000, False)
    assert (settings.http_host, settings.graceful_stop_s, settings.pagerduty_routing_key) == ("127.0.0.1", 45.0, None)


def test_only_the_given_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCLAIM_HTTP_PORT", "9001")
    monkeypatch.setenv("ROWCLAIM_DATABASE_URL", "postgres://other/db")
    assert load_settings(Settings, GIVEN).http_port == 8080
    with pytest.raises(Stop, match="ROWCLAIM_DATABASE_URL"):
        load_settings(Settings, {})


def test_settings_do_not_change_once_loaded() -> None:
    settings = load_settings(Settings, GIVEN)
    with pytest.raises(ValidationError, match="frozen"):
        settings.http_port = 1


def test_no_representation_shows_a_secret() -> None:
    settings = load_settings(
        Settings,
        GIVEN | {"ROWCLAIM_DATABASE_PASSWORD": "hunter2", "ROWCLAIM_VALKEY_URL": "redis://:letmein@valkey:6379/0"},
    )
    shown = f"{settings!r} {settings} {settings.model_dump_json()}"
    assert "letmein" not in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("environ", "named", "secret"),
    [
        ({}, "ROWCLAIM_DATABASE_URL: is not set", "-"),
        (
            {"ROWCLAIM_DATABASE_URL": "mysql://letmein@h/d"},
            "ROWCLAIM_DATABASE_URL: must begin with postgres",
            "letmein",
        ),
        ({"ROWCLAIM_DATABASE_URL": "postgres://letmein@h:x/d"}, "ROWCLAIM_DATABASE_URL: is no address", "letmein"),
        (GIVEN | {"ROWCLAIM_HTTP_PORT": "letmein"}, "ROWCLAIM_HTTP_PORT: ", "letmein"),
        (GIVEN | {"ROWCLAIM_HTTP_PORT": "70000"}, "ROWCLAIM_HTTP_PORT: ", "70000"),
        (GIVEN | {"ROWCLAIM_GRACEFUL_STOP_S": "60"}, "ROWCLAIM_GRACEFUL_STOP_S: ", "-"),
    ],
)
def test_a_value_that_cannot_be_is_told_by_its_variable(environ: dict[str, str], named: str, secret: str) -> None:
    with pytest.raises(Stop, match="setting_invalid") as stopped:
        load_settings(Settings, environ)
    assert named in stopped.value.detail
    assert secret not in str(stopped.value)
    # A traceback prints the chain of causes, and pydantic's error would print the value.
    assert stopped.value.__cause__ is None
    assert stopped.value.__suppress_context__


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(Stop) as stopped:
        load_settings(Settings, {"ROWCLAIM_HTTP_PORT": "x", "ROWCLAIM_LOG_LEVEL": "loud"})
    assert [name in stopped.value.detail for name in ("DATABASE_URL", "HTTP_PORT", "LOG_LEVEL")] == [True] * 3


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from a file\n")
    settings = load_settings(ToySettings, {"ROWCLAIM_TOY_API_KEY_FILE": str(file)})
    assert settings.api_key.get_secret_value() == "from a file"
    (tmp_path / "keys").write_text("old, new\n")
    environ = {"ROWCLAIM_TOY_API_KEY": "k", "ROWCLAIM_TOY_KEYS_FILE": str(tmp_path / "keys")}
    assert [key.get_secret_value() for key in load_settings(ToySettings, environ).keys] == ["old", "new"]


def test_a_secret_has_one_place(tmp_path: Path) -> None:
    with pytest.raises(Stop, match="ROWCLAIM_TOY_API_KEY and ROWCLAIM_TOY_API_KEY_FILE are both set"):
        load_settings(ToySettings, {"ROWCLAIM_TOY_API_KEY": "k", "ROWCLAIM_TOY_API_KEY_FILE": str(tmp_path / "k")})


def test_a_secret_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for place in (tmp_path / "absent", tmp_path, tmp_path / "binary"):
        with pytest.raises(Stop, match="ROWCLAIM_TOY_API_KEY_FILE: cannot be read"):
            load_settings(ToySettings, {"ROWCLAIM_TOY_API_KEY_FILE": str(place)})


def test_what_is_no_secret_has_no_file() -> None:
    named = variables(Settings)
    assert "ROWCLAIM_HTTP_PORT_FILE" not in named
    assert {name for name in named if name.endswith("_FILE")} >= {
        "ROWCLAIM_DATABASE_URL_FILE",
        "ROWCLAIM_DATABASE_PASSWORD_FILE",
        "ROWCLAIM_PAGERDUTY_ROUTING_KEY_FILE",
        "ROWCLAIM_S3_SECRET_KEY_FILE",
    }


@pytest.mark.parametrize(
    ("url", "password", "expected"),
    [
        (URL, None, "postgres://rowclaim_toy:letmein@db.internal:5433/rowclaim?sslmode=require"),
        (URL, "p@ss/w:rd", "postgres://rowclaim_toy:p%40ss%2Fw%3Ard@db.internal:5433/rowclaim?sslmode=require"),
        ("postgres://h/d", None, "postgres://rowclaim_toy@h/d"),
        ("postgresql://postgres@/d?host=/tmp/rc&port=1", None, "postgresql://rowclaim_toy@/d?host=/tmp/rc&port=1"),
        ("postgres://a%40b:c%40d@h/d", None, "postgres://rowclaim_toy:c%40d@h/d"),
    ],
)
def test_a_login_role_takes_the_place_of_the_user(url: str, password: str | None, expected: str) -> None:
    environ = {"ROWCLAIM_DATABASE_URL": url} | ({"ROWCLAIM_DATABASE_PASSWORD": password} if password else {})
    settings = load_settings(Settings, environ)
    assert settings.database_url_as("rowclaim_toy") == expected
    assert settings.database_url_own == url
