"""Lets pages of listed origins call this gateway from a browser, and no others. Off unless somebody lists them.

A page shows a key as any client does: no cookie counts here, so that none is ever asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from aiohttp import web

from gateway.config.sections import CorsConfig

_SECOND_NS = 1_000_000_000
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")


class Cors:
    """What browsers are told beside the answers to their pages."""

    def __init__(self, config: CorsConfig) -> None:
        self._origins = frozenset(config.origins)
        self._max_age = str(config.max_age_ns // _SECOND_NS)

    @property
    def is_on(self) -> bool:
        return bool(self._origins)

    def headers(self, request: web.Request) -> Mapping[str, str]:
        """For any answer. That it differs by origin is said to everybody, for the sake of caches in between."""
        origin = request.headers.get("origin")
        if origin not in self._origins:
            return {"vary": "origin"} if self._origins else {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}

    def preflight(self, request: web.Request, methods: Iterable[str]) -> Mapping[str, str]:
        """For the answer to a browser that asks whether a page may send what it wants to send; any header may be sent,
        as from any other client."""
        told = dict(self.headers(request))
        if "access-control-allow-origin" not in told or "access-control-request-method" not in request.headers:
            return told
        told |= {"access-control-allow-methods": ", ".join(methods), "access-control-max-age": self._max_age}
        wanted = request.headers.get("access-control-request-headers", "")
        if _HEADER_NAMES.fullmatch(wanted):
            told["access-control-allow-headers"] = wanted
        return told
