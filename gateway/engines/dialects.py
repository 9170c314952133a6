"""Reads load and liveness from the pages of each kind of engine. Pure: bytes in, readings out, or BadProbe with the
reason.

Names are those of vLLM 0.33, SGLang 0.5, llama.cpp, TGI, TensorRT-LLM and NIM. No page asked for here makes an engine
generate: SGLang's `/health` does, and is not used.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.config.names import is_model_identity
from gateway.config.targets import Dialect
from gateway.engines.exposition import BadProbe, Lines, MetricSample, find, first_present, lines_about, samples


class LoadReading(Struct, frozen=True):
    """Load of one engine, or of one of its data-parallel ranks."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_tokens: int = 0
    """Capacity of the KV cache in tokens; 0 if the engine reports none or an implausible one, which is not held against
    it."""
    unfit: str = ""
    """Reason why the engine takes no request; empty if it takes requests."""
    deferred: int = 0
    """Waiting requests that wait for something other than room."""
    preemptions: int = 0
    """Sequences preempted for want of KV cache since the engine started; 0 if not reported."""
    slots: int = 0
    """Requests that the engine runs at once; 0 if not reported, as by vLLM."""


class LoadQuery(Struct, frozen=True):
    """One GET, and the function that reads its answer into one reading for each of a given number of ranks."""

    path: str
    read: Callable[[bytes, int], list[LoadReading]]


class EngineDialect(Struct, frozen=True):
    load: tuple[LoadQuery, ...]
    """Questions in order of preference; where one is not offered, the next is asked."""
    tells_load: bool = True
    health_path: str | None = None
    """Path that is also asked at intervals, since the load page outlives a dead engine."""
    life_path: str | None = None
    """Path that is answered without the scheduler; asked when the load page is slow."""


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
_PREEMPTIONS = (b"vllm:num_preemptions_total", b"vllm:num_preemptions")
"""Names of a counter that only vLLM has: SGLang reports current preemptions, not their total."""
_PREEMPTIONS_MAX = 10**15
_KV_TOKENS = (b"sglang:max_total_num_tokens",)
_CACHE_CONFIG = b"vllm:cache_config_info"
"""Metric whose labels, some forty, hold every setting of the cache."""
_SLEEP = b"vllm:engine_sleep_state"
_WAITING_BY_REASON = b"vllm:num_requests_waiting_by_reason"
_WANTED = lines_about(
    (*_WAITING, _WAITING_BY_REASON, *_RUNNING, *_KV_USAGE, *_KV_TOKENS, *_PREEMPTIONS, _CACHE_CONFIG, _SLEEP)
)
_RANK_LABELS = (b"engine", b"dp_rank")
"""Labels that name the rank, in vLLM and SGLang."""
_REQUESTS_MAX = 10**9
"""Sanity bound of a number of requests."""
_KV_TOKENS_MAX = 10**12
_KEY_LENGTH_MAX = 64
_CACHE_LABELS = re.compile(rb'[{,](block_size|engine|kv_cache_size_tokens|num_gpu_blocks)="([0-9]{1,12})"')
_CACHE_LABELS_LENGTH_MAX = 8192
_CACHE_CONFIGS_KNOWN_MAX = 1024


def read_metrics(page: bytes, ranks: int = 1) -> list[LoadReading]:
    """Read a Prometheus page. Raises BadProbe."""
    lines = find(page, _WANTED)
    waiting = _counted(first_present(lines, _WAITING))
    if not waiting:
        raise BadProbe("the metrics say nothing about waiting requests")
    running = _counted(first_present(lines, _RUNNING))
    kv_usage = _counted(first_present(lines, _KV_USAGE))
    kv_tokens = _kv_tokens(lines)
    asleep = [sample for sample in samples(lines, _SLEEP) if sample.value == 1]
    deferred = [each for each in samples(lines, _WAITING_BY_REASON) if each.labels.get(b"reason") == b"deferred"]
    preemptions = _counted(first_present(lines, _PREEMPTIONS))
    if ranks == 1:
        return [_reading(waiting, running, kv_usage, kv_tokens, asleep, deferred, preemptions)]
    return [
        _reading(
            _required(_of_rank(waiting, rank), rank),
            _of_rank(running, rank),
            _of_rank(kv_usage, rank),
            _of_rank(kv_tokens, rank),
            _of_rank(asleep, rank),
            _of_rank(deferred, rank),
            _of_rank(preemptions, rank),
        )
        for rank in _rank_labels(waiting, ranks)
    ]


def read_loads(page: bytes, ranks: int = 1) -> list[LoadReading]:
    """Read SGLang's own page of loads, one entry per rank. Raises BadProbe."""
    loads = _decoded(page, _LOADS, "the loads").loads
    if not loads:
        raise BadProbe("the loads are empty")
    readings = {each.dp_rank: _load_reading(each) for each in loads}
    if ranks == 1:
        return [
            LoadReading(
                sum(each.running for each in readings.values()),
                sum(each.waiting for each in readings.values()),
                max(each.kv_usage for each in readings.values()),
                sum(each.kv_tokens for each in readings.values()),
                slots=sum(each.slots for each in readings.values()),
            )
        ]
    if len(readings) != ranks or len(loads) != ranks:
        raise BadProbe(f"the engine tells of {len(loads)} ranks, and {ranks} are configured")
    return [readings[rank] for rank in sorted(readings)]


def read_slots(page: bytes, ranks: int = 1) -> list[LoadReading]:
    """Read llama.cpp's slots. They do not show the queue: while none is idle, one request counts as waiting, since the
    next one would. Each slot keeps the prompt that it ran last, so the capacity of the KV cache is that of all slots
    together. Raises BadProbe."""
    assert ranks == 1, "llama.cpp has no ranks"
    slots = _decoded(page, _SLOTS, "the list of slots")
    if not slots:
        raise BadProbe("the engine has no slots")
    running = sum(each.is_processing for each in slots)
    kv_tokens = sum(_room(each.n_ctx) for each in slots)
    return [LoadReading(running, waiting=int(running == len(slots)), kv_tokens=kv_tokens, slots=len(slots))]


def read_sign_of_life(page: bytes, ranks: int = 1) -> list[LoadReading]:
    """Read a list of models as a sign of life, from an engine that reports no load. Raises BadProbe."""
    assert ranks == 1, "it has no ranks"
    listed_models(page)
    return [LoadReading()]


class ListedModel(Struct, frozen=True):
    name: str
    parent: str | None
    """Base model of an adapter; None for a base model."""
    root: str
    """Origin of the weights, as the engine names it; empty: not stated, or not usable as an identity."""


def listed_models(page: bytes) -> list[ListedModel]:
    """Models that `/v1/models` lists: base models first, then adapters. Raises BadProbe."""
    entries = _decoded(page, _LISTING, "the list of models").data
    listed = [ListedModel(each.id, each.parent, _root(each.root)) for each in entries]
    return sorted(listed, key=lambda each: each.parent is not None)


DIALECTS: dict[Dialect, EngineDialect] = {
    Dialect.VLLM: EngineDialect((LoadQuery("/metrics", read_metrics),), health_path="/health"),
    Dialect.SGLANG: EngineDialect(
        (LoadQuery("/v1/loads", read_loads), LoadQuery("/metrics", read_metrics)), life_path="/ping"
    ),
    Dialect.LLAMACPP: EngineDialect(
        (LoadQuery("/metrics", read_metrics), LoadQuery("/slots", read_slots)), life_path="/health"
    ),
    Dialect.OPENAI: EngineDialect((LoadQuery("/v1/models", read_sign_of_life),), tells_load=False),
}


# Combining the samples of one name


def _counted(found: Iterable[MetricSample]) -> list[MetricSample]:
    """Samples of each rank, counted once: SGLang repeats them per priority and per tensor-parallel rank."""
    by_rank: defaultdict[bytes, dict[int, list[MetricSample]]] = defaultdict(dict)
    for sample in found:
        if not sample.labels.get(b"priority"):
            by_rank[_rank_of(sample)].setdefault(_number(sample.labels.get(b"tp_rank", b"0")), []).append(sample)
    return [sample for parts in by_rank.values() for sample in parts[min(parts)]]


def _rank_of(sample: MetricSample) -> bytes:
    for label in _RANK_LABELS:
        if label in sample.labels:
            return sample.labels[label]
    return b"0"


def _of_rank(found: list[MetricSample], rank: bytes) -> list[MetricSample]:
    return [sample for sample in found if _rank_of(sample) == rank]


def _rank_labels(found: list[MetricSample], ranks: int) -> list[bytes]:
    """Labels of the configured ranks, in order. An engine may number its ranks from any number on. Raises BadProbe."""
    labels = sorted({_rank_of(sample) for sample in found}, key=_number)
    if len(labels) != ranks:
        raise BadProbe(f"the engine tells of {len(labels)} ranks, and {ranks} are configured")
    return labels


def _required(found: list[MetricSample], rank: bytes) -> list[MetricSample]:
    if not found:
        raise BadProbe(f"the metrics say nothing of rank {rank.decode(errors='replace')}")
    return found


def _number(label: bytes) -> int:
    if not label.isdigit() or len(label) > 9:
        raise BadProbe("a rank is not a number")
    return int(label)


def _reading(  # noqa: PLR0917 - one after the other, as a page tells them
    waiting: list[MetricSample],
    running: list[MetricSample],
    kv_usage: list[MetricSample],
    kv_tokens: list[MetricSample],
    asleep: list[MetricSample],
    deferred: list[MetricSample],
    preemptions: list[MetricSample],
) -> LoadReading:
    return LoadReading(
        _requests(sum([sample.value for sample in running])),
        _requests(sum([sample.value for sample in waiting])),
        _share(max([sample.value for sample in kv_usage], default=0.0)),
        _room(sum([sample.value for sample in kv_tokens])),
        _sleep_of(asleep),
        _requests(sum([sample.value for sample in deferred])),
        _preempted(sum([sample.value for sample in preemptions])),
    )


def _kv_tokens(lines: Lines) -> list[MetricSample]:
    """KV-cache capacity of each rank, in tokens."""
    if _CACHE_CONFIG in lines:
        return [_cache_config(labels[:_CACHE_LABELS_LENGTH_MAX]) for labels, _ in lines[_CACHE_CONFIG]]
    return _counted(first_present(lines, _KV_TOKENS))


@lru_cache(_CACHE_CONFIGS_KNOWN_MAX)
def _cache_config(braces: bytes) -> MetricSample:
    """KV-cache capacity from vLLM's labels, which are constant during the life of the engine. Block size times blocks
    exceeds the capacity where layers keep different shares of a prompt; newer versions report the exact number, which
    is preferred."""
    told = dict(_CACHE_LABELS.findall(braces))
    blocks_tokens = int(told.get(b"block_size", 0)) * int(told.get(b"num_gpu_blocks", 0))
    return MetricSample({b"engine": told.get(b"engine", b"0")}, float(told.get(b"kv_cache_size_tokens", blocks_tokens)))


def _sleep_of(states: list[MetricSample]) -> str:
    for sample in states:
        state = sample.labels.get(b"sleep_state", b"awake")[:_KEY_LENGTH_MAX].decode(errors="replace")
        if state != "awake":
            return f"the engine sleeps ({state})"
    return ""


def _requests(total: float) -> int:
    if not 0 <= total <= _REQUESTS_MAX:
        raise BadProbe(f"{total} requests is no number of requests")
    return round(total)


def _preempted(total: float) -> int:
    """Total of preemptions; 0 for an implausible value, which is not held against the engine."""
    return int(total) if 0 <= total <= _PREEMPTIONS_MAX else 0


def _room(tokens: object) -> int:
    return int(tokens) if isinstance(tokens, int | float) and 0 <= tokens <= _KV_TOKENS_MAX else 0


def _slots(told: object) -> int:
    """Slots; 0 for an implausible value, which is not held against the engine."""
    return int(told) if isinstance(told, int | float) and 0 <= told <= _REQUESTS_MAX else 0


def _root(told: object) -> str:
    return told if isinstance(told, str) and is_model_identity(told) else ""


def _share(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise BadProbe(f"{value} is no share of a cache")
    return min(value, 1.0)


# JSON pages


class _Load(msgspec.Struct):
    num_running_reqs: int
    num_waiting_reqs: int
    dp_rank: int = 0
    token_usage: float = 0.0
    max_total_num_tokens: object = 0
    max_running_requests: object = 0


class _Loads(msgspec.Struct):
    loads: list[_Load]


class _Slot(msgspec.Struct):
    is_processing: bool
    n_ctx: object = 0


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    root: object = None


class _Listing(msgspec.Struct):
    data: list[_Model]


_LOADS = msgspec.json.Decoder(_Loads)
_SLOTS = msgspec.json.Decoder(list[_Slot])
_LISTING = msgspec.json.Decoder(_Listing)

_Page = TypeVar("_Page")


def _decoded(page: bytes, decoder: msgspec.json.Decoder[_Page], what: str) -> _Page:
    try:
        return decoder.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadProbe(f"{what} cannot be read: {error}") from error


def _load_reading(load: _Load) -> LoadReading:
    return LoadReading(
        _requests(load.num_running_reqs),
        _requests(load.num_waiting_reqs),
        _share(load.token_usage),
        _room(load.max_total_num_tokens),
        slots=_slots(load.max_running_requests),
    )
