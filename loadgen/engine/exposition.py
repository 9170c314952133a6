"""Metrics page of the emulated engine: vLLM's names, labels, buckets and text format.

The text is formatted here, because a dozen engines in one process are scraped ten times a second each. It counts
only per-request observations; all other values come from the model's load.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

from loadgen.engine.model import EngineConfig, EngineLoad
from loadgen.engine.vocabulary import FinishReason

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    """Observations by bucket, not cumulated; the last bucket is beyond every bound."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def token_count_bounds(context_tokens_max: int) -> tuple[float, ...]:
    """Bucket bounds 1, 2, 5, 10, 20, 50 … up to the context."""
    decades = (step * 10.0**power for power in range(10) for step in (1, 2, 5))
    return tuple(bound for bound in decades if bound <= context_tokens_max)


@dataclass(slots=True)
class RequestMetrics:
    """Per-request observations, in seconds of the engine's wall clock."""

    context_tokens_max: int
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FINISH_REASONS, 0))
    first_token: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_SECONDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_SECONDS))
    queue_time: Histogram = field(default_factory=lambda: Histogram(_REQUEST_SECONDS))
    end_to_end: Histogram = field(default_factory=lambda: Histogram(_REQUEST_SECONDS))
    prompt_tokens: Histogram = field(init=False)
    generation_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = Histogram(token_count_bounds(self.context_tokens_max))
        self.generation_tokens = Histogram(token_count_bounds(self.context_tokens_max))

    def observe_finished(self, reason: FinishReason, seconds: float, prompt_tokens: int, output_tokens: int) -> None:
        self.finished[reason] += 1
        self.end_to_end.observe(seconds)
        self.prompt_tokens.observe(prompt_tokens)
        self.generation_tokens.observe(output_tokens)


@dataclass(slots=True)
class Exposition:
    """Writer of one engine's metrics as text."""

    model_name: str
    config: EngineConfig
    created: float
    """Unix time of the engine's start, for the `_created` series."""
    is_of_nixl: bool = False
    """True if the NIXL connector's counters are shown."""
    late_notifications: int = 0
    """Attempts to free a KV cache after its lease was over; set by the server, as only the producer counts them."""
    _families: dict[str, list[str]] = field(default_factory=dict)
    """Samples of each metric family, for all ranks, by the family's header lines."""
    _samples: list[str] = field(default_factory=list)
    """Samples of the family that is being written."""
    _rank: int = 0
    _model_label: str = field(init=False)

    def __post_init__(self) -> None:
        escaped = self.model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._model_label = f'model_name="{escaped}"'

    def render(self, *ranks: tuple[EngineLoad, RequestMetrics]) -> bytes:
        self._families = {}
        for self._rank, (load, requests) in enumerate(ranks):
            self._gauges(load)
            self._counters(load, requests)
            self._histograms(requests)
            self._cache_config()
        self._rejections(sum(load.rejections for load, _ in ranks))
        lines = (line for head, samples in self._families.items() for line in (head, *samples))
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self, load: EngineLoad) -> None:
        self._gauge("num_requests_running", "Number of requests in model execution batches.", load.running)
        waiting = load.waiting + load.deferred
        self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        self._family("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
        self._sample("num_requests_waiting_by_reason", load.waiting, after='reason="capacity"')
        self._sample("num_requests_waiting_by_reason", load.deferred, after='reason="deferred"')
        self._family("engine_sleep_state", "gauge", "Engine sleep state; awake = 1 means engine is awake.")
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
            self._sample("engine_sleep_state", value, after=f'sleep_state="{state}"')
        self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", load.kv_usage)

    def _counters(self, load: EngineLoad, requests: RequestMetrics) -> None:
        queries, hits, external = load.prefix_query_tokens, load.prefix_hit_tokens, load.external_tokens
        self._counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", queries)
        self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", hits)
        self._counter("num_preemptions", "Cumulative number of preemption from the engine.", load.preemptions)
        self._counter("prompt_tokens", "Number of prefill tokens processed.", load.prompt_tokens)
        self._labelled_counter(
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            {
                'source="local_compute"': queries - hits - external,
                'source="local_cache_hit"': hits,
                'source="external_kv_transfer"': external,
            },
        )
        self._counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", hits + external)
        self._counter("generation_tokens", "Number of generation tokens processed.", load.generation_tokens)
        self._family("request_success_total", "counter", "Count of successfully processed requests.")
        for reason, count in requests.finished.items():
            self._sample("request_success_total", count, between=f'finished_reason="{reason}"')
        if self.is_of_nixl:
            self._of_nixl(load)

    def _of_nixl(self, load: EngineLoad) -> None:
        external, expired = load.external_tokens, load.leases_expired
        self._counter("external_prefix_cache_hits", "External prefix cache hits, in terms of tokens.", external)
        self._counter("nixl_num_kv_expired_reqs", "Number of requests that had their KV expire.", expired)
        late = self.late_notifications if self._rank == 0 else 0
        self._counter("nixl_num_notifications_after_expiry", "Number of notifications received after expiry.", late)

    def _rejections(self, count: int) -> None:
        """Counters of rejections, for the engine as a whole, without a rank label."""
        self._family("admission_rejections_total", "counter", "Number of admission attempts rejected by a queue limit.")
        for reason, rejected in (("max_num_queued_reqs", count), ("max_num_queued_tokens", 0)):
            labels = f'{self._model_label},reason="{reason}"'
            self._samples.append(f"vllm:admission_rejections_total{{{labels}}} {_number(rejected)}")

    def _histograms(self, requests: RequestMetrics) -> None:
        for name, text, histogram in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", requests.prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", requests.generation_tokens),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", requests.first_token),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", requests.inter_token),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requests.end_to_end),
            (
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                requests.queue_time,
            ),
        ):
            self._histogram(name, text, histogram)

    def _cache_config(self) -> None:
        config = self.config
        self._family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        labels = {
            "block_size": config.block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": True,
            "engine": self._rank,
            "gpu_memory_utilization": 0.92,
            "kv_cache_size_tokens": config.kv_tokens,
            "num_cpu_blocks": None,
            "num_gpu_blocks": config.kv_blocks,
            "num_gpu_blocks_override": None,
            "prefix_caching_hash_algo": "xxhash",
            "sliding_window": None,
        }
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        self._samples.append(f"vllm:cache_config_info{{{text}}} 1.0")

    def _family(self, name: str, kind: str, text: str) -> None:
        head = f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}"
        self._samples = self._families.setdefault(head, [])

    def _sample(self, name: str, value: float, *, between: str = "", after: str = "") -> None:
        """Add one sample; labels are in alphabetical order, so some stand between `engine` and `model_name`."""
        labels = ",".join(filter(None, (f'engine="{self._rank}"', between, self._model_label, after)))
        self._samples.append(f"vllm:{name}{{{labels}}} {_number(value)}")

    def _gauge(self, name: str, text: str, value: float) -> None:
        self._family(name, "gauge", text)
        self._sample(name, value)

    def _counter(self, name: str, text: str, value: int) -> None:
        self._labelled_counter(name, text, {"": value})

    def _labelled_counter(self, name: str, text: str, values: dict[str, int]) -> None:
        self._family(f"{name}_total", "counter", text)
        for label, value in values.items():
            self._sample(f"{name}_total", value, after=label)
        self._family(f"{name}_created", "gauge", text)
        for label in values:
            self._sample(f"{name}_created", self.created, after=label)

    def _histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self._family(name, "histogram", text)
        cumulated = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            cumulated += count
            self._sample(f"{name}_bucket", cumulated, between=f'le="{_number(bound)}"')
        self._sample(f"{name}_count", cumulated)
        self._sample(f"{name}_sum", histogram.total)
        self._family(f"{name}_created", "gauge", text)
        self._sample(f"{name}_created", self.created)
