"""Parses ServeGen's clients: the request rates and token counts of each of a service's clients by time of day.

The files describe a service and list no request, so requests are drawn from them, by a seed. Pure: texts in, rows out.
Source: ServeGen, arXiv 2505.09999. Inputs and outputs are drawn independently: only their marginals are known.
"""

from __future__ import annotations

import csv
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from loadgen.passages import BlockText
from loadgen.traces.rows import RowFault, Trace, TraceFormat, TraceRow, Unreadable
from loadgen.workload import RateCurve, arrivals

_HOUR_S = 3600.0
_OWN_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Requests per second from `from_s` on, and the coefficient of variation of their gaps (1 is a Poisson process)."""

    from_s: float
    rate: float
    variation: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts with their cumulative likelihoods."""

    tokens: Sequence[int]
    up_to: Sequence[float]

    def draw(self, rng: random.Random) -> int:
        place = bisect_right(self.up_to, rng.random() * self.up_to[-1])
        return self.tokens[min(place, len(self.tokens) - 1)]


@dataclass(frozen=True, slots=True)
class TokenWindow:
    from_s: float
    inputs: TokenCounts
    outputs: TokenCounts


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """One client of a service."""

    name: str
    rates: tuple[RateWindow, ...]
    tokens: tuple[TokenWindow, ...]


def parse_datasets(texts: Mapping[str, str], unreadable: Unreadable) -> dict[str, tuple[TokenWindow, ...]]:
    """Parse `chunk-N-dataset.json` by client: token counts from each of some seconds of the day on."""
    found = {}
    for client, text in texts.items():
        windows = []
        try:
            for from_s, fields in msgspec.json.decode(text, type=dict[str, dict[str, str]]).items():
                try:
                    if not _is_idle(fields):
                        windows.append(_token_window(from_s, fields))
                except (RowFault, ValueError) as fault:
                    unreadable.add(f"client {client}, from {from_s} s", fault)
        except msgspec.MsgspecError as fault:
            unreadable.add(f"client {client}", fault)
        if windows:
            found[client] = tuple(sorted(windows, key=lambda window: window.from_s))
    return found


def parse_windows(lines: Iterable[str], client: str, unreadable: Unreadable) -> tuple[RateWindow, ...]:
    """Parse `chunk-N-trace.csv`: the first three columns of each line are seconds, rate and variation."""
    windows = []
    for number, cells in enumerate(csv.reader(line for line in lines if line.strip()), 1):
        try:
            from_s, rate = float(cells[0]), float(cells[1])
            variation = float(cells[2]) if len(cells) > 2 and cells[2].strip() else 1.0
            windows.append(_rate_window(from_s, rate, variation))
        except (ValueError, IndexError):
            if number > 1:  # the first may hold titles
                unreadable.add(f"client {client}, line {number}", f"{','.join(cells)[:60]!r} is no time and rate")
    return tuple(sorted(windows, key=lambda window: window.from_s))


def parse_hours_of_day(lines: Iterable[str], unreadable: Unreadable) -> dict[str, tuple[RateWindow, ...]]:
    """Parse a CSV with a line for each client and a rate for each hour of the day: `client, …, h00, …, h23`."""
    rows = csv.DictReader(line for line in lines if line.strip())
    hours = [f"h{hour:02}" for hour in range(24)]
    if missing := {"client", *hours} - set(rows.fieldnames or ()):
        raise RowFault(f"there is no column {min(missing)}")
    found = {}
    for number, row in enumerate(rows, 2):
        try:
            rates = [float(row[hour]) for hour in hours]
            found[row["client"]] = tuple(_rate_window(hour * _HOUR_S, rate, 1.0) for hour, rate in enumerate(rates))
        except (ValueError, TypeError):
            unreadable.add(f"rates, line {number}", "should hold a rate for each hour")
    return found


def drawn(
    clients: Sequence[ServiceClient], *, seed: int, from_s: float, until_s: float, scale: float, unreadable: Unreadable
) -> Trace:
    """Draw requests for this part of the day, `scale` times as many as recorded."""
    rows = [row for client in clients for row in _requests(client, seed, from_s, until_s, scale)]
    rows.sort(key=lambda row: row.at_s)
    notes = (
        f"{len(clients)} clients, from which requests were drawn",
        "inputs and outputs are drawn independently of each other",
        "inputs share nothing: the files do not say",
    )
    return Trace(TraceFormat.SERVEGEN, rows, unreadable, notes=notes)


def _requests(client: ServiceClient, seed: int, from_s: float, until_s: float, scale: float) -> Iterator[TraceRow]:
    rng = random.Random(f"{seed}/servegen/{client.name}")
    number = 0
    ends = [*(each.from_s for each in client.rates[1:]), until_s]
    for window, window_end_s in zip(client.rates, ends, strict=True):
        begin_s, end_s = max(window.from_s, from_s), min(window_end_s, until_s)
        if begin_s >= end_s or not window.rate:
            continue
        curve = RateCurve(((0.0, window.rate * scale),))
        for after_s in arrivals(curve, rng, until_s=end_s - begin_s, variation=window.variation):
            at_s = begin_s + after_s
            tokens = _window_at(client.tokens, at_s)
            inputs, outputs = max(1, tokens.inputs.draw(rng)), tokens.outputs.draw(rng)
            passage = BlockText("", (), _OWN_BLOCK_TOKENS, inputs, f"{client.name}.{number}")
            yield TraceRow(at_s, client.name, passage, outputs)
            number += 1


def _window_at(windows: Sequence[TokenWindow], at_s: float) -> TokenWindow:
    """Last window that has begun; before the first, the first."""
    begun = [window for window in windows if window.from_s <= at_s]
    return begun[-1] if begun else windows[0]


def _is_idle(fields: Mapping[str, str]) -> bool:
    """True for a part of the day without requests."""
    return bool(fields) and all(text.replace(" ", "") == "{}" for text in fields.values())


def _token_window(from_s: str, fields: Mapping[str, str]) -> TokenWindow:
    if missing := {"input_tokens", "output_tokens"} - set(fields):
        raise RowFault(f"there is no {min(missing)}")
    return TokenWindow(float(from_s), _token_counts(fields["input_tokens"]), _token_counts(fields["output_tokens"]))


def _token_counts(text: str) -> TokenCounts:
    """Parse token counts written as a Python mapping: `{45: 0.0097, 46: 0.0117}`."""
    pairs = [pair.split(":") for pair in text.strip().strip("{}").split(",") if pair.strip()]
    likely = [(int(float(tokens)), float(share)) for tokens, share in pairs]
    if not likely or any(share < 0 for _, share in likely) or sum(share for _, share in likely) <= 0:
        raise RowFault("token counts without any likelihood")
    return TokenCounts([tokens for tokens, _ in likely], list(accumulate(share for _, share in likely)))


def _rate_window(from_s: float, rate: float, variation: float) -> RateWindow:
    if not (from_s >= 0 and 0 <= rate < float("inf") and 0 <= variation < float("inf")):
        raise ValueError("no rate")
    return RateWindow(from_s, rate, variation)
