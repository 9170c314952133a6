"""Hand-offs under mutation: a client's call goes out in two legs with the same prompt, and answers of a prefill or
decode worker are used or refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from gateway.core.vocabulary import Connector
from gateway.engines.exposition import BadProbe
from gateway.engines.handoff.attempt_ids import attempt_ids
from gateway.engines.handoff.bodies import _Named, decode_body, prefill_body
from gateway.engines.handoff.bootstrap import Bootstrap, read_query, read_server_info
from gateway.features.expert_locality.expert_counts import BadCounts, read_counts
from gateway.request.assembling import TOP, Assembler, Unassembled
from gateway.request.bodies import BodyFault, read_body
from gateway.request.event_scanner import EventScanner
from gateway.request.handoffs import HANDOFF_BYTES_MAX, OUR_PREFIX, handoff_in, takers_of
from gateway.request.legs import LegFailure
from gateway.request.side_channels import SideChannel

_RECORDINGS = Path(__file__).parents[1] / "recordings" / "vllm-0.32.0"
_MET = attempt_ids(b"n" * 16, 1)
_AT = Bootstrap("p.example", 8998, engine_id="e-0")
_OWN = SideChannel(frozenset({"10.0.0.7"}))
_TOLD = b'{"do_remote_prefill":true,"remote_block_ids":[[64, 40]]}'
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OURS = frozenset(_Named.__struct_fields__)
LEG_WORDS = (
    b'"stream"',
    b'"stream_options":{"include_usage":true}',
    b'"max_tokens":7',
    b'"kv_transfer_params":null',
    b'"\\u0073tream":true',
    b'"messages":[{"content":"\\"stream\\":true"}]',
    b'"prompt":["a"]',
    b'"n":1',
    b",",
    b":",
    b"[",
    b"]",
    b"{",
    b"}",
    b"null",
    b"\\ud83d",
    b"\\",
    b'"',
    b"\xff",
)
PREFILL_WORDS = (
    b'"kv_transfer_params"',
    b'"choices"',
    b'"message"',
    b'"usage"',
    b"data: ",
    b"\n\n",
    b'"error"',
    b'"index":0',
    b'"delta"',
    b"[DONE]",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"7",
    b'"',
    b"\xff",
)


def legs() -> Iterator[bytes]:
    for path in sorted(_RECORDINGS.glob("*.request.json")):
        yield path.read_bytes()
    yield b' { "messages" : [] , "model":"m", "stream":true,"stream_options":{"include_usage":true},"max_tokens":9}'


def prefills() -> Iterator[bytes]:
    for path in sorted(_RECORDINGS.glob("*.*")):
        yield path.read_bytes()


def write_legs(data: bytes) -> None:
    """Check that both engines get the client's members unchanged, other than the connector's, which the gateway
    sets.
    """
    for path in TOP:
        try:
            body = read_body(path, data, passes_priority=True)
            before = _MEMBERS.decode(data)
        except (BodyFault, msgspec.DecodeError, UnicodeDecodeError):
            continue
        for connector in takers_of(body):
            told = _TOLD if connector.is_sequential else b""
            prefill = b"".join(prefill_body(connector, path, data, _MET, bootstrap=_AT))
            decode = b"".join(decode_body(connector, data, _MET, told=told, bootstrap=_AT, assembled=True))
            for leg in (prefill, decode):
                after = _MEMBERS.decode(leg)
                assert _theirs(after) == _theirs(before)
            if connector is Connector.NIXL:
                assert bytes(_MEMBERS.decode(decode)["kv_transfer_params"]) == _TOLD
                assert json.loads(prefill.decode(errors="replace"))["max_tokens"] == 1


def _theirs(members: dict[str, msgspec.Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in members.items() if name not in _OURS}


def read_prefill(data: bytes) -> None:
    """Read the data as a prefill's answer, as a decode's stream, and as a page of a bootstrap server."""
    for connector in Connector:
        with suppress(LegFailure):
            handed = handoff_in(data, connector, _OWN)
            assert len(handed.told) <= HANDOFF_BYTES_MAX
            members = json.loads(handed.told or b"{}")
            assert isinstance(members, dict)
            assert not any(name.startswith(OUR_PREFIX) for name in members)
            with suppress(BadCounts):
                read_counts(handed.counts)
    with suppress(BadCounts):
        read_counts(data)
    for path in TOP:
        with suppress(Unassembled):
            Assembler(path, data, bytes_max=1 << 16)
        case = "chat" if "chat" in path else "completion"
        assembler = Assembler(path, (_RECORDINGS / f"{case}.prefill.json").read_bytes(), bytes_max=1 << 16)
        with suppress(Unassembled):
            assembler.feed(EventScanner().feed(data))
            assert json.loads(assembler.finish())["choices"]
    with suppress(BadProbe):
        read_query(data)
    with suppress(BadProbe):
        read_server_info(data, _AT)
