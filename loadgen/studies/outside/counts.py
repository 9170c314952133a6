"""RunCounts of requests and tokens, as a tool reports them and as the gateways count them, and their comparison.

It only counts: pages of metrics and reports of tools are read elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

COMPLETED, LEFT, NOT_FOUND = "completed", "abandoned", "not_found"
_REQUESTS, _REFUSALS = "nightside_requests_total", "nightside_refusals_total"
_ENDS = {_REQUESTS: "outcome", _REFUSALS: "reason"}
"""Label that names the end, of each family of requests that have ended."""
_TOKENS = ("nightside_prompt_tokens_total", "nightside_output_tokens_total")
OPEN, DESCRIPTORS = "nightside_requests_open", "process_open_fds"
_SUFFIX = "_total"
"""Suffix that the parser takes from the names of counters' families."""
_READ = (_REQUESTS, _REFUSALS, *_TOKENS, OPEN, DESCRIPTORS)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Requests by their ends, and tokens; None: not reported."""

    completed: int | None = None
    left: int | None = None
    """Requests that the client left before their end."""
    failed: int | None = None
    """Requests that ended otherwise."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    not_found: int | None = None
    """Requests among those that failed whose URL a gateway does not have; no tool reports them apart."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One count by the tool and by the gateways."""

    name: str
    tool: int
    gateways: int

    @property
    def is_equal(self) -> bool:
        return self.tool == self.gateways

    @property
    def difference(self) -> int:
        return self.gateways - self.tool


@dataclass(frozen=True, slots=True)
class Allowance:
    """Differences of a count that have a known reason."""

    least: int
    most: int
    why: str

    def covers(self, pair: Compared) -> bool:
        return self.least <= pair.difference <= self.most


def counts_in(pages: Iterable[str]) -> RunCounts:
    """RunCounts since their start in the metrics pages of all gateways of a mesh; each request counts at one gateway.
    Requests that were refused at admission have failed."""
    pages = [*pages]
    ends = ends_in(pages)
    tokens = {name: value_in(pages, name) for name in _TOKENS}
    failed = ends.total() - ends[COMPLETED] - ends[LEFT]
    prompt_tokens, output_tokens = (tokens[name] for name in _TOKENS)
    return RunCounts(ends[COMPLETED], ends[LEFT], failed, prompt_tokens, output_tokens, ends[NOT_FOUND])


def ends_in(pages: Iterable[str]) -> Counter[str]:
    """Requests by their ends, and by the reasons of those that were refused at admission."""
    ends: Counter[str] = Counter()
    for each in (each for page in pages for family in text_string_to_metric_families(page) for each in family.samples):
        if each.name in _ENDS:
            ends[each.labels[_ENDS[each.name]]] += int(each.value)
    return ends


def missing_in(page: str) -> list[str]:
    """Families that are read and that the metrics page of one gateway lacks; a counter without series is there."""
    found = {family.name for family in text_string_to_metric_families(page)}
    return [name for name in _READ if name.removesuffix(_SUFFIX) not in found]


def value_in(pages: Iterable[str], name: str) -> int:
    """Sum of one series over all gateways."""
    families = (family for page in pages for family in text_string_to_metric_families(page))
    return sum(int(sample.value) for family in families for sample in family.samples if sample.name == name)


def since(before: RunCounts, after: RunCounts) -> RunCounts:
    """RunCounts between two readings of the same counters."""
    ends = ((getattr(before, each.name), getattr(after, each.name)) for each in fields(RunCounts))
    return RunCounts(*(None if one is None or other is None else other - one for one, other in ends))


def compared(tool: RunCounts, gateways: RunCounts) -> list[Compared]:
    """Both values of every count that the tool reports."""
    pairs = ((each.name, getattr(tool, each.name), getattr(gateways, each.name)) for each in fields(RunCounts))
    return [Compared(name, one, other) for name, one, other in pairs if one is not None and other is not None]


def unexplained(comparison: Iterable[Compared], allowed: Mapping[str, Allowance]) -> list[Compared]:
    """Counts that differ without a known reason, or by more or less than it accounts for."""
    return [each for each in comparison if not each.is_equal and not _is_covered(each, allowed.get(each.name))]


def _is_covered(pair: Compared, allowance: Allowance | None) -> bool:
    return allowance is not None and allowance.covers(pair)
