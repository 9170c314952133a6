"""Requests that an engine runs, and the progress of each. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine.blocks import Holding
from loadgen.engine.vocabulary import FinishReason


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to run. The model knows the answer's length in advance, but generates it token by token."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    block_names: bytes = b""
    """Chained names of the full blocks of prompt and output together, in order and packed (`blocks.NAME_BYTES` each).
    Blocks past the end have no name and cannot be reused."""
    finish_reason: FinishReason = FinishReason.LENGTH
    """Finish reason reported at the last token: the caller knows whether it is the end of the text or a limit."""
    is_remote: bool = False
    """True if the prompt was computed elsewhere: once there is room for it, its KV cache is fetched."""
    lease_ns: int | None = None
    """Nanoseconds for which the blocks are kept after the end for a decode worker. None: they are not kept."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of a request through the engine."""

    request: EngineRequest
    held: Holding
    computed: int = 0
    """Tokens whose keys and values exist."""
    generated: int = 0
    scheduled: int = 0
    """Tokens that the iteration in flight computes."""
    preemptions: int = 0
    is_fetched: bool = False
    """True once the fetch of a remote prompt has ended, successfully or not."""
    external_tokens: int = 0
    """Prompt tokens of a remote request that were fetched, because they were not in the local cache."""

    @property
    def target(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.request.prompt_tokens + self.generated

    @property
    def is_decoding(self) -> bool:
        return self.generated > 0 and self.request.prompt_tokens + self.generated - self.computed == 1

    @property
    def remaining(self) -> int:
        return self.request.output_tokens - self.generated
