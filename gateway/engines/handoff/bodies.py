"""Builds the body of each leg of a hand-off: the client's own body, with the connector's parameters spliced in.

Prompts stay byte for byte the same on both legs: an engine that is handed the KV cache of another prompt stops, with
all that runs in it. Any hand-off parameter in the client's body is overwritten on either leg. Pure.

vLLM's NIXL connector is run against real engines (`tests/engines`). The code for Mooncake, vllm-ascend and SGLang is
verified against recorded contracts and our emulator, not run against the real engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from gateway.core.vocabulary import Connector
from gateway.engines.handoff.attempt_ids import AttemptIds
from gateway.engines.handoff.bootstrap import Bootstrap
from gateway.request import engine_api
from gateway.request.body_edits import CACHE_SALT, BodyMember, BodySetting, set_members
from gateway.request.legs import CacheSalt

LegBody = tuple[bytes, bytes | memoryview]
"""Body in two parts, so that a large one is not copied."""

_ABSENT = msgspec.Raw()


class _Named(msgspec.Struct):
    """Members that a leg may set. Only their presence is looked at."""

    stream: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    min_tokens: msgspec.Raw = _ABSENT
    min_completion_tokens: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT
    top_logprobs: msgspec.Raw = _ABSENT
    logprob_token_ids: msgspec.Raw = _ABSENT
    return_token_ids: msgspec.Raw = _ABSENT
    return_prompt_text: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT
    structured_outputs: msgspec.Raw = _ABSENT
    kv_transfer_params: msgspec.Raw = _ABSENT
    bootstrap_host: msgspec.Raw = _ABSENT
    bootstrap_port: msgspec.Raw = _ABSENT
    bootstrap_room: msgspec.Raw = _ABSENT


_NAMED = msgspec.json.Decoder(_Named)
_MEMBERS = {name: BodyMember(name) for name in _Named.__struct_fields__}

_CAP = {
    engine_api.CHAT_PATH: "max_tokens",
    engine_api.COMPLETIONS_PATH: "max_tokens",
    engine_api.MESSAGES_PATH: "max_tokens",
    engine_api.RESPONSES_PATH: "max_output_tokens",
}
"""Member that limits the length of an answer, by call."""
_UNSET: dict[str, bytes] = {
    "max_completion_tokens": b"1",
    "stream_options": b"null",
    "min_tokens": b"0",
    "min_completion_tokens": b"null",
    "n": b"1",
    "best_of": b"null",
    "logprob_token_ids": b"null",
    "return_token_ids": b"null",
    "return_prompt_text": b"null",
}
"""Members that a prefill sets only where the client has set them, mostly to the default. An engine refuses stream
options without a stream, a minimum of tokens above the maximum, and ids of tokens to report logprobs for without
logprobs."""
_UNSET_BY_PATH: dict[str, dict[str, bytes]] = {
    engine_api.CHAT_PATH: {"logprobs": b"false", "top_logprobs": b"null"},
    engine_api.COMPLETIONS_PATH: {"logprobs": b"null"},
}
_PULLED = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null%b}'
)
_TO_PULL = _PULLED % b""
_TO_PULL_ASCEND = _PULLED % b',"aborted_request":[]'
_USAGE_TOLD = b'{"include_usage":true}'


def prefill_body(
    connector: Connector,
    path: str,
    body: bytes,
    met: AttemptIds,
    *,
    bootstrap: Bootstrap | None = None,
    salt: CacheSalt | None = None,
) -> LegBody:
    """Body for the prefill worker. `bootstrap` is the worker's own, for connectors that have one."""
    named = _NAMED.decode(body)
    match connector:
        case Connector.NIXL:
            settings = _one_token(path, named) | {"kv_transfer_params": _TO_PULL}
        case Connector.ASCEND:
            settings = _one_token(path, named) | {"min_tokens": b"1", "kv_transfer_params": _TO_PULL_ASCEND}
        case Connector.MOONCAKE:
            settings = _one_token(path, named) | _unmasked(named)
            settings |= {"kv_transfer_params": _mooncake_prefill(met)}
        case Connector.SGLANG:
            settings = _room(met, bootstrap)
        case _:
            assert_never(connector)
    return _spliced(body, named, settings, salt)


def decode_body(
    connector: Connector,
    body: bytes,
    met: AttemptIds,
    *,
    told: bytes = b"",
    bootstrap: Bootstrap | None = None,
    salt: CacheSalt | None = None,
    assembled: bool = False,
    extras: Sequence[BodySetting] = (),
) -> LegBody:
    """Body for the decode worker. `told` is what the prefill handed over, for a sequential connector; it is passed on
    unchanged. `bootstrap` is the prefill worker's. `assembled` asks for a stream with usage, to be assembled here;
    `extras` are settings of a stream that ask for what the client did not."""
    named = _NAMED.decode(body)
    match connector:
        case Connector.NIXL | Connector.ASCEND:
            assert told[:1] == b"{", "a decode without a hand-off"
            settings = {"kv_transfer_params": told}
        case Connector.MOONCAKE:
            settings = {"kv_transfer_params": _mooncake_decode(met, bootstrap)}
        case Connector.SGLANG:
            settings = _room(met, bootstrap)
        case _:
            assert_never(connector)
    if assembled:
        settings |= {"stream": b"true", "stream_options": _USAGE_TOLD}
    return _spliced(body, named, settings, salt, extras)


def _one_token(path: str, named: _Named) -> dict[str, bytes]:
    settings = {"stream": b"false", _CAP[path]: b"1"}
    unset = _UNSET | _UNSET_BY_PATH.get(path, {})
    return settings | {name: text for name, text in unset.items() if _is_named(named, name)}


def _unmasked(named: _Named) -> dict[str, bytes]:
    """Members that keep a prefill from ending before its one token. Mooncake hands over only a prefill that ended by
    length; with at least one token it cannot end otherwise, except by a grammar. The token itself is not used."""
    grammars = {name: b"null" for name in ("response_format", "structured_outputs") if _is_named(named, name)}
    return {"min_tokens": b"1", **grammars}


def _mooncake_prefill(met: AttemptIds) -> bytes:
    return b'{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%b"}' % met.transfer_id.encode()


def _mooncake_decode(met: AttemptIds, bootstrap: Bootstrap | None) -> bytes:
    assert bootstrap is not None, "a decode over Mooncake without its prefill worker's address"
    told = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": bootstrap.address,
        "remote_engine_id": bootstrap.engine_id,
        "transfer_id": met.transfer_id,
    }
    return msgspec.json.encode(told)


def _room(met: AttemptIds, bootstrap: Bootstrap | None) -> dict[str, bytes]:
    """Members that both legs carry: the prefill worker's bootstrap server and the room."""
    assert bootstrap is not None, "SGLang without its prefill worker's bootstrap server"
    room = met.room if bootstrap.rank is None else met.in_room_of_rank(bootstrap.ranks, bootstrap.rank)
    return {
        "bootstrap_host": msgspec.json.encode(bootstrap.host),
        "bootstrap_port": msgspec.json.encode(bootstrap.port),
        "bootstrap_room": b"%d" % room,
    }


def _spliced(
    body: bytes,
    named: _Named,
    settings: dict[str, bytes],
    salt: CacheSalt | None,
    extras: Sequence[BodySetting] = (),
) -> LegBody:
    wanted = [*extras]
    wanted += [BodySetting(_MEMBERS[name], text, _is_named(named, name)) for name, text in settings.items()]
    if "kv_transfer_params" not in settings and _is_named(named, "kv_transfer_params"):
        wanted.append(BodySetting(_MEMBERS["kv_transfer_params"], b"null", is_named=True))
    if salt is not None:
        wanted.append(BodySetting(CACHE_SALT, b'"%b"' % salt.text.encode(), salt.replaces_own))
    return set_members(body, wanted)


def _is_named(named: _Named, name: str) -> bool:
    return getattr(named, name) is not _ABSENT
