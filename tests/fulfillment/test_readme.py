"""What the README shows is run: another product in the place of one file, and the flow's tests as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.fulfillment.machine import PURCHASES
from tests.fixtures.database import ROOT

README = ROOT / "services/fulfillment/README.md"
REPLACED = "services/fulfillment/gateway/invite.py"
UNEDITED = ("tests/fulfillment/flow",)

# The vendor's double speaks its product's wire format, as `tests/fulfillment/product.py` does for GitHub.
LICENCE_SERVER = '''
"""A licence server in front of a scripted vendor."""

import json

import httpx
from pydantic import SecretStr

from services.fulfillment.flow.flush import Inviter
from services.fulfillment.gateway.invite import GATE, InviteSettings, LicenceKeys
from services.kernel.gate import Gates
from services.vendors.http import http_client
from tests.fulfillment.vendor import Says, Vendor

STATUS = {Says.YES: 201, Says.HAD_IT: 200, Says.NO: 422, Says.NO_BECAUSE: 418, Says.TROUBLE: 503, Says.WAIT: 429}


def open_product(vendor: Vendor, gates: Gates) -> Inviter:
    issued: dict[str, str] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            number = request.url.path.rsplit("/", 1)[-1]
            vendor.questions.append(number)
            return httpx.Response(200, text="KEY") if number in issued else httpx.Response(404)
        asked = json.loads(request.content)
        says = await vendor.asked(asked["holder"])
        if says in (Says.YES, Says.CUT_OFF):
            issued[str(asked["purchase"])] = asked["holder"]
        if says is Says.CUT_OFF:
            raise httpx.ReadError("connection reset")
        headers = {"retry-after": "30"} if says is Says.WAIT else {}
        return httpx.Response(STATUS.get(says, 401), text="KEY", headers=headers)

    settings = InviteSettings(licences_url="https://licences.test", licences_token=SecretStr("x"))
    return LicenceKeys(settings, http_client(httpx.MockTransport(answer)), gates)
'''


def test_the_machine_is_drawn() -> None:
    assert f"```mermaid\n{PURCHASES.mermaid()}\n```" in README.read_text(encoding="utf-8")


@pytest.mark.promise("F85")
@pytest.mark.timeout(400)
def test_one_file_replaced_is_another_product_and_the_flows_tests_pass_unedited(tmp_path: Path) -> None:
    for part in ("services", "schemas", "migrations", "tests", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (gateway,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / REPLACED).write_text(gateway, encoding="utf-8")
    (tmp_path / "tests/fulfillment/product.py").write_text(LICENCE_SERVER, encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *UNEDITED],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ROWCLAIM_"))},
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    passed = int(re.findall(r"(\d+) passed", ran.stdout)[0])
    assert passed > 80
    assert "github" not in gateway.lower()
