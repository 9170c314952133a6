"""Allows pages of listed origins to call this gateway from a browser, and no others. Off unless origins are listed.

A page shows a key like any client: cookies are not used, so that none is ever asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.config.sections import CorsConfig

_SECOND_NS = 1_000_000_000
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")


class Cors:
    """CORS headers of answers."""

    def __init__(self, config: CorsConfig) -> None:
        self._origins = frozenset(config.origins)
        self.is_on = bool(config.origins)
        self._max_age = str(config.max_age_ns // _SECOND_NS)

    def headers(self, asked: Mapping[str, str]) -> Mapping[str, str]:
        """Headers for any answer to a request with the headers `asked`. `vary: origin` is sent to every client, for the
        sake of caches in between."""
        origin = asked.get("origin")
        if origin not in self._origins:
            return {"vary": "origin"} if self._origins else {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}

    def preflight(self, asked: Mapping[str, str], methods: Iterable[str]) -> Mapping[str, str]:
        """Headers that answer a browser's preflight. Any header may be sent, as by any other client."""
        told = dict(self.headers(asked))
        if "access-control-allow-origin" not in told or "access-control-request-method" not in asked:
            return told
        told |= {"access-control-allow-methods": ", ".join(methods), "access-control-max-age": self._max_age}
        wanted = asked.get("access-control-request-headers", "")
        if _HEADER_NAMES.fullmatch(wanted):
            told["access-control-allow-headers"] = wanted
        return told
