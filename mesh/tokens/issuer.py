"""Keys of one issuer: fetched at intervals, stored for when the issuer cannot be reached, and trusted for a bounded
time.

It contacts the issuer no more often than its file allows, whatever tokens are shown, and never fails when the issuer
cannot be reached.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock
from mesh.state_files import StateFile, StateUnusable
from mesh.supervisor import Backoff
from mesh.threads import finish_in_thread
from mesh.tokens.config import IssuerConfig
from mesh.tokens.counters import AT_START, BY_INTERVAL, FAILED, FETCHED, UNKNOWN_KEY, TokenCounters
from mesh.tokens.fetching import FetchFailed, fetch_key_set
from mesh.tokens.key_set import NO_KEYS, KeySetUnusable, PublicKeys, read_key_set

_SECOND_NS = 1_000_000_000
_KIND, _VERSION = "issuer-keys", 1
_JITTER = 0.1
_AFTER_FAILURE = Backoff(min_ns=1 * _SECOND_NS, max_ns=60 * _SECOND_NS)


class KeptKeys(msgspec.Struct, frozen=True):
    """Key set that is stored over a restart."""

    issuer: str
    fetched_ns: int
    """Nanoseconds since 1970."""
    key_set: str
    """Key set as it was published."""


class IssuerDependencies(Struct, frozen=True):
    """Parts that all issuers of one program share."""

    program: str
    """Name of the program, for files."""
    folder: Path | None
    """Folder for state that outlives the process; None where there is none."""
    clock: Clock
    log: FilteringBoundLogger
    counters: TokenCounters = field(default_factory=TokenCounters)
    fetch: Callable[[IssuerConfig], Awaitable[bytes]] = fetch_key_set
    rng: random.Random = field(default_factory=random.Random)

    def issuers(self, use: str, configs: Iterable[IssuerConfig]) -> list[Issuer]:
        """Make the issuers. `use` is what their tokens are for."""
        return [Issuer(each, use, self) for each in configs]

    def file(self, use: str, issuer: str) -> StateFile[KeptKeys] | None:
        if self.folder is None:
            return None
        return StateFile(self.folder / f"{self.program}.{use}.{issuer}.issuer.json", _KIND, _VERSION, KeptKeys)


class Issuer:
    """Issuer of tokens. `keys` is another object whenever the keys have changed."""

    def __init__(self, config: IssuerConfig, use: str, around: IssuerDependencies) -> None:
        self.config = config
        self.keys: PublicKeys = NO_KEYS
        self._use = use
        self._clock = around.clock
        self._log = around.log.bind(issuer=config.name, tokens_for=use)
        self._counters = around.counters
        self._file = around.file(use, config.name)
        self._fetch = around.fetch
        self._rng = around.rng
        self._text = b""
        self._fetched_ns: int | None = None
        self._began_ns: int | None = None
        """Start of the last fetch, by the monotonic clock."""
        self._is_fetching = False
        self.failures = 0
        """Failures in a row of fetching its keys."""
        self._fault = "its keys have not been fetched yet"
        self._wanted = asyncio.Event()
        self._ended = asyncio.Event()
        around.counters.follow(self, use, config.name)

    def restore(self) -> None:
        """Use the keys that were stored before the restart, if there are any."""
        if self._file is None:
            return
        try:
            kept = self._file.read()
            if kept is None or kept.issuer != self.config.issuer:
                return
            self._put(kept.key_set.encode(), kept.fetched_ns)
        except (StateUnusable, KeySetUnusable) as error:
            self._log.warning("cached_issuer_keys_unusable", reason=str(error))

    @property
    def is_usable(self) -> bool:
        """Keys are known, and are not too old to be trusted."""
        return self._fetched_ns is not None and self._clock.wall_ns() - self._fetched_ns <= self.config.stale_after_ns

    def age_s(self) -> float:
        return math.inf if self._fetched_ns is None else (self._clock.wall_ns() - self._fetched_ns) / _SECOND_NS

    def describe(self) -> dict[str, object]:
        age_s = self.age_s()
        return {
            "issuer": self.config.issuer,
            "keys": self.keys.ids,
            "keys_age_s": None if math.isinf(age_s) else round(age_s, 3),
            "is_usable": self.is_usable,
            "fault": self._fault,
        }

    async def run(self) -> None:
        """Fetch the keys repeatedly until cancelled."""
        cause = AT_START
        while True:
            await self.fetch(cause)
            cause = await self._pause()

    async def refetched(self) -> bool:
        """Wait until the keys have been fetched again, for a token with an unknown key; waiting callers share one
        fetch. Returns False where the last fetch is too recent, or the fetch takes too long."""
        if not self._is_fetching:
            if self._began_ns is not None and (self._clock.now_ns() - self._began_ns < self.config.refetch_interval_ns):
                return False
            self._wanted.set()
        ended = self._ended
        try:
            async with asyncio.timeout(2 * self.config.timeout_ns / _SECOND_NS):
                await ended.wait()
        except TimeoutError:
            return False
        return True

    async def fetch(self, cause: str) -> None:
        """Fetch the keys. A failure, or keys that cannot be used, leave the known ones in force."""
        self._wanted.clear()
        self._is_fetching, self._began_ns = True, self._clock.now_ns()
        try:
            text = await self._fetch(self.config)
            is_news = self._put(text, self._clock.wall_ns())
        except (FetchFailed, KeySetUnusable) as error:
            self._failed(str(error), cause)
        else:
            self._succeeded(cause, is_news=is_news)
            await self._keep()
        finally:
            self._is_fetching = False
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()

    async def _pause(self) -> str:
        """Wait until the next fetch is due; return its cause."""
        interval_s = self.config.refresh_interval_ns / _SECOND_NS
        pause_s = interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        if self.failures:
            pause_s = min(pause_s, _AFTER_FAILURE.pause_s(self.failures, self._rng))
        try:
            async with asyncio.timeout(pause_s):
                await self._wanted.wait()
        except TimeoutError:
            return BY_INTERVAL
        return UNKNOWN_KEY

    def _put(self, text: bytes, fetched_ns: int) -> bool:
        """Use a key set; return whether it differs from the one before. Raises KeySetUnusable."""
        is_news = text != self._text
        if is_news:
            self.keys, self._text = read_key_set(text), text
        self._fetched_ns = fetched_ns
        return is_news

    def _succeeded(self, cause: str, *, is_news: bool) -> None:
        self._counters.fetches.add(self._use, self.config.name, cause, FETCHED)
        if self.failures or is_news:
            self._log.info("issuer_keys_fetched", keys=self.keys.ids, cause=cause)
        self.failures, self._fault = 0, ""

    def _failed(self, fault: str, cause: str) -> None:
        self._counters.fetches.add(self._use, self.config.name, cause, FAILED)
        self.failures += 1
        if fault != self._fault:
            self._log.error("issuer_keys_fetch_failed", reason=fault, cached_keys_usable=self.is_usable)
        self._fault = fault

    async def _keep(self) -> None:
        if self._file is None or self._fetched_ns is None:
            return
        kept = KeptKeys(self.config.issuer, self._fetched_ns, self._text.decode("utf-8", "replace"))
        try:
            await finish_in_thread(self._file.write, kept)
        except OSError as error:
            self._log.error("issuer_keys_not_persisted", reason=str(error))
