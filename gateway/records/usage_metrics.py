"""Metrics of finished requests' usage: tokens, and time per token, by model and by tenant. No other names appear.

A client's request counts at the gateway it came to. Where a replica here ran it for another gateway, it counts in the
series that begin with `forwards_`; a gateway in between does not count it.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import Outcome, RequestProfile, TargetKind, TenantName
from gateway.records.model_labels import ModelLabels
from gateway.request.legs import RequestSummary
from gateway.request.usage import Counted, TokensUsed, tokens_used
from mesh.series import CounterSeries, Distribution
from mesh.totals import FIRST_TOKEN_BOUNDS_S

SHARE = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_PER_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
LENGTHS = tuple(float(2**power) for power in range(5, 21))
"""Bucket bounds in tokens: powers of two, as context windows are."""
_SECOND_NS = 1_000_000_000

RAN = {TargetKind.REPLICA: "local", TargetKind.PEER: "forward"}
"""Label `ran`: for a replica of this gateway, and for another gateway."""


class UsageMetrics:
    """Consumer of finished requests."""

    def __init__(
        self, registry: CollectorRegistry, models: ModelLabels, tenant_label: Callable[[TenantName], str]
    ) -> None:
        self._registry = registry
        self._models = models
        self._tenant_label = tenant_label
        self._define_clients()
        self._define_forwards()
        self._cached_share = self._histogram(
            "prefix_cached_share",
            "Share of the prompt that the engine of a replica reported as cached.",
            SHARE,
            "model",
        )

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Count a finished request, including one that its client left. A request without a record counts for its
        tenant only."""
        used = tokens_used(profile, summary)
        if record is not None and record.legs and (used.prompt or used.output):
            self._count(record, end, summary, used)
        if record is None or record.origin is None:
            self._count_for_tenant(self._tenant_label(profile.tenant), end, used)

    def _count_for_tenant(self, tenant: str, end: EndRequest, used: TokensUsed) -> None:
        self._tenant_requests.add(tenant, end.outcome)
        if used.prompt or used.output:
            self._tenant_tokens.add(tenant, "prompt", amount=used.prompt)
            self._tenant_tokens.add(tenant, "output", amount=used.output)

    def _count(self, record: RequestRecord, end: EndRequest, summary: RequestSummary, used: TokensUsed) -> None:
        model, leg = self._models.of(record.model), record.first_leg or record.legs[-1]
        per_token_s = _per_token_s(record, end, summary, used)
        cached_tokens, is_here = summary.cached_tokens, leg.target.kind is TargetKind.REPLICA
        if is_here and cached_tokens is not None and used.prompt:
            self._cached_share.observe(cached_tokens / used.prompt, model)
        if record.origin is None:
            self._count_own(model, RAN[leg.target.kind], used, cached_tokens or 0, per_token_s)
            if end.outcome is Outcome.COMPLETED:
                self._request_prompt.observe(used.prompt, model)
                self._request_total.observe(used.total, model)
        elif is_here:
            self._count_forwarded(model, used, cached_tokens or 0, per_token_s)
            if summary.is_event_stream and record.first_token_ns is not None:
                self._forwards_first_token.observe((record.first_token_ns - record.arrived_ns) / _SECOND_NS, model)

    def _count_own(
        self, model: str, where: str, used: TokensUsed, cached_tokens: int, per_token_s: float | None
    ) -> None:
        self._prompt_tokens.add(model, where, used.prompt_counted, amount=used.prompt)
        self._output_tokens.add(model, where, used.output_counted, amount=used.output)
        if cached_tokens:
            self._cached_tokens.add(model, where, amount=cached_tokens)
        if per_token_s is not None:
            self._per_token.observe(per_token_s, model, where, used.output_counted)

    def _count_forwarded(self, model: str, used: TokensUsed, cached_tokens: int, per_token_s: float | None) -> None:
        self._forwards_prompt_tokens.add(model, used.prompt_counted, amount=used.prompt)
        self._forwards_output_tokens.add(model, used.output_counted, amount=used.output)
        if cached_tokens:
            self._forwards_cached_tokens.add(model, amount=cached_tokens)
        if per_token_s is not None:
            self._forwards_per_token.observe(per_token_s, model, used.output_counted)

    def _define_clients(self) -> None:
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of client requests that an engine processed.", "model", "ran", "counted"
        )
        self._output_tokens = self._counter(
            "output_tokens", "Output tokens of client requests, including abandoned ones.", "model", "ran", "counted"
        )
        self._cached_tokens = self._counter(
            "cached_tokens",
            "Prompt tokens of client requests that engines reported as cached.",
            "model",
            "ran",
        )
        self._per_token = self._histogram(
            "output_token_seconds",
            "Mean time per output token after the first, of completed client streams.",
            _PER_TOKEN_S,
            "model",
            "ran",
            "counted",
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of each completed client request.", LENGTHS, "model"
        )
        self._request_total = self._histogram(
            "request_total_tokens",
            "Prompt and output tokens of each completed client request.",
            LENGTHS,
            "model",
        )
        self._tenant_requests = self._counter(
            "tenant_requests", "Client requests that ended, by tenant and outcome.", "tenant", "outcome"
        )
        self._tenant_tokens = self._counter(
            "tenant_tokens",
            "Tokens of client requests, by tenant, as counted for the limits of keys.",
            "tenant",
            "kind",
        )

    def _define_forwards(self) -> None:
        """Define the series of requests that peers forwarded here; none of these requests is in the clients' series."""
        self._forwards_prompt_tokens = self._counter(
            "forwards_prompt_tokens",
            "Prompt tokens that replicas of this gateway processed for peers.",
            "model",
            "counted",
        )
        self._forwards_output_tokens = self._counter(
            "forwards_output_tokens",
            "Output tokens that replicas of this gateway generated for peers.",
            "model",
            "counted",
        )
        self._forwards_cached_tokens = self._counter(
            "forwards_cached_tokens",
            "Prompt tokens of peers' requests that engines of this gateway reported as cached.",
            "model",
        )
        self._forwards_first_token = self._histogram(
            "forwards_first_token_seconds",
            "Time from the arrival of a forward to the first token of its stream, for forwards that a "
            "replica of this gateway ran.",
            FIRST_TOKEN_BOUNDS_S,
            "model",
        )
        self._forwards_per_token = self._histogram(
            "forwards_output_token_seconds",
            "Mean time per output token after the first, of streams that replicas of this gateway ran for peers.",
            _PER_TOKEN_S,
            "model",
            "counted",
        )

    def _counter(self, name: str, words: str, *labels: str) -> CounterSeries:
        tally = CounterSeries(f"nightside_{name}", words, labels)
        self._registry.register(tally)
        return tally

    def _histogram(self, name: str, words: str, bounds: tuple[float, ...], *labels: str) -> Distribution:
        distribution = Distribution(f"nightside_{name}", words, bounds, labels)
        self._registry.register(distribution)
        return distribution


def _per_token_s(record: RequestRecord, end: EndRequest, summary: RequestSummary, used: TokensUsed) -> float | None:
    """Mean seconds per output token after the first. None where it cannot be measured: the answer did not complete, was
    no stream, had fewer than two tokens, or its tokens were only guessed from its bytes."""
    if end.outcome is not Outcome.COMPLETED or not summary.is_event_stream or used.output < 2:
        return None
    ended_ns = record.legs[-1].ended_ns
    if record.first_token_ns is None or ended_ns is None or used.output_counted is Counted.BYTES:
        return None
    return (ended_ns - record.first_token_ns) / (used.output - 1) / _SECOND_NS
