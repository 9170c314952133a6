"""Configuration of one emulated engine: model, address and speed. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadgen.engine.handoff import HandoffConfig
from loadgen.engine.model import EngineConfig


@dataclass(frozen=True, slots=True)
class EngineServerConfig:
    """Configuration of one emulated engine."""

    model: str
    engine: EngineConfig
    adapters: tuple[str, ...] = ()
    """LoRA adapters: served like models, listed with `parent`, each with a prefix cache of its own."""
    host: str = "127.0.0.1"
    port: int = 0
    """TCP port; 0: any free port, which `EngineServer.url` tells."""
    time_scale: float = 1.0
    """Wall time over model time: at 0.25 everything takes a quarter of the time."""
    faults: bool = False
    """Serve `POST /faults`."""
    seed: int = 0
    ignore_eos: bool = False
    """Make every answer as long as allowed. If false, that holds only for requests that ask for it; other lengths are
    drawn, seeded by the prompt, so that engines with one seed give a prompt the same answer."""
    output_tokens_median: float = 150.0
    output_tokens_sigma: float = 0.8
    """Sigma of the log-normal distribution of drawn lengths."""
    ranks: int = 1
    """Data-parallel ranks behind one URL, each with a batch and a cache of the engine's size."""
    kv_token_ns: int = 0
    """Nanoseconds that reading a token's keys and values adds to an iteration; ranks wait for the one that reads
    most."""
    handoff: HandoffConfig | None = None
    """Part in a disaggregated pool; None outside of one."""
    step_trace: Path | None = None
    """Folder for a trace of each rank's iterations, for diagnosis; requires several ranks or a `kv_token_ns`."""
    kv_events_ports: tuple[int, int] | None = None
    """First ports of the sockets that publish and repeat each rank's KV events; 0: any free ones, which
    `EngineServer.kv_events_ports` tells. None: no events."""
    body_bytes_max: int = 16 * 2**20
    shutdown_timeout_s: float = 2.0

    @property
    def served(self) -> tuple[str, ...]:
        return (self.model, *self.adapters)
