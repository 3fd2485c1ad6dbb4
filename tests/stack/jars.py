"""The jars of Apache Kafka: named by `pom.xml`, fetched by Maven once a change of it, found offline from then on."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
POM: Final = Path(__file__).with_name("pom.xml")
JAVA_MIN: Final = 17
JAVA_S: Final = 30.0
FETCH_S: Final = 240.0
SAID_LINES: Final = 4


class Unavailable(Exception):
    """Apache Kafka cannot be had here in this way; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Jars:
    """A Java of 17 or newer, and the folder that holds every jar."""

    java: Path
    folder: Path

    @property
    def classpath(self) -> str:
        return f"{self.folder}/*"


def find_jars(pom: Path = POM, environ: Mapping[str, str] = os.environ) -> Jars:
    """What a broker is started with; four minutes at most where Maven must fetch it. Raises Unavailable."""
    java = find_java(environ)
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    folder = _cache(environ) / digest
    if not folder.is_dir():
        _fetch(pom, folder, environ)
    return Jars(java, folder)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The Java of JAVA_HOME, else of PATH. Raises Unavailable when there is none, or one that is too old."""
    home = environ.get("JAVA_HOME")
    found = str(Path(home, "bin/java")) if home else shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise Unavailable(f"there is no java in PATH (Java {JAVA_MIN} or newer is needed)")
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=JAVA_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{found} does not run ({type(error).__name__})") from error
    version = re.search(r'version "(\d+)', done.stderr)
    if version is None or int(version[1]) < JAVA_MIN:
        said = (done.stderr.splitlines() or ["nothing"])[0]
        raise Unavailable(f"{found} is not Java {JAVA_MIN} or newer (it says: {said})")
    return Path(found)


def _cache(environ: Mapping[str, str]) -> Path:
    """Beside what other tools keep for this user, so that a fresh clone finds it; in the clone where that is closed."""
    kept = environ.get("XDG_CACHE_HOME")
    usual = (Path(kept) if kept else Path(environ.get("HOME", "/nowhere"), ".cache")) / "rowclaim" / "stack"
    try:
        usual.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ROOT / "var" / "stack"
    return usual if os.access(usual, os.W_OK) else ROOT / "var" / "stack"


def _fetch(pom: Path, folder: Path, environ: Mapping[str, str]) -> None:
    maven = shutil.which("mvn", path=environ.get("PATH", ""))
    if maven is None:
        raise Unavailable("there is no mvn in PATH (Maven fetches the jars once)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="fetching-", dir=folder.parent))
    try:
        _copy_dependencies(maven, pom, fresh, environ)
        # Whole or not at all; somebody else may have been first.
        with suppress(OSError):
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _copy_dependencies(maven: str, pom: Path, folder: Path, environ: Mapping[str, str]) -> None:
    command = (maven, "--batch-mode", "--quiet", "--file", pom, "dependency:copy-dependencies")
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not fetch the jars of {pom.name} within {FETCH_S:g} s") from None
    if done.returncode != 0 or not any(folder.glob("*.jar")):
        told = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:SAID_LINES]
        raise Unavailable(f"Maven did not fetch the jars of {pom.name} (exit {done.returncode}): " + " ".join(told))
