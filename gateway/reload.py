"""Takes in changed files while requests run: on a signal, or when a watched file has changed and come to rest.

Each part of the gateway registers what it can read anew. A part that refuses what it finds keeps what it had; nothing
here ends a request or the process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from gateway.config import ConfigError, GatewayConfig, RegionFile, read_named_files, read_region_file
from gateway.core.residency import ResidencyPolicy, closed_policy
from gateway.core.vocabulary import Place
from gateway.policy_file import load_policy_or_closed

Callback = Callable[[], Awaitable[None] | None]
"""Reads and checks everything first, then puts it in force. Raises ReloadRefused, and has changed nothing then."""
Files = Callable[[], Iterable[Path]]
_Print = tuple[int, int, int] | None
"""What a file looks like from outside; None for one that is not there."""


class ReloadRefused(Exception):
    """What was found cannot be used: why, in words, one line per fault. What was in force stays in force."""


@dataclass(slots=True)
class _Part:
    name: str
    callback: Callback
    files: Files
    seen: dict[Path, _Print] = field(default_factory=dict)
    """As of the last look."""
    loaded: dict[Path, _Print] = field(default_factory=dict)
    """As of the last time it was read."""


class Reloader:
    """The one registry of what can be read anew. Parts are read in the order in which they were added."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        watch_s: float | None = None,
        on_reload: Callable[[str, bool], None] | None = None,
    ) -> None:
        """`watch_s` is the pause between two looks at the files; None looks at none. `on_reload` is told each part's
        name and whether what it read is in force."""
        self._log = log
        self._watch_s = watch_s
        self._on_reload = on_reload
        self._parts: dict[str, _Part] = {}
        self._asked = asyncio.Event()

    def add(self, name: str, callback: Callback, files: Files = tuple) -> None:
        """Register a part. A change of one of its `files` reads it alone; a request reads every part."""
        assert name not in self._parts, f"{name} is registered already"
        part = _Part(name, callback, files)
        part.loaded = part.seen = _prints(part)
        self._parts[name] = part

    def request(self) -> None:
        """Read everything anew, soon. For a signal handler."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if await self._is_asked():
                self._asked.clear()
                await self.reload()
            else:
                await self.look()

    async def reload(self) -> list[str]:
        """Read every part anew, changed or not. Gives the names of those that refused."""
        self._log.info("reloading", parts=list(self._parts))
        return [part.name for part in tuple(self._parts.values()) if not await self._read(part)]

    async def look(self) -> None:
        """Read the parts whose files have changed and come to rest: a file half written is left for the next look."""
        for part in tuple(self._parts.values()):
            prints = await asyncio.to_thread(_prints, part)
            is_at_rest = prints == part.seen
            part.seen = prints
            if is_at_rest and prints != part.loaded:
                self._log.info("files have changed", part=part.name)
                await self._read(part)

    async def _is_asked(self) -> bool:
        try:
            async with asyncio.timeout(self._watch_s):
                await self._asked.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self, part: _Part) -> bool:
        """One part's fault is not another's: each is read whatever became of those before it."""
        before = await asyncio.to_thread(_prints, part)
        is_in_force = False
        try:
            done = part.callback()
            if inspect.isawaitable(done):
                await done
            is_in_force = True
            self._log.info("reloaded", part=part.name)
        except ReloadRefused as refused:
            self._log.error(
                "RELOAD REFUSED: what was in force stays in force", part=part.name, faults=str(refused).splitlines()
            )
        except Exception:  # noqa: BLE001 - a fault of ours in one part must not keep the others from being read
            self._log.exception("RELOAD FAILED: a part could not be read", part=part.name)
        after = await asyncio.to_thread(_prints, part)
        part.loaded = {path: before.get(path, found) for path, found in after.items()}
        part.seen = after
        if self._on_reload is not None:
            self._on_reload(part.name, is_in_force)
        return is_in_force


class RegionPart:
    """The region file. What cannot change while the gateway runs is refused, by the name of its key."""

    def __init__(self, file: RegionFile, apply: Callable[[GatewayConfig], None]) -> None:
        """`apply` puts a whole valid config in force, at once. It may raise ConfigError, and has done nothing then."""
        self._file = file
        self._apply = apply

    def files(self) -> list[Path]:
        return [self._file.path] if self._file.reload.region_file else []

    def credential_files(self) -> list[Path]:
        return self._file.engine_files()

    async def reload(self) -> None:
        """Read the file, and what it names."""
        await self._take_in(partial(read_region_file, self._file.path))

    async def reload_credentials(self) -> None:
        """Read what it names, and leave the rest as it was read last."""
        await self._take_in(partial(read_named_files, self._file))

    async def _take_in(self, read: Callable[[], RegionFile]) -> None:
        try:
            file = await asyncio.to_thread(read)
            if faults := [*self._faults_at_rest(file), *self._policy_faults(file)]:
                raise ReloadRefused("\n".join(f"{file.path.name}: {fault}" for fault in faults))
            self._apply(file.as_config())
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error
        self._file = file

    def _faults_at_rest(self, file: RegionFile) -> list[str]:
        return [f"{key}: cannot change while the gateway runs" for key in changed_at_rest(self._file, file)]

    def _policy_faults(self, file: RegionFile) -> list[str]:
        """Another policy file must be of use before the region moves over to it."""
        if file.policy is None or file.policy == self._file.policy:
            return []
        problem = load_policy_or_closed(file.policy, file.as_config().place)[1]
        return [] if problem is None else [f"policy: {problem}"]


LIVE_KEYS = frozenset(
    {
        "replicas",
        "dns_replicas",
        "discovery",
        "peers",
        "policy",
        "placement",
        "pushing",
        "queue",
        "attempt",
        "observation",
        "probes",
    }
)
"""Sections of the region file that are taken in while the gateway runs. All else waits for a restart."""


def changed_at_rest(old: RegionFile, new: RegionFile) -> list[str]:
    """The paths of the keys that differ and cannot be changed at run time."""
    before, after = _leaves(old.as_document()), _leaves(new.as_document())
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return [path for path in changed if path.split(".")[0] not in LIVE_KEYS]


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        leaf: found
        for key, each in value.items()
        for leaf, found in _leaves(each, f"{path}.{key}" if path else key).items()
    }


class PolicyPart:
    """The residency policy. One that cannot be read closes the region: nothing leaves it and nothing is taken in."""

    def __init__(
        self, path: Path | None, place: Place, apply: Callable[[ResidencyPolicy], None], log: FilteringBoundLogger
    ) -> None:
        self._path = path
        self._place = place
        self._apply = apply
        self._log = log
        self._in_force: ResidencyPolicy | None = None

    def files(self) -> list[Path]:
        return [] if self._path is None else [self._path]

    def start(self) -> None:
        self._put(self._read())

    def move(self, path: Path | None) -> None:
        """The region file names another one now."""
        if path != self._path:
            self._path = path
            self._put(self._read())

    async def reload(self) -> None:
        self._put(await asyncio.to_thread(self._read))

    def _read(self) -> ResidencyPolicy:
        if self._path is None:
            return closed_policy(self._place, "no policy file is configured")
        return load_policy_or_closed(self._path, self._place)[0]

    def _put(self, policy: ResidencyPolicy) -> None:
        if policy.closed_reason:
            self._log.error("CLOSED: nothing leaves this region and nothing is taken in", reason=policy.closed_reason)
        else:
            self._log.info("residency policy in force", digest=policy.digest)
        if policy != self._in_force:
            self._in_force = policy
            self._apply(policy)


def _prints(part: _Part) -> dict[Path, _Print]:
    return {path: _print_of(path) for path in part.files()}


def _print_of(path: Path) -> _Print:
    """Of the file behind a link, so that one which is swapped by its link counts as changed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
