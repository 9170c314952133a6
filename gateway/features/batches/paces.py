"""Time that requests take by their tokens, learnt from those that completed. It reads no clock and does no I/O."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import ModelName, Outcome, RegionName, RequestProfile
from gateway.request.legs import RequestSummary
from gateway.request.usage import tokens_used

_KEEPS = 0.99
"""Weight of all earlier requests when one more comes: about the last hundred count."""
_ALIKE = 1e-6
"""Share of the largest determinant below which prompts and answers are too alike in proportion to be told apart."""
_PACES_MAX = 512
"""Pairs of model and region that are followed; further ones go by their model alone, or are not known."""
_EVERYWHERE = RegionName("")


class TokenTimes(Struct, frozen=True):
    """Nanoseconds that a request takes for each token while it shares an engine as it does at present."""

    prompt_ns: float
    output_ns: float


class LinePace:
    """Least squares of the time of requests by their tokens, without negative times. Memory is constant."""

    def __init__(self) -> None:
        self._count = 0.0
        self._outputs = self._took_ns = 0.0
        self._prompt_squares = self._output_squares = self._products = 0.0
        self._prompt_times = self._output_times = 0.0

    def add(self, prompt_tokens: int, output_tokens: int, took_ns: int) -> None:
        """Take in a request that completed."""
        self._count = _KEEPS * self._count + 1
        self._outputs = _KEEPS * self._outputs + output_tokens
        self._took_ns = _KEEPS * self._took_ns + took_ns
        self._prompt_squares = _KEEPS * self._prompt_squares + prompt_tokens * prompt_tokens
        self._output_squares = _KEEPS * self._output_squares + output_tokens * output_tokens
        self._products = _KEEPS * self._products + prompt_tokens * output_tokens
        self._prompt_times = _KEEPS * self._prompt_times + prompt_tokens * took_ns
        self._output_times = _KEEPS * self._output_times + output_tokens * took_ns

    @property
    def output_tokens(self) -> float:
        """Mean length of an answer in tokens; 0 before the first request."""
        return self._outputs / self._count if self._count else 0.0

    @property
    def took_ns(self) -> float:
        """Mean time of a request; 0 before the first one."""
        return self._took_ns / self._count if self._count else 0.0

    def times(self) -> TokenTimes | None:
        """Times that fit best; None before the first request with tokens."""
        prompts, outputs, products = self._prompt_squares, self._output_squares, self._products
        determinant = prompts * outputs - products * products
        if determinant > _ALIKE * prompts * outputs:
            prompt_ns = (outputs * self._prompt_times - products * self._output_times) / determinant
            output_ns = (prompts * self._output_times - products * self._prompt_times) / determinant
            if prompt_ns >= 0 and output_ns >= 0:
                return TokenTimes(prompt_ns, output_ns)
        by_output = self._output_times**2 / outputs if outputs else -1.0
        by_prompt = self._prompt_times**2 / prompts if prompts else -1.0
        if max(by_output, by_prompt) < 0:
            return None
        if by_output >= by_prompt:
            return TokenTimes(0.0, self._output_times / outputs)
        return TokenTimes(self._prompt_times / prompts, 0.0)


class ModelPaces:
    """Paces of each model by region, and of each model as a whole: a consumer of finished requests."""

    def __init__(self) -> None:
        self._paces: dict[tuple[ModelName, RegionName], LinePace] = {}

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Take in a request of a client of this gateway that completed."""
        if record is None or record.origin is not None or end.outcome is not Outcome.COMPLETED or not record.legs:
            return
        last = record.legs[-1]
        if last.ended_ns is None or not summary.generates:
            return
        used = tokens_used(profile, summary)
        began_ns = min(each.started_ns for each in record.legs if each.attempt == last.attempt)
        self.add(profile.model, last.spec.place.region, used.prompt, used.output, last.ended_ns - began_ns)

    def add(self, model: ModelName, region: RegionName, prompt_tokens: int, output_tokens: int, took_ns: int) -> None:
        for key in ((model, region), (model, _EVERYWHERE)):
            if key not in self._paces and len(self._paces) >= _PACES_MAX:
                continue
            self._paces.setdefault(key, LinePace()).add(prompt_tokens, output_tokens, took_ns)

    def times(self, model: ModelName, region: RegionName) -> TokenTimes | None:
        """Times of a model in a region, or in all regions where none ended there; None: not known."""
        known = self._paces.get((model, region)) or self._paces.get((model, _EVERYWHERE))
        return None if known is None else known.times()

    def output_tokens(self, model: ModelName) -> float | None:
        """Mean length of the model's answers in tokens; None: not known."""
        known = self._paces.get((model, _EVERYWHERE))
        return None if known is None else known.output_tokens

    def line_ns(self, model: ModelName) -> float | None:
        """Mean time of the model's requests; None: not known."""
        known = self._paces.get((model, _EVERYWHERE))
        return None if known is None else known.took_ns
