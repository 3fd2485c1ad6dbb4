"""Finding the jars: once by Maven, then offline; and one clear reason where they cannot be had."""

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.stack.jars import POM, Unavailable, find_jars

MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a machine that has a shell and nothing else; programs are planted in its first folder."""
    (tmp_path / "bin").mkdir()
    return {"PATH": f"{tmp_path / 'bin'}", "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}


@pytest.fixture
def programs(machine: Mapping[str, str]) -> Path:
    return Path(machine["PATH"])


def java(programs: Path, version: str = "17.0.15") -> Path:
    return program(programs, "java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")


def maven(programs: Path, end: str = "exit 0") -> Path:
    """A Maven that writes down that it was asked, makes one jar, and ends as told."""
    asked = programs.parent / "asked"
    make = 'for a in "$@"; do case $a in -DoutputDirectory=*) : > "${a#-DoutputDirectory=}/kafka.jar";; esac; done'
    program(programs, "mvn", f'echo "$@" >> {asked}\n{make}\n{end}')
    return asked


def test_the_jars_are_fetched_once_and_found_offline_until_the_pom_changes(
    machine: Mapping[str, str], programs: Path, tmp_path: Path
) -> None:
    asked = maven(programs)
    pom = tmp_path / "pom.xml"
    pom.write_bytes(POM.read_bytes())
    found = find_jars(pom, {**machine, "PATH": f"{programs}:/usr/bin:/bin", "JAVA_HOME": str(java_home(tmp_path))})
    assert [jar.name for jar in found.folder.iterdir()] == ["kafka.jar"]
    assert found.classpath == f"{found.folder}/*"
    asked.unlink()
    (programs / "mvn").unlink()
    environ = {**machine, "JAVA_HOME": str(tmp_path / "jdk")}
    assert find_jars(pom, environ) == found, "without Maven, and without a network"
    pom.write_bytes(POM.read_bytes() + b"\n")
    with pytest.raises(Unavailable, match="no mvn in PATH"):
        find_jars(pom, environ)


def java_home(folder: Path, version: str = "21.0.1") -> Path:
    home = folder / "jdk"
    (home / "bin").mkdir(parents=True)
    java(home / "bin", version)
    return home


def test_a_half_fetched_folder_is_not_kept(machine: Mapping[str, str], programs: Path) -> None:
    java(programs)
    maven(programs, "echo '[INFO] nothing'; echo '[ERROR] network is unreachable: kafka_2.13' >&2; exit 1")
    with pytest.raises(Unavailable) as refused:
        find_jars(POM, {**machine, "PATH": f"{programs}:/usr/bin:/bin"})
    assert str(refused.value) == (
        "Maven did not fetch the jars of pom.xml (exit 1): [ERROR] network is unreachable: kafka_2.13"
    )
    assert list((Path(machine["XDG_CACHE_HOME"]) / "rowclaim" / "stack").iterdir()) == []


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, "there is no java in PATH"), ("11.0.2", "is not Java 17 or newer"), ("1.8.0_402", "is not Java 17")],
)
def test_a_missing_or_old_java_is_the_reason(
    machine: Mapping[str, str], programs: Path, version: str | None, reason: str
) -> None:
    if version is not None:
        java(programs, version)
    with pytest.raises(Unavailable, match=reason):
        find_jars(POM, machine)


def test_a_java_home_that_leads_nowhere_is_the_reason(machine: Mapping[str, str], programs: Path) -> None:
    java(programs)
    with pytest.raises(Unavailable, match=r"/nowhere/bin/java does not run \(FileNotFoundError\)"):
        find_jars(POM, {**machine, "JAVA_HOME": "/nowhere"})


def test_without_a_home_to_write_in_the_jars_are_kept_in_the_clone(
    machine: Mapping[str, str], programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.stack.jars.ROOT", tmp_path / "clone")
    java(programs)
    maven(programs)
    (tmp_path / "file").touch()
    closed = {**machine, "PATH": f"{programs}:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "file")}
    assert find_jars(POM, closed).folder.parent == tmp_path / "clone" / "var" / "stack"


def test_every_engine_has_one_version_and_the_compose_file_the_same() -> None:
    project = ElementTree.parse(POM).getroot()  # noqa: S314 - our own file
    versions = {
        one.findtext(f"{MAVEN}groupId"): one.findtext(f"{MAVEN}version") for one in project.iter(f"{MAVEN}dependency")
    }
    assert versions["org.apache.kafka"] == "${kafka.version}"
    assert versions["io.debezium"] == "${debezium.version}"
    kafka = project.findtext(f"{MAVEN}properties/{MAVEN}kafka.version")
    compose = (POM.parents[2] / "docker-compose.yml").read_text(encoding="utf-8")
    assert re.findall(r"image: apache/kafka:(\S+)", compose) == [kafka]
