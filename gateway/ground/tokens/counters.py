"""Counts what tokens were shown and what came of it, and how old what is known of their issuers is, for Prometheus. It
knows no token and nobody who has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.registry import Collector

from gateway.ground.series import Level, Tally

VALID, REMEMBERED = "valid", "remembered"
FETCHED, FAILED = "fetched", "failed"


class TokenCounters:
    """Of one program, over all its issuers. `use` is whom tokens are for: `clients` or `operators`."""

    def __init__(self) -> None:
        self.verified = Tally(
            "nightside_token_verifications",
            "Tokens that were shown: valid, remembered as valid, or why not. No issuer is named that is not ours.",
            ("use", "issuer", "result"),
        )
        self.fetches = Tally(
            "nightside_issuer_fetches",
            "Times that an issuer's keys were fetched, why (start, interval, unknown_key), and what came of it.",
            ("use", "issuer", "cause", "result"),
        )
        self._age = Level(
            "nightside_issuer_keys_age_seconds",
            "Since an issuer's keys were fetched; infinite where they never were. Over its stale_after they are not "
            "believed.",
            ("use", "issuer"),
        )
        self._keys = Level(
            "nightside_issuer_keys", "Keys of an issuer that signatures are held against.", ("use", "issuer")
        )

    def follow(self, use: str, issuer: str, age_s: Callable[[], float], keys: Callable[[], float]) -> None:
        """Asked at each scrape."""
        self._age.follow(age_s, use, issuer)
        self._keys.follow(keys, use, issuer)

    def collectors(self) -> Iterator[Collector]:
        yield from (self.verified, self.fetches, self._age, self._keys)
