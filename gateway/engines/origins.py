"""Turns an engine's base URL into the server that connections are kept for. It opens none."""

from __future__ import annotations

import ssl
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from gateway.engines.tls import EngineTls
from gateway.http1.client import HttpOrigin

_SCHEMES = {"http": 80, "https": 443}


@lru_cache(maxsize=4096)
def origin_of(url: str, tls: EngineTls | None = None) -> tuple[HttpOrigin, str]:
    """Server of an engine's base URL, and the path prefix of all its routes: the same object for the same engine.
    Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{url} is no http or https URL with a host")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "http":
        return HttpOrigin(parts.hostname, _port_of(parts), None), prefix
    context = ssl.create_default_context() if tls is None else tls.context
    return HttpOrigin(parts.hostname, _port_of(parts), context, None if tls is None else tls.server_name), prefix


def _port_of(parts: SplitResult) -> int:
    return parts.port or _SCHEMES[parts.scheme]
