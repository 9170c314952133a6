"""Caches what each token grants: a token is verified once, and remembered until it expires, or its issuer's keys change
or become too old.

The cache is bounded, and holds no token, only a digest of each.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from mesh.clock import Clock
from mesh.tokens.config import IssuerConfig
from mesh.tokens.counters import REMEMBERED, VALID, TokenCounters
from mesh.tokens.issuer import Issuer
from mesh.tokens.key_set import PublicKeys
from mesh.tokens.words import TokenFault, TokenRefused

REMEMBERED_MAX = 20_000
_DIGEST_BYTES = 32

_Grant = TypeVar("_Grant")
Grant = Callable[[IssuerConfig, Mapping[str, Any]], _Grant]
"""Callback that maps verified claims to what they grant. Raises TokenRefused."""


class _Remembered(Struct, Generic[_Grant], frozen=True):
    grant: _Grant
    issuer: Issuer
    keys: PublicKeys
    """Keys that the token was verified with."""
    expires_ns: int


class Tokens(Generic[_Grant]):
    """Tokens that one program accepts for one use."""

    def __init__(
        self,
        use: str,
        issuers: Sequence[Issuer],
        grant: Grant[_Grant],
        *,
        clock: Clock,
        counters: TokenCounters,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        """Set up the cache. The library that verifies signatures is loaded with the first instance, since most programs
        start without one."""
        from mesh.tokens import verifying  # noqa: PLC0415 - as above

        self.issuers = issuers
        self._verifying = verifying
        self._use = use
        self._by_url = {each.config.issuer: each for each in issuers}
        self._grant = grant
        self._clock = clock
        self._counters = counters
        self._remembered_max = remembered_max
        self._remembered: OrderedDict[bytes, _Remembered[_Grant]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._remembered)

    def check(self, token: str) -> _Grant:
        """Return what a token grants, without contacting an issuer. Raises TokenRefused."""
        try:
            return self._check(token)
        except TokenRefused as refused:
            self._counters.verified.add(self._use, refused.issuer, refused.reason)
            raise

    async def identify(self, token: str) -> _Grant:
        """Return what a token grants, as `check` does. For an unknown key, the issuer's keys are fetched first, unless
        they just were."""
        try:
            return self._check(token)
        except TokenRefused as refused:
            issuer = self._may_be_news_to(refused)
            if issuer is None or not await issuer.refetched():
                self._counters.verified.add(self._use, refused.issuer, refused.reason)
                raise
        return self.check(token)

    def _check(self, token: str) -> _Grant:
        digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
        known = self._remembered.get(digest)
        if known is not None and known.keys is known.issuer.keys and known.issuer.is_usable:
            if self._clock.wall_ns() <= known.expires_ns:
                self._remembered.move_to_end(digest)
                self._counters.verified.add(self._use, known.issuer.config.name, REMEMBERED)
                return known.grant
            del self._remembered[digest]
        fresh = self._verify(token)
        self._counters.verified.add(self._use, fresh.issuer.config.name, VALID)
        self._remembered[digest] = fresh
        self._remembered.move_to_end(digest)
        if len(self._remembered) > self._remembered_max:
            self._remembered.popitem(last=False)
        return fresh.grant

    def _verify(self, token: str) -> _Remembered[_Grant]:
        told = self._verifying.read_token(token)
        issuer = self._by_url.get(told.issuer)
        if issuer is None:
            raise TokenRefused(TokenFault.ISSUER)
        config, keys = issuer.config, issuer.keys
        if not issuer.is_usable:
            raise TokenRefused(TokenFault.UNAVAILABLE, config.name)
        claims = self._verifying.verify(told, config, keys, self._clock.wall_ns())
        try:
            grant = self._grant(config, claims)
        except TokenRefused as refused:
            refused.issuer = config.name
            raise
        return _Remembered(grant, issuer, keys, self._verifying.expires_ns(claims, config))

    def _may_be_news_to(self, refused: TokenRefused) -> Issuer | None:
        """Issuer whose newest keys could change the refusal; None where no keys could."""
        if refused.reason not in (TokenFault.KEY, TokenFault.UNAVAILABLE):
            return None
        return next((each for each in self.issuers if each.config.name == refused.issuer), None)
