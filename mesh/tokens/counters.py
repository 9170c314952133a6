"""Counts token verifications and fetches of issuers' keys, and shows the age of the keys, for Prometheus. It knows no
token and no holder of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Protocol

from prometheus_client.registry import Collector

from mesh.series import CounterSeries, Level
from mesh.tokens.words import TokenFault

VALID, REMEMBERED = "valid", "remembered"
RESULTS = (VALID, REMEMBERED, *TokenFault)
FETCHED, FAILED = "fetched", "failed"
AT_START, BY_INTERVAL, UNKNOWN_KEY = CAUSES = ("start", "interval", "unknown_key")
"""Causes of fetching keys."""


class CountedIssuer(Protocol):
    """State of an issuer that the gauges show."""

    failures: int
    """Failures in a row of fetching its keys."""

    @property
    def keys(self) -> Sized: ...
    @property
    def is_usable(self) -> bool: ...
    def age_s(self) -> float: ...


class TokenCounters:
    """Counters of one program, over all its issuers. `use` is what the tokens are for: `clients` or `operators`."""

    def __init__(self) -> None:
        self.verified = CounterSeries(
            "nightside_token_verifications",
            "Verifications of bearer tokens, by issuer and result; unknown issuers have an empty name.",
            ("use", "issuer", "result"),
        )
        self.fetches = CounterSeries(
            "nightside_issuer_fetches",
            "Fetches of an issuer's keys, by cause and result.",
            ("use", "issuer", "cause", "result"),
        )
        self._age = Level(
            "nightside_issuer_keys_age_seconds",
            "Time since the last successful fetch of an issuer's keys; infinite before the first.",
            ("use", "issuer"),
        )
        self._keys = Level(
            "nightside_issuer_keys", "Keys of an issuer that are trusted to verify signatures.", ("use", "issuer")
        )

        self._unreachable = Level(
            "nightside_issuer_unreachable", "1 while fetching an issuer's keys fails.", ("use", "issuer")
        )
        self._unusable = Level(
            "nightside_issuer_unusable",
            "1 while all tokens of an issuer are refused, because its keys are unknown or older than `stale_after`.",
            ("use", "issuer"),
        )

    def follow(self, issuer: CountedIssuer, use: str, name: str) -> None:
        """Read the issuer's gauges at each scrape."""
        self._age.follow(issuer.age_s, use, name)
        self._keys.follow(lambda: len(issuer.keys), use, name)
        self._unreachable.follow(lambda: bool(issuer.failures), use, name)
        self._unusable.follow(lambda: not issuer.is_usable, use, name)

    def collectors(self) -> Iterator[Collector]:
        yield from (self.verified, self.fetches, self._age, self._keys, self._unreachable, self._unusable)
