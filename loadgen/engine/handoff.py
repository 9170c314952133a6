"""KV cache hand-off fields in request bodies, as each connector's engine reads them, and in a prefill worker's answer.

Values in, values out. Input that kills a real engine raises EngineDied; this module neither fetches nor keeps anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

import xxhash

from gateway.core.vocabulary import Connector, ReplicaRole
from loadgen.engine.expert_counts import ExpertShape
from loadgen.engine.fields import ApiError, Fields, invalid
from loadgen.engine.vocabulary import FinishReason

_NIXL_NEEDS = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_MOONCAKE_NEEDS = ("remote_bootstrap_addr", "remote_engine_id", "transfer_id")
_WAITS_S = {Connector.MOONCAKE: 480.0, Connector.SGLANG: 300.0}
"""Seconds after which a decode worker that came before the prefill gives up: it is not told when there will be none."""
_ROOM_MAX = 2**63 - 1


class EngineDied(Exception):
    """Failed assertion in the engine's core: the whole server exits, with all that ran in it."""


@dataclass(frozen=True, slots=True)
class HandoffConfig:
    """Part of one engine in a disaggregated pool."""

    connector: Connector
    role: ReplicaRole
    lease_s: float = 30.0
    """Seconds for which a prefill worker keeps a KV cache that no decode worker fetches (NIXL `kv_lease_duration`). A
    decode worker renews the lease for queued requests. With Mooncake and SGLang the worker keeps it as long as they
    wait (`kept_s`)."""
    transfer_s: float = 0.002
    """Seconds to transfer a prompt's KV cache, plus `transfer_token_s` for each token."""
    transfer_token_s: float = 0.0
    """Seconds added for each token transferred."""
    recomputes: bool = False
    """True if a prompt whose KV cache cannot be fetched is computed here (`kv_load_failure_policy: recompute`); if
    false, its request fails."""
    experts: ExpertShape | None = None
    """Emulated mixture of experts of a prefill worker, which reports the experts that its prompts used."""
    bootstrap_port: int = 0
    """Additional port at which decode workers find a prefill worker; 0: the engine's own port."""

    @property
    def kept_s(self) -> float:
        return _WAITS_S.get(self.connector, self.lease_s)

    def transfer_s_of(self, tokens: int) -> float:
        return self.transfer_s + tokens * self.transfer_token_s


@dataclass(frozen=True, slots=True)
class HandOver:
    """Instruction to compute this prompt and keep its KV cache for a decode worker."""

    key: str | None
    """Key under which it will be fetched. None: the request id, which the answer reports."""
    reasons: tuple[FinishReason, ...]
    """Finish reasons with which the KV cache is kept; with others it is released."""
    is_cut: bool = False
    """True if the answer ends after one token whatever the request asks for."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Instruction to fetch this prompt's KV cache from a prefill worker."""

    address: str
    key: str
    engine_id: str | None
    waits_s: float


def handoff_of(fields: Fields, config: HandoffConfig) -> HandOver | Fetch | None:
    """Hand-off instruction in a request body, or None. Raises ApiError and EngineDied."""
    if config.connector is Connector.SGLANG:
        return _by_room(fields, config)
    params = fields.object("kv_transfer_params")
    if params is None:
        return None
    told = Fields(params.members)
    if told.flag("do_remote_decode") and config.role is not ReplicaRole.DECODE:
        return _kept(told, config.connector)
    if told.flag("do_remote_prefill") and config.role is not ReplicaRole.PREFILL:
        return _fetched(told, config.connector)
    return None


def _kept(told: Fields, connector: Connector) -> HandOver | None:
    match connector:
        case Connector.NIXL:
            return HandOver(None, (FinishReason.LENGTH, FinishReason.STOP))
        case Connector.ASCEND:
            return HandOver(None, (FinishReason.LENGTH,))
        case Connector.MOONCAKE:
            key = told.value("transfer_id")
            return None if key is None else HandOver(str(key), (FinishReason.LENGTH,))
        case Connector.SGLANG:
            raise AssertionError("rooms are read elsewhere")
        case _:
            assert_never(connector)


def _fetched(told: Fields, connector: Connector) -> Fetch | None:
    needs = _MOONCAKE_NEEDS if connector is Connector.MOONCAKE else _NIXL_NEEDS
    missing = [name for name in needs if told.value(name) is None]
    if missing and connector is Connector.MOONCAKE:
        return None
    if missing:
        raise EngineDied(f"assert num_external_tokens == 0: kv_transfer_params without {', '.join(missing)}")
    if connector is Connector.MOONCAKE:
        address, engine_id = told.text("remote_bootstrap_addr"), told.text("remote_engine_id")
        return Fetch(address, told.text("transfer_id"), engine_id, _WAITS_S[connector])
    address = _address(told.text("remote_host"), told.integer("remote_port", at_least=0))
    return Fetch(address, told.text("remote_request_id"), told.text("remote_engine_id"), 0.0)


def _by_room(fields: Fields, config: HandoffConfig) -> HandOver | Fetch:
    room = fields.integer("bootstrap_room", at_least=0)
    if room is None:
        raise ApiError(400, "BadRequestError", "Disaggregated request received without bootstrap room id")
    if room > _ROOM_MAX:
        raise invalid("bootstrap_room", "int_type", "Input should be below 2**63", room)
    if config.role is ReplicaRole.PREFILL:
        return HandOver(str(room), (FinishReason.LENGTH, FinishReason.STOP), is_cut=True)
    address = _address(fields.text("bootstrap_host"), fields.integer("bootstrap_port", at_least=1))
    return Fetch(address, str(room), None, _WAITS_S[Connector.SGLANG])


def _address(host: str, port: int | None) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def prompt_digest(model: str, cache_salt: str, prompt: bytes) -> str:
    """Digest that is equal for equal prompts of the same model and salt."""
    return str(xxhash.xxh3_128_hexdigest(b"\0".join((model.encode(), cache_salt.encode(), prompt))))


def handed_over(
    connector: Connector, *, key: str, engine_id: str, host: str, port: int, prompt_tokens: int, blocks: int
) -> dict[str, Any] | None:
    """Transfer parameters in a prefill worker's answer. None with connectors that need none, whose two legs run at
    once."""
    if not connector.is_sequential:
        return None
    where: dict[str, Any] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, blocks + 1))] if connector is Connector.NIXL else list(range(1, blocks + 1)),
        "remote_engine_id": engine_id,
        "remote_request_id": key,
        "remote_host": host,
        "remote_port": port,
    }
    if connector is Connector.NIXL:
        return where | {
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 0,
        }
    return where | {
        "remote_pcp_size": 1,
        "remote_dcp_size": 1,
        "remote_ptp_size": 1,
        "last_token_id": 0,
        "remote_multi_nodes_meta_mapping": {},
        "num_prompt_blocks": blocks,
        "remote_block_size": [16],
    }
