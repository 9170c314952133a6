"""Reloading while requests run: the region file with the files that it names, and the residency policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.app.memory import fitted_like
from gateway.config.reading import read_named_files, read_region_file
from gateway.config.region_file import RegionFile
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.regions import RegionTable
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.core.vocabulary import Place
from gateway.features.catalogue import KINDS
from gateway.policy.file import load_policy_or_closed, table_file
from mesh.faults import ConfigError, FileError, FileFault
from mesh.reloader import ReloadRefused
from mesh.settings import changed_keys


class RegionPart:
    """Region file. Changes that need a restart are refused, by the name of the key."""

    def __init__(self, file: RegionFile, apply: Callable[[GatewayConfig], Awaitable[None]]) -> None:
        """`apply` puts a whole valid config in force. It may raise ConfigError, and has changed nothing then."""
        self._file = file
        self._apply = apply

    def files(self) -> list[Path]:
        return [self._file.path] if self._file.sections.reload.region_file else []

    def credential_files(self) -> list[Path]:
        return self._file.engine_files()

    async def reload(self) -> None:
        """Read the file and the files that it names."""
        await self._take_in(partial(read_region_file, self._file.path))

    async def reload_credentials(self) -> None:
        """Read the files that it names again, with the region file as it was read last."""
        await self._take_in(partial(read_named_files, self._file))

    async def _take_in(self, read: Callable[[], RegionFile]) -> None:
        try:
            file = fitted_like(await asyncio.to_thread(read), self._file)
            if faults := [*self._faults_at_rest(file), *self._policy_faults(file), *self._feature_faults(file)]:
                raise FileError(file.path, file.source.located(faults))
            await self._apply(file.as_config())
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error
        self._file = file

    def _faults_at_rest(self, file: RegionFile) -> list[FileFault]:
        return [FileFault(key, "cannot change while the gateway runs") for key in changed_at_rest(self._file, file)]

    def _policy_faults(self, file: RegionFile) -> list[FileFault]:
        """Faults of another policy file, which must be usable before the region moves to it."""
        if file.policy is None or file.policy == self._file.policy:
            return []
        problem = load_policy_or_closed(file.policy, file.as_config().place)[1]
        return [] if problem is None else [FileFault("policy", problem)]

    def _feature_faults(self, file: RegionFile) -> Iterator[FileFault]:
        """Faults of other files of features, which must be usable as well."""
        config, before = file.as_config(), self._file.as_config()
        for kind in KINDS:
            try:
                kind.check_files(config, before)
            except FileError as error:
                yield FileFault(kind.name, str(error))


LIVE_KEYS = frozenset(
    {
        *(kind.name for kind in KINDS if kind.is_live),
        "replicas",
        "dns_replicas",
        "kubernetes_replicas",
        "models",
        "discovery",
        "peers",
        "policy",
        "placement",
        "pushing",
        "queue",
        "sharing",
        "tenants",
        "classes",
        "attempt",
        "observation",
        "probes",
    }
)
"""Sections of the region file that are reloaded at run time. All others wait for a restart."""


def changed_at_rest(old: RegionFile, new: RegionFile) -> list[str]:
    """Paths of keys that differ and cannot change at run time."""
    changed = changed_keys(old.as_document(), new.as_document())
    return [path for path in changed if path.split(".")[0] not in LIVE_KEYS]


_NO_FILE = "no policy file is configured"


class PolicyPart:
    """Residency policy: the region's own, narrowed by a controller's. A file that cannot be read closes the region: no
    request leaves it or enters it. Without a controller's narrowing the region's own policy is in force."""

    def __init__(
        self, path: Path | None, place: Place, apply: Callable[[ResidencyPolicy], None], log: FilteringBoundLogger
    ) -> None:
        self._path = path
        self._place = place
        self._apply = apply
        self._log = log
        self._own: ResidencyPolicy | None = None
        self._narrowing: ResidencyPolicy | None = None
        self._in_force: ResidencyPolicy | None = None
        self._tell_own: Callable[[ResidencyPolicy], None] = _ignore
        self._table_file: Path | None = None
        self._first: ResidencyPolicy | None = None

    def files(self) -> list[Path]:
        return [each for each in (self._path, self._table_file) if each is not None]

    @property
    def regions(self) -> RegionTable | None:
        """Operators' table of the policy that was read last; the policy is read if it has not been yet. None without a
        usable policy: the region is closed."""
        own = self._own
        if own is None:
            own = self._first = self._first or self._read()
        return own.regions

    def follow_own(self, tell: Callable[[ResidencyPolicy], None]) -> None:
        """Pass the region's own policy, not narrowed, to `tell`: at once if it has been read, and whenever it
        changes."""
        self._tell_own = tell
        if self._own is not None:
            tell(self._own)

    def narrow(self, narrowing: ResidencyPolicy | None) -> None:
        """Narrow the region's own policy by a controller's, or with None by none. The narrowing stays in force over
        every reload of the region's own."""
        if narrowing != self._narrowing:
            self._narrowing = narrowing
            if self._own is not None:
                self._put(self._own)

    def start(self) -> None:
        self._put(self._first or self._read())

    def move(self, path: Path | None) -> None:
        """Follow the region file to another policy file."""
        if path != self._path:
            self._path = path
            self._put(self._read())

    async def reload(self) -> None:
        self._put(await asyncio.to_thread(self._read))

    def _read(self) -> ResidencyPolicy:
        if self._path is None:
            self._table_file = None
            return closed_policy(self._place, _NO_FILE)
        self._table_file = table_file(self._path)
        return load_policy_or_closed(self._path, self._place)[0]

    def _put(self, own: ResidencyPolicy) -> None:
        policy = own if self._narrowing is None else narrowed(own, self._narrowing)
        is_news = policy != self._in_force
        if not policy.closed_reason:
            narrowing = {"narrowed_by": policy.narrowed_by} if policy.narrowed_by else {}
            self._log.info("residency_policy_applied", digest=policy.digest, **narrowing)
        elif self._path is not None:
            self._log.error("residency_policy_invalid", reason=policy.closed_reason)
        elif is_news:
            self._log.info("residency_policy_absent")
        if is_news:
            self._in_force = policy
            self._apply(policy)
        if own != self._own:
            self._own = own
            self._tell_own(own)


def _ignore(_: ResidencyPolicy) -> None:
    pass
