"""Describes the instances that serve a model: GPU memory left for the KV cache, sequences that fit, time per iteration,
and price per hour. Values and arithmetic only: nothing is measured here.

Equations are those of the token-budget paper (arXiv 2604.09613, §1.1 and Appendix A). A profile's explicit values take
precedence over the equations and are reported as overrides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loadgen.engine.iteration_cost import LinearCost
from loadgen.engine.model import EngineConfig

BLOCK_TOKENS = 16
HOURS_A_YEAR = 8_760


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of one GPU for an hour in US dollars, with its source and date."""

    usd_per_hour: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: float
    price: GpuPrice | None = None
    """Price of the GPU; a missing one (None) is shown as missing."""


@dataclass(frozen=True, slots=True)
class Model:
    """Model as one GPU of an instance sees it."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    kv_value_bytes: int
    weights_bytes: float
    """Weights on each GPU."""
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
    """Share of the GPU's memory that may be used: u of Eq. 2."""
    cost: LinearCost
    context_tokens_max: int
    """Context window of a pool for all requests."""
    prefill_chunk_tokens: int = 512
    sequences_max: int = 256
    """Maximum number of sequences in a batch, whatever the memory."""
    kv_blocks: int | None = None
    """KV blocks, overriding Eq. 1 and 2."""
    slots: Mapping[int, int] = field(default_factory=dict)
    """Slots by context window, overriding the number that fits."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token on each GPU (Eq. 1, for one token): a head is never divided."""
        heads = max(1, self.model.kv_heads // self.tensor_parallel)
        return 2 * self.model.layers * heads * self.model.head_dim * self.model.kv_value_bytes

    @property
    def kv_tokens_computed(self) -> int:
        """Tokens that fit into memory (Eq. 2's numerator over Eq. 1); 0 where weights take all of it."""
        left = self.gpu.memory_bytes * self.memory_used_share - self.model.weights_bytes - self.model.activations_bytes
        return max(0, int(left // self.kv_bytes_per_token))

    @property
    def kv_tokens(self) -> int:
        return self.kv_tokens_computed if self.kv_blocks is None else self.kv_blocks * BLOCK_TOKENS

    def slots_computed(self, context_tokens: int) -> int:
        """Slots by Eq. 2, without the profile's overrides."""
        return min(self.sequences_max, self.kv_tokens_computed // context_tokens)

    def slots_at(self, context_tokens: int) -> int:
        """Sequences at once if each reserves a whole window, so that none is ever preempted."""
        told = self.slots.get(context_tokens)
        blocks_each = -(-context_tokens // BLOCK_TOKENS)
        reserved = min(self.sequences_max, self.kv_tokens // BLOCK_TOKENS // blocks_each)
        return reserved if told is None else told

    def overrides(self, contexts: Iterable[int]) -> list[str]:
        """Values that differ from Eq. 1 and 2, as text."""
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
        """Engine configuration of one instance of a pool with this window and this many slots."""
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
        """Yearly price of all GPUs of the instances; None where the price of a GPU is unknown."""
        price = self.gpu.price
        return None if price is None else instances * self.tensor_parallel * price.usd_per_hour * HOURS_A_YEAR
