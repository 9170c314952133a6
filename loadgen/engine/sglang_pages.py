"""Status pages of an emulated engine with SGLang's hand-off: server arguments, loads and metrics in SGLang's format.
Names and shapes are from SGLang's source, not recorded.
"""

from __future__ import annotations

from typing import Any

from gateway.core.vocabulary import ReplicaRole
from loadgen.engine.model import EngineLoad

VERSION = "0.5.23"
_MODES = {ReplicaRole.UNIFIED: "null", ReplicaRole.PREFILL: "prefill", ReplicaRole.DECODE: "decode"}
_TYPES = {ReplicaRole.UNIFIED: "unified", ReplicaRole.PREFILL: "prefill", ReplicaRole.DECODE: "decode"}


def server_info(role: ReplicaRole, *, bootstrap_port: int, ranks: int, page_tokens: int) -> dict[str, Any]:
    return {
        "version": VERSION,
        "disaggregation_mode": _MODES[role],
        "disaggregation_bootstrap_port": bootstrap_port,
        "dp_size": ranks,
        "page_size": page_tokens,
        "load_balance_method": "follow_bootstrap_room" if role is ReplicaRole.PREFILL else "round_robin",
    }


def loads_page(role: ReplicaRole, loads: list[EngineLoad], *, kv_tokens: int, timestamp: str) -> dict[str, Any]:
    """Body of `GET /v1/loads`."""
    return {
        "timestamp": timestamp,
        "version": VERSION,
        "loads": [_load(role, rank, load, kv_tokens) for rank, load in enumerate(loads)],
    }


def metrics_page(role: ReplicaRole, model: str, loads: list[EngineLoad], *, kv_tokens: int) -> bytes:
    lines = []
    for name, kind, value_of in _METRICS:
        lines.append(f"# TYPE sglang:{name} {kind}")
        for rank, load in enumerate(loads):
            rank_label = f'dp_rank="{rank}",' if len(loads) > 1 else ""
            labels = f'{rank_label}engine_type="{_TYPES[role]}",model_name="{model}",moe_ep_rank="0",pp_rank="0"'
            lines.append(f'sglang:{name}{{{labels},tp_rank="0"}} {float(value_of(role, load, kv_tokens))}')
    return ("\n".join(lines) + "\n").encode()


def _waits(role: ReplicaRole, load: EngineLoad, _kv_tokens: int) -> int:
    """Requests in the main queue. A decode worker counts the KV caches it fetches in queues of their own."""
    return load.waiting + (0 if role is ReplicaRole.DECODE else load.deferred)


_METRICS = (
    ("num_running_reqs", "gauge", lambda _role, load, _room: load.running),
    ("num_queue_reqs", "gauge", _waits),
    ("token_usage", "gauge", lambda _role, load, _room: load.kv_usage),
    ("num_used_tokens", "gauge", lambda _role, load, room: round(load.kv_usage * room)),
    ("max_total_num_tokens", "gauge", lambda _role, _load, room: room),
    ("num_prefill_inflight_queue_reqs", "gauge", lambda _role, load, _room: load.kept),
    ("num_decode_transfer_queue_reqs", "gauge", lambda _role, load, _room: load.deferred),
    ("generation_tokens_total", "counter", lambda _role, load, _room: load.generation_tokens),
    ("prompt_tokens_total", "counter", lambda _role, load, _room: load.prompt_tokens),
)


def _load(role: ReplicaRole, rank: int, load: EngineLoad, kv_tokens: int) -> dict[str, Any]:
    used = round(load.kv_usage * kv_tokens)
    return {
        "dp_rank": rank,
        "num_running_reqs": load.running,
        "num_waiting_reqs": _waits(role, load, kv_tokens),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": kv_tokens,
        "token_usage": load.kv_usage,
        "disaggregation": {
            "mode": _MODES[role],
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": load.kept,
            "decode_prealloc_queue_reqs": load.waiting if role is ReplicaRole.DECODE else 0,
            "decode_transfer_queue_reqs": load.deferred,
        },
    }
