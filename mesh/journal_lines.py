"""Encodes the steps of a pumped core as lines of a journal, and replays them: one step a line, after a header that
describes the core.

Each program defines its header and how a core is made from it. This module touches no running core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec
from msgspec import Struct

from mesh.journal import JournalUnreadable, complete_lines
from mesh.private_files import private_opener
from mesh.steps import Core, Step

_ENCODER = msgspec.json.Encoder(order="deterministic")

_Tagged = tuple[str, msgspec.Raw]


class StoryHeader(Protocol):
    """First line of a file."""

    @property
    def format(self) -> int: ...
    @property
    def code_version(self) -> str: ...
    @property
    def story(self) -> str:
        """Name of one run of one process; the files of a run share it."""
        ...

    @property
    def part(self) -> int:
        """Number of the file in its story, from 0."""
        ...

    @property
    def tail(self) -> bool:
        """The file holds the last steps before a crash, not a story from its beginning."""
        ...


HeaderT = TypeVar("HeaderT", bound=StoryHeader)
EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


class Divergence(Struct, frozen=True):
    """First step at which the core behaves otherwise than recorded."""

    step: int
    """Number of the step in the whole story, from 1."""
    event: str
    expected: str
    got: str


class ReplayReport(Struct, frozen=True):
    steps: int
    """Steps replayed, the diverging one included."""
    code_version: str
    """Version of the program that wrote the journal."""
    divergence: Divergence | None


def encode_header(header: object) -> bytes:
    return _ENCODER.encode(header) + b"\n"


def encode_step(step: Step[Any, Any]) -> bytes:
    """Line of a step: `[now_ns, [event type, fields], [[effect type, fields], …]]`, with null effects where the core
    failed."""
    effects = None if step.effects is None else [(type(each).__name__, each) for each in step.effects]
    return _ENCODER.encode((step.now_ns, (type(step.event).__name__, step.event), effects)) + b"\n"


def write_tail(path: Path, header: Any, steps: Iterable[Step[Any, Any]]) -> None:
    """Write the steps before a crash to a file of their own, which is readable like a journal but is not a whole
    story."""
    lines = [encode_header(msgspec.structs.replace(header, tail=True)), *(encode_step(step) for step in steps)]
    with open(path, "wb", opener=private_opener) as file:
        file.write(b"".join(lines))


class StoryReader(Generic[HeaderT, EventT, EffectT]):
    """Reader for the journals of one kind of core. `events` and `effects` are the unions that its steps are made of."""

    def __init__(self, header: type[HeaderT], format_number: int, events: Any, effects: Any) -> None:
        self._header = header
        self._format = format_number
        self._events: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events)}
        self._effects: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(effects)}

    def read(self, path: Path) -> tuple[HeaderT, Iterator[Step[EventT, EffectT]]]:
        """Read a file. Raises JournalUnreadable, as does the iterator. A last line that was cut off in writing is left
        out."""
        lines = complete_lines(path)
        try:
            header = msgspec.json.decode(next(lines), type=self._header)
        except (StopIteration, msgspec.DecodeError) as error:
            raise JournalUnreadable(f"{path.name}: does not begin with a journal's header") from error
        if header.format != self._format:
            raise JournalUnreadable(f"{path.name}: is of format {header.format}, and this version reads {self._format}")
        return header, (self._decode_step(line, f"{path.name}:{number}") for number, line in enumerate(lines, start=2))

    def whole_story(self, paths: Sequence[Path]) -> tuple[HeaderT, Iterator[Step[EventT, EffectT]]]:
        """Read all files of a story in order. Raises JournalUnreadable where one is missing or is of another story."""
        parts = sorted((self.read(path) for path in paths), key=lambda part: part[0].part)
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

    def _decode_step(self, line: bytes, where: str) -> Step[EventT, EffectT]:
        try:
            now_ns, event, effects = msgspec.json.decode(line, type=tuple[int, _Tagged, list[_Tagged] | None])
            return Step(
                now_ns,
                _decode_tagged(event, self._events),
                None if effects is None else [_decode_tagged(each, self._effects) for each in effects],
            )
        except (msgspec.DecodeError, KeyError) as error:
            raise JournalUnreadable(f"{where}: {error}") from error


def tell_again(
    core: Core[EventT, EffectT],
    code_version: str,
    steps: Iterable[Step[EventT, EffectT]],
    check: Callable[[EventT, int], None] = lambda _event, _step: None,
) -> ReplayReport:
    """Replay a story with a fresh core and compare every effect. `check` may raise JournalUnreadable for an event that
    cannot be replayed here."""
    count = 0
    for count, step in enumerate(steps, start=1):
        check(step.event, count)
        got = _retell(core, step)
        if got != step.effects and not (step.effects is None and isinstance(got, str)):
            divergence = Divergence(count, repr(step.event), _describe(step.effects), _describe(got))
            return ReplayReport(count, code_version, divergence)
    return ReplayReport(count, code_version, None)


def _retell(core: Core[EventT, EffectT], step: Step[EventT, EffectT]) -> list[EffectT] | str:
    """Effects of a step, or a description of the core's failure."""
    try:
        return core.handle(step.event, step.now_ns)
    except Exception as error:  # noqa: BLE001 - any failure of the core is a result of the replay
        return f"{type(error).__name__}: {error}"


def _describe(effects: list[Any] | str | None) -> str:
    if effects is None:
        return "the core failed"
    if isinstance(effects, str):
        return f"the core failed: {effects}"
    return "\n".join(repr(effect) for effect in effects) or "nothing"


def _decode_tagged(tagged: _Tagged, kinds: dict[str, type[Any]]) -> Any:
    name, fields = tagged
    return msgspec.json.decode(fields, type=kinds[name])


def report_as_text(report: ReplayReport) -> str:
    if report.divergence is None:
        return f"equal: {report.steps} steps, recorded by version {report.code_version}"
    divergence = report.divergence
    return "\n".join(
        (
            f"diverged at step {divergence.step}, recorded by version {report.code_version}",
            f"event:\n{_indented(divergence.event)}",
            f"recorded:\n{_indented(divergence.expected)}",
            f"now:\n{_indented(divergence.got)}",
        )
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
