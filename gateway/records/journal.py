"""Keeps a live gateway's story, one step a line, and tells it again to a fresh core.

It never writes down what would confirm a guess at what somebody asked: see `gateway.records.pseudonyms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from gateway.config.placement_plug_ins import find_policy, placement_faults
from gateway.core.config import PlacementConfig, PlacementPolicy
from gateway.core.effects import Effect
from gateway.core.events import ConfigApplied, Event, ForwardArrived, RequestArrived
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import GatewayId, Place
from gateway.ground.journal import JournalFiles, JournalSettings, JournalUnreadable, code_version, complete_lines
from gateway.ground.private_files import private_opener
from gateway.ground.pump import Step
from gateway.records.pseudonyms import Pseudonyms
from gateway.request.driver import GatewayStep

FORMAT = 2
_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
_EFFECTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Effect)}
_ENCODER = msgspec.json.Encoder(order="deterministic")

_Tagged = tuple[str, msgspec.Raw]


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
    policy: str
    """Of placement, as it was in force when the file was begun."""
    policy_version: str | None
    """Of a policy that does not come with us."""
    tail: bool = False
    """The last steps before a crash, not a story from its beginning."""


class Journal(JournalFiles):
    """An observer of the driver, which only encodes."""

    def __init__(
        self,
        settings: JournalSettings,
        header: Header,
        on_stopped: Callable[[str], None],
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """Raises OSError when the folder cannot be written. Only tests bring their own pseudonyms."""
        self.header = header
        """With the placement policy of now."""
        self._pseudonyms = pseudonyms or Pseudonyms()
        self._keeps_sessions = places_by_session(header.policy)
        self._has_hidden_sessions = False
        super().__init__(settings, header.story, self._begin_part, on_stopped)

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, ConfigApplied):
            self._follow_policy(event.config.placement)
        self.keep(encode_step(self.told(Step(now_ns, event, effects))))

    def on_crash(self, now_ns: int, event: Event) -> None:
        """The core failed over this event; a replay is expected to fail there too."""
        self.keep(encode_step(self.told(Step(now_ns, event, None))))

    def told(self, step: GatewayStep) -> GatewayStep:
        """As it may be written down."""
        if isinstance(step.event, RequestArrived | ForwardArrived):
            self._has_hidden_sessions |= not self._keeps_sessions
            return self._pseudonyms.step(step, keeps_session=self._keeps_sessions)
        return step

    def _follow_policy(self, placement: PlacementConfig) -> None:
        self.header = msgspec.structs.replace(
            self.header, policy=placement.policy, policy_version=placement.policy_version
        )
        self._keeps_sessions = places_by_session(placement.policy)
        if self._keeps_sessions and self._has_hidden_sessions:
            self.stop(f"placement policy {placement.policy} may go by session keys, and those so far are not in it")

    def _begin_part(self, part: int) -> bytes:
        return encode_header(msgspec.structs.replace(self.header, part=part))


_BY_SESSION: Final = frozenset({PlacementPolicy.CONSISTENT_HASH, PlacementPolicy.SESSION_STICKY})
"""Both look a session up on a ring."""


def places_by_session(policy: str) -> bool:
    """Whether a placement may depend on what a session key is, rather than on which are equal: then a replay needs it.
    A policy that does not come with us may go by anything."""
    return policy in _BY_SESSION or policy not in frozenset(PlacementPolicy)


def new_header(gateway_id: GatewayId, place: Place, placement: PlacementConfig, *, seed: int, story: str) -> Header:
    policy, version = placement.policy, placement.policy_version
    return Header(FORMAT, code_version(), gateway_id, place, seed, story, part=0, policy=policy, policy_version=version)


def encode_header(header: Header) -> bytes:
    return _ENCODER.encode(header) + b"\n"


def encode_step(step: GatewayStep) -> bytes:
    """`[now_ns, [event type, fields], [[effect type, fields], …]]`; null effects where the core failed."""
    effects = None if step.effects is None else [(type(each).__name__, each) for each in step.effects]
    return _ENCODER.encode((step.now_ns, (type(step.event).__name__, step.event), effects)) + b"\n"


def write_tail(path: Path, header: Header, steps: Iterable[GatewayStep]) -> None:
    """Keep the steps before a crash in a file of their own: readable like a journal, though not a whole story."""
    lines = [encode_header(msgspec.structs.replace(header, tail=True)), *(encode_step(step) for step in steps)]
    with open(path, "wb", opener=private_opener) as file:
        file.write(b"".join(lines))


def read_journal(path: Path) -> tuple[Header, Iterator[GatewayStep]]:
    """Raises JournalUnreadable, the iterator too. A last line that was cut off in writing is left out."""
    lines = complete_lines(path)
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
        for key, what in placement_faults(event.config.placement):
            raise JournalUnreadable(f"step {step} cannot be told again here: placement.{key}: {what}")


def _retell(core: GatewayCore, step: GatewayStep) -> list[Effect] | str:
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


def _whole_story(paths: Sequence[Path]) -> tuple[Header, Iterator[GatewayStep]]:
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


def _decode_step(line: bytes, where: str) -> GatewayStep:
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
