"""Time that requests take by their tokens, learnt from those that completed. It reads no clock and does no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import ModelName, Outcome, RegionName, RequestProfile
from gateway.request.legs import RequestSummary
from gateway.request.usage import prompt_guess, tokens_used

REQUESTS_MIN = 50
"""Requests without which a pace is not known: fewer would tell about single ones."""
_KEEPS = 0.99
"""Weight of all earlier requests when one more comes: about the last hundred count."""
_ALIKE = 1e-6
"""Share of the largest determinant below which prompts and answers are too alike in proportion to be told apart."""
_PACES_MAX = 512
"""Pairs of model and region that are followed; the pace of further ones is not known."""


class TokenTimes(Struct, frozen=True):
    """Nanoseconds that a request takes for each token while it shares an engine as it does at present."""

    prompt_ns: float
    output_ns: float


class LinePace:
    """Least squares of the time of requests by their tokens, without negative times. Memory is constant."""

    def __init__(self) -> None:
        self.requests = 0
        """Requests that completed."""
        self._sums = [0.0] * 8

    def add(self, prompt_tokens: int, output_tokens: int, took_ns: int) -> None:
        """Take in a request that completed."""
        self.requests += 1
        fresh = (
            1, output_tokens, took_ns, prompt_tokens * prompt_tokens, output_tokens * output_tokens,
            prompt_tokens * output_tokens, prompt_tokens * took_ns, output_tokens * took_ns,
        )  # fmt: skip
        self._sums = [_KEEPS * kept + one for kept, one in zip(self._sums, fresh, strict=True)]

    def include(self, other: LinePace) -> None:
        """Take in all requests of another pace."""
        self.requests += other.requests
        self._sums = [one + another for one, another in zip(self._sums, other._sums, strict=True)]

    @property
    def output_tokens(self) -> float:
        """Mean length of an answer in tokens; 0 before the first request."""
        count, outputs, *_ = self._sums
        return outputs / count if count else 0.0

    @property
    def took_ns(self) -> float:
        """Mean time of a request; 0 before the first one."""
        count, _, took_ns, *_ = self._sums
        return took_ns / count if count else 0.0

    def times(self) -> TokenTimes | None:
        """Times that fit best; None before the first request with tokens."""
        _, _, _, prompts, outputs, products, prompt_times, output_times = self._sums
        determinant = prompts * outputs - products * products
        if determinant > _ALIKE * prompts * outputs:
            prompt_ns = (outputs * prompt_times - products * output_times) / determinant
            output_ns = (prompts * output_times - products * prompt_times) / determinant
            if prompt_ns >= 0 and output_ns >= 0:
                return TokenTimes(prompt_ns, output_ns)
        by_output = output_times**2 / outputs if outputs else -1.0
        by_prompt = prompt_times**2 / prompts if prompts else -1.0
        if max(by_output, by_prompt) < 0:
            return None
        if by_output >= by_prompt:
            return TokenTimes(0.0, output_times / outputs)
        return TokenTimes(prompt_times / prompts, 0.0)


class ModelPaces:
    """Paces of each model by region: a consumer of finished requests."""

    def __init__(self) -> None:
        self._paces: dict[tuple[ModelName, RegionName], LinePace] = {}

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Take in a request of a client of this gateway that completed. Its prompt counts by its bytes, as that of a
        file does, whatever the engine counted."""
        if record is None or record.origin is not None or end.outcome is not Outcome.COMPLETED or not record.legs:
            return
        last = record.legs[-1]
        if last.ended_ns is None or not summary.generates:
            return
        began_ns = min(each.started_ns for each in record.legs if each.attempt == last.attempt)
        output_tokens = tokens_used(profile, summary).output
        self.add(profile.model, last.spec.place.region, prompt_guess(profile), output_tokens, last.ended_ns - began_ns)

    def add(self, model: ModelName, region: RegionName, prompt_tokens: int, output_tokens: int, took_ns: int) -> None:
        if (model, region) in self._paces or len(self._paces) < _PACES_MAX:
            self._paces.setdefault((model, region), LinePace()).add(prompt_tokens, output_tokens, took_ns)

    def over(self, model: ModelName, regions: Iterable[RegionName]) -> LinePace | None:
        """Pace of a model over these regions together; None: too few requests completed there."""
        pace = LinePace()
        for region in regions:
            if (known := self._paces.get((model, region))) is not None:
                pace.include(known)
        return pace if pace.requests >= REQUESTS_MIN else None
