"""Measures how long the worst request bodies block the event loop, each as large as permitted.

Parsing holds the interpreter lock until it is done, so a thread would not help. Decompression releases it; there, only
the one step that runs on the loop counts.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import thread_time_ns

from gateway.config.content import ContentConfig
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, RequestId, TenantName
from gateway.door.encodings import Inflater
from gateway.door.errors import ClientFault
from gateway.door.fields import LARGE_BYTES, has_too_many_fields
from gateway.door.parse import Caller, read_request
from gateway.door.settings import HttpSettings
from gateway.door.uploads import PROMPT_BYTES_MAX, PROMPT_STEP_BYTES_MAX
from gateway.request.content import ContentReader
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH
from gateway.request.media import MediaTokens

_SETTINGS = HttpSettings(GatewayId("gw"), Place(RegionName("us-east-1"), Jurisdiction("US")))
_CALLER = Caller(RequestId("r"), TenantName("default"), ("", ""))
_CONTENTS = ContentReader(lambda _: None, lambda _: True, MediaTokens(ContentConfig))
"""Reader that examines every model's bodies, as where pools are distinguished by token counts."""
_ROUNDS = 3
_MILLISECOND_NS = 1_000_000


def run() -> Mapping[str, object]:
    """Milliseconds of the loop's thread, the best of a few rounds; `worst_ms` is the largest."""
    size = _SETTINGS.body_bytes_max
    figures = {f"{name}_ms": _best_ms(partial(_read, path, body)) for name, path, body in _bodies(size)}
    packed = gzip.compress(bytes(1 << 21))[:PROMPT_BYTES_MAX]
    figures["small_gzip_ms"] = _best_ms(lambda: _inflate_small(packed))
    return {"body_bytes": size, **figures, "worst_ms": max(figures.values())}


def _bodies(size: int) -> list[tuple[str, str, bytes]]:
    """Bodies that are parsed on the event loop, by name and path."""
    xargs = json.dumps({f"{number:07}": 1 for number in range(size // 13)}).encode()
    line = b'{"type":"text","text":"x-anthropic-billing-header: 1"}'
    picture = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}'
    each = [
        ("text", CHAT_PATH, b'{"model":"m","messages":"%b"}' % (b"x" * size)),
        ("numbers", CHAT_PATH, b'{"model":"m","messages":[%b1]}' % _filled(b"1,", size)),
        ("many_fields", CHAT_PATH, b'{%b"model":"m"}' % _filled(b'"":1,', size)),
        ("one_field_again_and_again", CHAT_PATH, b'{%b"model":"m"}' % _filled(b'"rid":0,', size)),
        ("session_of_emoji", CHAT_PATH, b'{"model":"m","user":"%b"}' % _filled("\U0001f600".encode(), size)),
        ("extra_arguments", CHAT_PATH, b'{"model":"m","vllm_xargs":%b}' % xargs),
        ("system_in_pieces", MESSAGES_PATH, b'{"model":"m","system":[%b,%b1]}' % (line, _filled(b"1,", size))),
        ("prompts_in_pieces", COMPLETIONS_PATH, b'{"model":"m","prompt":[%b[]]}' % _filled(b"[],", size)),
        ("messages_in_pieces", CHAT_PATH, b'{"model":"m","messages":[%b{}]}' % _filled(b"{},", size)),
        ("picture", CHAT_PATH, b'{"model":"m","messages":[{"content":[%b]}]}' % picture % (b"A" * size)),
        ("pictures", CHAT_PATH, b'{"model":"m","messages":[{"content":[%b{}]}]}' % _filled(picture % b"" + b",", size)),
        (
            "parts_and_a_picture",
            CHAT_PATH,
            b'{"model":"m","messages":[{"content":[%b%b]}]}' % (_filled(b"{},"), picture),
        ),
        ("quotes", CHAT_PATH, b'{"model":"m","messages":"%b"}' % _filled(b'\\"', size)),
        ("escapes", CHAT_PATH, b'{"model":"m","messages":"%b"}' % _filled(b"\\n", size)),
        ("system_in_pieces_of_256_kib", MESSAGES_PATH, b'{"model":"m","system":[%b,%b1]}' % (line, _filled(b"1,"))),
        ("many_fields_of_a_small_one", CHAT_PATH, b'{%b"model":"m"}' % _filled(b'"rid":0,', LARGE_BYTES - 100)),
    ]
    return [one for one in each if len(one[2]) <= LARGE_BYTES or not has_too_many_fields(one[2])]


def _filled(piece: bytes, size: int = 250 * 1024) -> bytes:
    return piece * (size // len(piece))


def _read(path: str, body: bytes) -> None:
    with suppress(ClientFault):  # a refused body takes as long
        read_request(path, body, _CALLER, _SETTINGS, contents=_CONTENTS)


def _inflate_small(packed: bytes) -> None:
    inflater = Inflater("gzip")
    inflater.feed(packed)
    inflater.step(PROMPT_STEP_BYTES_MAX)


def _best_ms(work: Callable[[], None]) -> float:
    return round(min(_spent_ms(work) for _ in range(_ROUNDS)), 2)


def _spent_ms(work: Callable[[], None]) -> float:
    started_ns = thread_time_ns()
    work()
    return (thread_time_ns() - started_ns) / _MILLISECOND_NS
