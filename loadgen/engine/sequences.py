"""What an engine runs: a request as it was asked for, and how far it has come. Values only: nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine.blocks import Holding
from loadgen.engine.vocabulary import FinishReason


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to run. The model is told how long the answer will be; it still pays for it token by token."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    block_names: bytes = b""
    """Chained names of the full blocks of prompt and output together, in order and packed (`blocks.NAME_BYTES` each).
    Blocks past the end have no name and cannot be reused."""
    finish_reason: FinishReason = FinishReason.LENGTH
    """What to report at the last token: the caller knows whether it would be the end of the text or a limit."""
    is_remote: bool = False
    """Its prompt was read elsewhere: once there is room for it, somebody is asked to bring its keys and values."""
    lease_ns: int | None = None
    """How long its blocks are kept after its end for somebody who fetches them. None: they are not kept."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the engine."""

    request: EngineRequest
    held: Holding
    computed: int = 0
    """Tokens whose keys and values exist."""
    generated: int = 0
    scheduled: int = 0
    """Tokens that the iteration in flight computes."""
    preemptions: int = 0
    is_fetched: bool = False
    """Of a remote one: what was asked for has come, or will never come."""
    external_tokens: int = 0
    """Of a remote one: what of its prompt was not in the cache here, and had to come."""

    @property
    def target(self) -> int:
        """Tokens to have computed before the next one can be sampled."""
        return self.request.prompt_tokens + self.generated

    @property
    def is_decoding(self) -> bool:
        return self.generated > 0 and self.request.prompt_tokens + self.generated - self.computed == 1

    @property
    def remaining(self) -> int:
        return self.request.output_tokens - self.generated
