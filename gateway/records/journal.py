"""Keeps a live gateway's story, one step a line, and tells it again to a fresh core. It never holds up a request.

A story starts when the process does. Its files are numbered; with the first one rotated away the rest can be read but
no longer replayed. A disk that fails ends the journal, loudly, and nothing else. It does not begin again by itself when
there is room: a core can be told its story only from the beginning, and what came after a hole could never be replayed.
What was written until then can be, and a restart begins another.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import msgspec

from gateway.core.effects import Effect
from gateway.core.events import ConfigApplied, Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import GatewayId, Place
from gateway.ground.placement_plug_ins import find_policy, placement_faults
from gateway.ground.threads import finish_in_thread
from gateway.request.driver import Step

FORMAT = 1
_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
_EFFECTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Effect)}
_ENCODER = msgspec.json.Encoder(order="deterministic")

_Tagged = tuple[str, msgspec.Raw]


class JournalUnreadable(Exception):
    """A file that is no journal, is damaged, or belongs to another story."""


class Header(msgspec.Struct, frozen=True):
    """A file's first line: what is needed to build the same core again."""

    format: int
    code_version: str
    gateway_id: GatewayId
    place: Place
    seed: int
    story: str
    """Names one run of one process; the files of a run share it."""
    part: int
    """The story's files count from 0."""
    tail: bool = False
    """The last steps before a crash, not a story from its beginning."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    folder: Path
    file_bytes_max: int
    files_max: int
    buffer_bytes_max: int = 16 << 20
    """More than this not yet on disk means that the disk cannot keep up."""
    flush_interval_s: float = 0.5


class Journal:
    """An observer of the driver. `run` does the writing, in a thread; `on_step` only encodes."""

    def __init__(self, settings: JournalSettings, header: Header, on_stopped: Callable[[str], None]) -> None:
        """Raises OSError when the folder cannot be written: that is better known at the start."""
        self._settings = settings
        self._header = header
        self._on_stopped = on_stopped
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._file_bytes = 0
        self._parts = 0
        self._is_writing = True
        self._one_writer = threading.Lock()
        settings.folder.mkdir(parents=True, exist_ok=True)
        self._begin_file()

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        self._keep(encode_step(Step(now_ns, event, effects)))

    def on_crash(self, now_ns: int, event: Event) -> None:
        """The core failed over this event; a replay is expected to fail there too."""
        self._keep(encode_step(Step(now_ns, event, None)))

    async def run(self) -> None:
        """Write what has gathered, again and again, until cancelled; call `close` afterwards."""
        while self._is_writing:
            await asyncio.sleep(self._settings.flush_interval_s)
            await self.flush()

    async def flush(self) -> None:
        lines = self._take()
        try:
            await finish_in_thread(self._write, lines)
        except OSError as error:
            self._stop(f"cannot write: {error}")
        except asyncio.CancelledError as cancelled:
            if isinstance(cancelled.__cause__, OSError):
                self._stop(f"cannot write: {cancelled.__cause__}")
            raise

    def close(self) -> None:
        """Write what is left."""
        try:
            self._write(self._take())
        except OSError as error:
            self._stop(f"cannot write: {error}")
        self._is_writing = False

    def _keep(self, line: bytes) -> None:
        if not self._is_writing:
            return
        self._buffer.append(line)
        self._buffer_bytes += len(line)
        if self._buffer_bytes > self._settings.buffer_bytes_max:
            self._stop("the disk cannot keep up")

    def _take(self) -> list[bytes]:
        lines, self._buffer, self._buffer_bytes = self._buffer, [], 0
        return lines

    def _stop(self, reason: str) -> None:
        self._is_writing = False
        self._take()
        self._on_stopped(reason)

    def _write(self, lines: list[bytes]) -> None:
        """One at a time, so that lines stay in order."""
        with self._one_writer:
            for block in _blocks(lines, self._settings.file_bytes_max):
                if self._file_bytes + len(block) > self._settings.file_bytes_max:
                    self._begin_file()
                with self._path(self._parts - 1).open("ab") as file:
                    file.write(block)
                self._file_bytes += len(block)

    def _begin_file(self) -> None:
        line = encode_header(msgspec.structs.replace(self._header, part=self._parts))
        self._write_first(self._path(self._parts), line)
        self._parts += 1
        self._file_bytes = len(line)
        journals = sorted(
            self._settings.folder.glob("*.journal"), key=lambda path: (path.stat().st_mtime_ns, path.name)
        )
        for old in journals[: -self._settings.files_max]:
            old.unlink()

    def _write_first(self, path: Path, line: bytes) -> None:
        """A file without its first line would spoil the story before it."""
        try:
            path.write_bytes(line)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _path(self, part: int) -> Path:
        return self._settings.folder / f"{self._header.story}-{part:06}.journal"


def new_header(gateway_id: GatewayId, place: Place, *, seed: int, story: str) -> Header:
    return Header(FORMAT, code_version(), gateway_id, place, seed, story, part=0)


def code_version() -> str:
    try:
        return version("nightside")
    except PackageNotFoundError:
        return "unknown"


def encode_header(header: Header) -> bytes:
    return _ENCODER.encode(header) + b"\n"


def encode_step(step: Step) -> bytes:
    """`[now_ns, [event type, fields], [[effect type, fields], …]]`; null effects where the core failed."""
    effects = None if step.effects is None else [(type(each).__name__, each) for each in step.effects]
    return _ENCODER.encode((step.now_ns, (type(step.event).__name__, step.event), effects)) + b"\n"


def write_tail(path: Path, header: Header, steps: Iterable[Step]) -> None:
    """Keep the steps before a crash in a file of their own: readable like a journal, though not a whole story."""
    lines = [encode_header(msgspec.structs.replace(header, tail=True)), *(encode_step(step) for step in steps)]
    path.write_bytes(b"".join(lines))


def read_journal(path: Path) -> tuple[Header, Iterator[Step]]:
    """Raises JournalUnreadable, the iterator too. A last line that was cut off in writing is left out."""
    lines = _complete_lines(path)
    try:
        header = msgspec.json.decode(next(lines), type=Header)
    except (StopIteration, msgspec.DecodeError) as error:
        raise JournalUnreadable(f"{path.name}: does not begin with a journal's header") from error
    if header.format != FORMAT:
        raise JournalUnreadable(f"{path.name}: is of format {header.format}, and this version reads {FORMAT}")
    return header, (_decode_step(line, f"{path.name}:{number}") for number, line in enumerate(lines, start=2))


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which the core of today does something else."""

    step: int
    """Counted from 1 over the whole story."""
    event: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    steps: int
    """Told again, the diverging one included."""
    code_version: str
    """Of the gateway that wrote the journal."""
    divergence: Divergence | None


def replay(paths: Sequence[Path]) -> ReplayReport:
    """Tell a story to a fresh core and compare every effect. Raises JournalUnreadable."""
    header, steps = _whole_story(paths)
    core = GatewayCore(header.gateway_id, header.place, seed=header.seed, plug_ins=find_policy)
    count = 0
    for count, step in enumerate(steps, start=1):
        _require_policy(step.event, count)
        got = _retell(core, step)
        if got != step.effects and not (step.effects is None and isinstance(got, str)):
            divergence = Divergence(count, repr(step.event), _describe(step.effects), _describe(got))
            return ReplayReport(count, header.code_version, divergence)
    return ReplayReport(count, header.code_version, None)


def _require_policy(event: Event, step: int) -> None:
    """A plug-in decides as it did then only if it is here, in the version that it was."""
    if isinstance(event, ConfigApplied):
        for fault in placement_faults(event.config.placement):
            raise JournalUnreadable(f"step {step} cannot be told again here: placement.{fault}")


def _retell(core: GatewayCore, step: Step) -> list[Effect] | str:
    """The effects, or in words how the core failed."""
    try:
        return core.handle(step.event, step.now_ns)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the replay was for
        return f"{type(error).__name__}: {error}"


def _describe(effects: list[Effect] | str | None) -> str:
    if effects is None:
        return "the core failed"
    if isinstance(effects, str):
        return f"the core failed: {effects}"
    return "\n".join(repr(effect) for effect in effects) or "nothing"


def _whole_story(paths: Sequence[Path]) -> tuple[Header, Iterator[Step]]:
    """Put the files in order, and see that none is missing or of another story."""
    parts = sorted((read_journal(path) for path in paths), key=lambda part: part[0].part)
    if not parts:
        raise JournalUnreadable("no file was given")
    first = parts[0][0]
    if first.tail:
        raise JournalUnreadable(
            "these are the last steps before a crash; only a story from its beginning can be replayed"
        )
    if any(header.story != first.story for header, _ in parts):
        raise JournalUnreadable("the files are of different runs")
    if [header.part for header, _ in parts] != list(range(len(parts))):
        raise JournalUnreadable("the story is not whole: give every file from part 0 on")
    return first, (step for _, steps in parts for step in steps)


def _complete_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise JournalUnreadable(f"{path.name}: {error.strerror}") from error


def _decode_step(line: bytes, where: str) -> Step:
    try:
        now_ns, event, effects = msgspec.json.decode(line, type=tuple[int, _Tagged, list[_Tagged] | None])
        return Step(
            now_ns,
            _decode_tagged(event, _EVENTS),
            None if effects is None else [_decode_tagged(each, _EFFECTS) for each in effects],
        )
    except (msgspec.DecodeError, KeyError) as error:
        raise JournalUnreadable(f"{where}: {error}") from error


def _decode_tagged(tagged: _Tagged, kinds: dict[str, type[Any]]) -> Any:
    name, fields = tagged
    return msgspec.json.decode(fields, type=kinds[name])


def _blocks(lines: list[bytes], bytes_max: int) -> Iterator[bytes]:
    """Join lines into blocks of about a sixteenth of a file, so that files keep to their bound."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size * 16 >= bytes_max:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)
