"""How each kind of engine says how busy it is. Pure: bytes in, a reading out, or BadProbe in words.

Names from vLLM 0.33, SGLang 0.5, llama.cpp, TGI, TensorRT-LLM and NIM. One page may hold several series of a name, one
per data-parallel rank: they are added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from gateway.config import Dialect


class BadProbe(Exception):
    """The page does not say what it should."""


@dataclass(frozen=True, slots=True)
class Reading:
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One GET that tells all that placement needs."""

    path: str
    read: Callable[[bytes], Reading]


_WAITING = (
    b"vllm:num_requests_waiting",
    b"sglang:num_queue_reqs",
    b"llamacpp:requests_deferred",
    b"tgi_queue_size",
    b"trtllm_num_requests_waiting",
    b"num_requests_waiting",
)
_RUNNING = (
    b"vllm:num_requests_running",
    b"sglang:num_running_reqs",
    b"llamacpp:requests_processing",
    b"tgi_batch_current_size",
    b"trtllm_num_requests_running",
    b"num_requests_running",
)
_KV_USAGE = (
    b"vllm:kv_cache_usage_perc",
    b"vllm:gpu_cache_usage_perc",
    b"sglang:token_usage",
    b"llamacpp:kv_cache_usage_ratio",
    b"trtllm_kv_cache_utilization",
    b"gpu_cache_usage_perc",
)
_REQUESTS_MAX = 10**9
"""A larger figure is garbage."""
_LABEL = re.compile(rb'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?')


def read_metrics(page: bytes) -> Reading:
    """A Prometheus page in its text form. Only lines of wanted names are looked at. Raises BadProbe."""
    page = b"\n" + page
    waiting = _first_present(page, _WAITING)
    if waiting is None:
        raise BadProbe("the metrics say nothing about waiting requests")
    running = _first_present(page, _RUNNING) or [0.0]
    kv_usage = _first_present(page, _KV_USAGE) or [0.0]
    return Reading(_requests(running), _requests(waiting), _share(max(kv_usage)))


def read_models(page: bytes) -> Reading:
    """An engine that only answers `/v1/models` says that it lives, and nothing of its load. Raises BadProbe."""
    try:
        document = msgspec.json.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadProbe(f"the list of models is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise BadProbe("the list of models has no data")
    return Reading()


PROBES: dict[Dialect, Probe] = {
    Dialect.VLLM: Probe("/metrics", read_metrics),
    Dialect.SGLANG: Probe("/metrics", read_metrics),
    Dialect.LLAMACPP: Probe("/metrics", read_metrics),
    Dialect.OPENAI: Probe("/v1/models", read_models),
}


def _first_present(page: bytes, names: tuple[bytes, ...]) -> list[float] | None:
    for name in names:
        values = list(_values(page, b"\n" + name))
        if values:
            return values
    return None


def _values(page: bytes, line_start: bytes) -> Iterator[float]:
    """The samples of one name; longer names that begin alike are passed over."""
    at = page.find(line_start)
    while at >= 0:
        start = at + len(line_start)
        end = page.find(b"\n", start)
        sample = page[start:] if end < 0 else page[start:end]
        if sample[:1] in (b"{", b" ", b"\t"):
            yield from _value(sample)
        at = page.find(line_start, start)


def _value(sample: bytes) -> Iterator[float]:
    labels, rest = _split_labels(sample)
    if labels.get(b"priority") or labels.get(b"tp_rank", b"0") != b"0":
        return  # SGLang repeats its totals per priority and per tensor-parallel rank
    words = rest.split()
    try:
        yield float(words[0])
    except (IndexError, ValueError) as error:
        raise BadProbe("a sample has no number") from error


def _split_labels(sample: bytes) -> tuple[dict[bytes, bytes], bytes]:
    labels: dict[bytes, bytes] = {}
    if not sample.startswith(b"{"):
        return labels, sample
    at = 1
    while (match := _LABEL.match(sample, at)) is not None:
        labels[match[1]] = match[2]
        at = match.end()
    if sample[at : at + 1] != b"}":
        raise BadProbe("a sample's labels are malformed")
    return labels, sample[at + 1 :]


def _requests(values: list[float]) -> int:
    total = sum(values)
    if not 0 <= total <= _REQUESTS_MAX:
        raise BadProbe(f"{total} requests is no number of requests")
    return round(total)


def _share(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise BadProbe(f"{value} is no share of a cache")
    return min(value, 1.0)
