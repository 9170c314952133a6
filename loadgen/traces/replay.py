"""Turns a trace into programs that users run: which part of it, its speed, its text lengths, and the region of each
user.

Pure, and the same for simulated and for live users; all rows that it leaves out or shortens are counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from xxhash import xxh3_64_intdigest

from loadgen.passages import BlockText
from loadgen.traces.rows import Trace, TraceRow
from loadgen.workload import Program, WorkloadStep

_WHOLE = 2.0**64


class ReplayPace(StrEnum):
    """Event that a session's next request waits for."""

    ANSWERS = "answers"
    """The answer in this run; the user then thinks for the recorded time."""
    RECORDED = "recorded"
    """The answer in this run, and at least the recorded duration of the answer; then the recorded think time."""


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Part of a trace to replay, and its changes."""

    speed: float = 1.0
    """Speed-up over the recording: times, pauses and answers are divided by it."""
    from_s: float = 0.0
    until_s: float | None = None
    """End of the replayed part, in the trace's own time; programs that start in the part are replayed."""
    sample: float = 1.0
    """Share of the sessions that is replayed, each of them whole."""
    requests_max: int | None = None
    input_tokens_max: int | None = None
    """Maximum input length; longer inputs are cut at their end."""
    output_tokens_max: int | None = None
    scale_tokens: float = 1.0
    """Factor on the lengths of inputs and outputs; the number of blocks stays."""
    pause_s_max: float | None = None
    pace: ReplayPace = ReplayPace.ANSWERS


@dataclass(slots=True)
class ReplayCounts:
    """Number of rows by what happened to them."""

    rows: int = 0
    unreadable: int = 0
    outside_window: int = 0
    sampled_out: int = 0
    over_requests_max: int = 0
    elsewhere: int = 0
    """Rows recorded in a region that has no group in this replay."""
    replayed: int = 0
    inputs_cut: int = 0
    input_tokens_cut: int = 0
    outputs_cut: int = 0
    output_tokens_cut: int = 0
    pauses_cut: int = 0


@dataclass(frozen=True, slots=True)
class ReplayGroup:
    """Some of the users who replay a trace together."""

    region: str
    weight: float = 1.0
    """Weight of the group's share of the sessions, relative to the other groups."""
    shift_s: float = 0.0
    """Time by which the group's users arrive earlier than recorded; arrivals before the beginning move to the end."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that arrived as one unit: one row and all rows that waited for it, directly or not."""

    at_s: float
    session: str
    number: int
    rows: tuple[TraceRow, ...]


class Replay:
    """A trace, shortened as configured and divided among groups of users. One seed, one replay."""

    def __init__(
        self,
        trace: Trace,
        config: ReplayConfig,
        *,
        seed: int,
        groups: Sequence[ReplayGroup] = (ReplayGroup("anywhere"),),
    ) -> None:
        self.trace = trace
        self.counts = ReplayCounts(rows=len(trace.rows) + trace.unreadable.count, unreadable=trace.unreadable.count)
        self._config = config
        self._seed = seed
        self._groups = tuple(groups)
        chosen = self._chosen(_pieces(trace.rows))
        self._shared: list[list[_Piece]] = [[] for _ in self._groups]
        self._fill_groups(chosen)
        span_s = config.until_s or max((row.at_s for row in trace.rows), default=0.0)
        self._span_s = max(0.0, span_s - config.from_s) / config.speed

    def of_group(self, number: int) -> GroupReplay:
        return GroupReplay(self, self._shared[number], number)

    def due(self, piece: _Piece, group: int) -> float:
        """Arrival time of a piece, in seconds from the beginning of the replay."""
        at_s = (piece.at_s - self._config.from_s) / self._config.speed
        shift_s = self._groups[group].shift_s
        return (at_s - shift_s) % self._span_s if shift_s and self._span_s else at_s

    def program(self, piece: _Piece, user_id: str, program_id: str) -> Program:
        steps = tuple(self._step(row, program_id) for row in piece.rows)
        return Program(program_id, user_id, f"{user_id}/{piece.session}", "", steps, piece.rows[0].tenant)

    def rng(self, user_id: str) -> random.Random:
        return random.Random(f"{self._seed}/replay/{user_id}")

    # Choosing

    def _chosen(self, pieces: Iterable[_Piece]) -> Iterator[_Piece]:
        config, counts = self._config, self.counts
        left = config.requests_max
        for piece in pieces:
            size = len(piece.rows)
            if piece.at_s < config.from_s or (config.until_s is not None and piece.at_s >= config.until_s):
                counts.outside_window += size
            elif config.sample < 1 and self._draw("sample", piece.session) >= config.sample:
                counts.sampled_out += size
            elif left is not None and size > left:
                counts.over_requests_max += size - left
                if left:
                    yield replace(piece, rows=piece.rows[:left])
                left = 0
            else:
                left = None if left is None else left - size
                yield piece

    def _fill_groups(self, pieces: Iterable[_Piece]) -> None:
        for piece in pieces:
            number = self._group_of(piece)
            if number is None:
                self.counts.elsewhere += len(piece.rows)
                continue
            self.counts.replayed += len(piece.rows)
            self._shared[number].append(replace(piece, rows=tuple(map(self._measured, piece.rows))))

    def _group_of(self, piece: _Piece) -> int | None:
        """Group of a piece's session, or None; a session stays in one group, and in its region where a trace names
        regions."""
        region = piece.rows[0].region
        able = [(number, group.weight) for number, group in enumerate(self._groups) if region in ("", group.region)]
        point = self._draw("group", piece.session) * sum(weight for _, weight in able)
        for number, weight in able:
            point -= weight
            if point < 0:
                return number
        return able[-1][0] if able else None

    def _draw(self, kind: str, name: str) -> float:
        """Draw a number from 0 to 1, the same for the same name."""
        return xxh3_64_intdigest(f"{kind}/{name}".encode(), self._seed & (2**64 - 1)) / _WHOLE

    # Cutting

    def _measured(self, row: TraceRow) -> TraceRow:
        config, counts = self._config, self.counts
        passage = row.passage if config.scale_tokens == 1 else row.passage.scaled(config.scale_tokens)
        output_tokens = max(1, round(row.output_tokens * config.scale_tokens))
        if config.input_tokens_max is not None and passage.tokens > config.input_tokens_max:
            counts.inputs_cut += 1
            counts.input_tokens_cut += passage.tokens - config.input_tokens_max
            passage = passage.cut(config.input_tokens_max)
        if config.output_tokens_max is not None and output_tokens > config.output_tokens_max:
            counts.outputs_cut += 1
            counts.output_tokens_cut += output_tokens - config.output_tokens_max
            output_tokens = config.output_tokens_max
        think_s = row.think_s / config.speed
        if config.pause_s_max is not None and think_s > config.pause_s_max:
            counts.pauses_cut += 1
            think_s = config.pause_s_max
        return replace(row, passage=passage, output_tokens=output_tokens, think_s=think_s)

    def _step(self, row: TraceRow, program_id: str) -> WorkloadStep:
        passage = self._placed(row, program_id)
        api_s = row.api_s / self._config.speed if self._config.pace is ReplayPace.RECORDED else 0.0
        return WorkloadStep("", row.output_tokens, row.after, row.think_s, passage, api_s)

    def _placed(self, row: TraceRow, program_id: str) -> BlockText:
        """Passage in this replay's namespace: another seed gives other text, and a session with blocks of its own
        shares nothing between its repetitions."""
        passage = row.passage
        where = f"own {program_id}" if passage.space == row.session else f"all {passage.space}"
        return replace(passage, space=f"{self._seed} {where}", own=f"{program_id} {passage.own}")


class GroupReplay:
    """Rows that one group's users replay, at recorded times or one session after another."""

    def __init__(self, replay: Replay, pieces: list[_Piece], group: int) -> None:
        self._replay = replay
        self._pieces = pieces
        self._group = group

    @property
    def requests(self) -> int:
        return sum(len(piece.rows) for piece in self._pieces)

    def recorded(self) -> Iterator[tuple[float, Program]]:
        """Programs with their arrival times, in order of time."""
        due = [(self._replay.due(piece, self._group), piece) for piece in self._pieces]
        for at_s, piece in sorted(due, key=lambda pair: pair[0]):
            yield at_s, self._replay.program(piece, f"recorded-{self._group}", f"{piece.session}.{piece.number}")

    def programs(self, user_id: str) -> Iterator[Program]:
        """Programs in an order drawn for the user, repeated without end."""
        assert self._pieces, "there is something to replay"
        rng = self._replay.rng(user_id)
        number = 0
        while True:
            for piece in rng.sample(self._pieces, len(self._pieces)):
                number += 1
                yield self._replay.program(piece, user_id, f"{user_id}/{number}/{piece.session}")


def _pieces(rows: Iterable[TraceRow]) -> list[_Piece]:
    """Pieces in order of time."""
    sessions: dict[str, list[TraceRow]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    pieces = [piece for said in sessions.values() for piece in _pieces_of(said)]
    return sorted(pieces, key=lambda piece: piece.at_s)


def _pieces_of(said: list[TraceRow]) -> Iterator[_Piece]:
    """Group a session's rows into pieces: a row that waits for none begins a piece, the others join that of the row
    they wait for."""
    places: list[tuple[int, int]] = []
    roots: dict[int, list[TraceRow]] = {}
    for number, row in enumerate(said):
        root, after = (number, None) if row.after is None else places[row.after]
        mine = roots.setdefault(root, [])
        places.append((root, len(mine)))
        mine.append(replace(row, after=after))
    for number, rows in roots.items():
        yield _Piece(rows[0].at_s, rows[0].session, number, tuple(rows))
