"""Reads a user's own profiles from a YAML file and checks them once. Every fault names its key and line; nothing is
guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from loadgen.engine.iteration_cost import LinearCost
from loadgen.planner.profiles import BLOCK_TOKENS, Gpu, GpuPrice, Model, Profile
from mesh.yaml_file import read_yaml

_FILE_BYTES_MAX = 2**20
_GB = 1e9
_MS_NS, _US_NS = 1e6, 1e3

_Positive = Annotated[float, Field(gt=0, le=1e9)]
_NotNegative = Annotated[float, Field(ge=0, le=1e9)]
_Count = Annotated[int, Field(ge=1, le=10**9)]
_Words = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _PriceKeys(_Part):
    """Price with its source and date; all three are required, so that no price is without a source."""

    usd_per_hour: _Positive
    source: _Words
    date: _Words


class _GpuKeys(_Part):
    name: _Words
    memory_gb: _Positive
    price: _PriceKeys | None = None


class _ModelKeys(_Part):
    name: _Words
    layers: _Count
    kv_heads: _Count
    head_dim: _Count
    kv_value_bytes: _Count
    weights_gb: _Positive
    activations_gb: _NotNegative = 0.0


class _IterationKeys(_Part):
    base_ms: _Positive
    sequence_ms: _NotNegative
    prefill_token_us: _NotNegative = 0.0


class _ProfileKeys(_Part):
    source: _Words
    gpu: _GpuKeys
    model: _ModelKeys
    tensor_parallel: _Count = 1
    memory_used_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    iteration: _IterationKeys
    context_tokens_max: Annotated[int, Field(ge=BLOCK_TOKENS, le=2**24)]
    prefill_chunk_tokens: Annotated[int, Field(ge=1, le=2**20)] = 512
    sequences_max: Annotated[int, Field(ge=1, le=65_536)] = 256
    kv_blocks: _Count | None = None
    slots: dict[_Count, Annotated[int, Field(ge=1, le=65_536)]] = Field(default_factory=dict)

    def profile(self, name: str) -> Profile:
        gpu, model, iteration = self.gpu, self.model, self.iteration
        told = gpu.price
        price = None if told is None else GpuPrice(told.usd_per_hour, told.source, told.date)
        return Profile(
            name,
            self.source,
            Gpu(gpu.name, gpu.memory_gb * _GB, price),
            Model(
                model.name,
                model.layers,
                model.kv_heads,
                model.head_dim,
                model.kv_value_bytes,
                model.weights_gb * _GB,
                model.activations_gb * _GB,
            ),
            self.tensor_parallel,
            self.memory_used_share,
            LinearCost(
                round(iteration.base_ms * _MS_NS),
                round(iteration.sequence_ms * _MS_NS),
                round(iteration.prefill_token_us * _US_NS),
            ),
            self.context_tokens_max,
            self.prefill_chunk_tokens,
            self.sequences_max,
            self.kv_blocks,
            dict(self.slots),
        )


class _File(_Part):
    profiles: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")], _ProfileKeys] = Field(
        min_length=1, max_length=100
    )


def read_profiles(path: Path) -> dict[str, Profile]:
    """Profiles by name. Raises FileError."""
    found = read_yaml(path, bytes_max=_FILE_BYTES_MAX).read_as(_File)
    return {name: keys.profile(name) for name, keys in found.profiles.items()}
