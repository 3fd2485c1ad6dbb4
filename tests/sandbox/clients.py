"""An HTTP client for loopback: no proxies from the environment, and certificates read once for the whole suite."""

from typing import Any

import httpx

from services.sandbox.outbox import trust


def plain(**options: Any) -> httpx.AsyncClient:
    """httpx.AsyncClient with these options."""
    return httpx.AsyncClient(verify=trust(), trust_env=False, **options)
