"""What serves a model: how much of a GPU's memory is left for the KV cache, how many sequences that holds, how long an
iteration takes, and what an hour costs. Values and arithmetic only: nothing is measured here.

Equations are those of the token-budget paper (arXiv 2604.09613, §1.1 and Appendix A). What a profile says itself goes
before what they give, and is told as an override.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import EngineConfig

BLOCK_TOKENS = 16
HOURS_A_YEAR = 8_760


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for an hour, in US dollars, and who said so when."""

    usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: float
    price: Price | None = None
    """None: nobody has said it; it is shown as missing."""


@dataclass(frozen=True, slots=True)
class Model:
    """As one GPU of an instance sees it."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    kv_value_bytes: int
    weights_bytes: float
    """On each GPU."""
    activations_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one kind of instance."""

    name: str
    source: str
    gpu: Gpu
    model: Model
    tensor_parallel: int
    memory_used_share: float
    """u of Eq. 2."""
    cost: LinearCost
    context_tokens_max: int
    """What a pool for all requests is configured for."""
    prefill_chunk_tokens: int = 512
    sequences_max: int = 256
    """In a batch, however much room there is."""
    kv_blocks: int | None = None
    """In place of what Eq. 1 and 2 give."""
    slots: Mapping[int, int] = field(default_factory=dict)
    """By context window, in place of what the room gives."""

    @property
    def kv_bytes_per_token(self) -> int:
        """On each GPU (Eq. 1, for one token): a head is never cut in parts."""
        heads = max(1, self.model.kv_heads // self.tensor_parallel)
        return 2 * self.model.layers * heads * self.model.head_dim * self.model.kv_value_bytes

    @property
    def kv_tokens_computed(self) -> int:
        """What memory leaves room for (Eq. 2's numerator over Eq. 1): 0 where weights take all of it."""
        left = self.gpu.memory_bytes * self.memory_used_share - self.model.weights_bytes - self.model.activations_bytes
        return max(0, int(left // self.kv_bytes_per_token))

    @property
    def kv_tokens(self) -> int:
        return self.kv_tokens_computed if self.kv_blocks is None else self.kv_blocks * BLOCK_TOKENS

    def slots_computed(self, context_tokens: int) -> int:
        """Eq. 2, without what the profile says itself."""
        return min(self.sequences_max, self.kv_tokens_computed // context_tokens)

    def slots_at(self, context_tokens: int) -> int:
        """Sequences at once if each reserves a whole window, so that none is ever preempted."""
        told = self.slots.get(context_tokens)
        blocks_each = -(-context_tokens // BLOCK_TOKENS)
        reserved = min(self.sequences_max, self.kv_tokens // BLOCK_TOKENS // blocks_each)
        return reserved if told is None else told

    def overrides(self, contexts: Iterable[int]) -> list[str]:
        """What is not as Eq. 1 and 2 have it, in words."""
        found = []
        if self.kv_blocks is not None:
            found.append(
                f"{self.kv_blocks:,} KV blocks of {BLOCK_TOKENS} tokens ({self.kv_tokens:,} tokens) as the profile"
                f" says; Eq. 1–2 give {self.kv_tokens_computed:,} tokens"
            )
        for context in sorted({*contexts}):
            slots, computed = self.slots_at(context), self.slots_computed(context)
            if slots != computed:
                found.append(f"{slots} slots at {context:,} tokens as the profile says; Eq. 1–2 give {computed}")
        return found

    def engine(self, context_tokens: int, slots: int) -> EngineConfig:
        """One instance of a pool of this window, with so many slots."""
        return EngineConfig(
            cost=self.cost,
            kv_blocks=self.kv_tokens // BLOCK_TOKENS,
            context_tokens_max=context_tokens,
            sequences_max=slots,
            batch_tokens_max=self.prefill_chunk_tokens + slots,
            prefill_chunk_tokens=self.prefill_chunk_tokens,
            report_tokens=False,
        )

    def yearly_usd(self, instances: int) -> float | None:
        """Of all GPUs of so many instances; None where nobody has said what one costs."""
        price = self.gpu.price
        return None if price is None else instances * self.tensor_parallel * price.usd_per_hour * HOURS_A_YEAR
