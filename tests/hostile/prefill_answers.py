"""`kv_transfer_params` of a prefill that lies, and what may become of each: one line a finding. A hand-off is passed on to
the decode engine as it came, so it has to be one JSON object of a bounded size, without a word of ours in any writing;
counts of experts are used or dropped, and cost nothing but themselves.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from dataclasses import dataclass

TOLD = b'"remote_host":"10.0.0.7","remote_port":5600,"remote_block_ids":[1,2]'


@dataclass(frozen=True, slots=True)
class PrefillCase:
    name: str
    params: bytes
    """As they stand in the answer."""
    told: bytes | None
    """What the decode engine is told; None: the prefill is to blame, and nothing is."""
    counts: bool = False
    """There are counts that can be used."""


def counts(data: bytes = bytes(8), **more: object) -> bytes:
    """Members of a hand-off with counts of two layers of two experts."""
    packed = b64encode(zlib.compress(data)).decode()
    said = {"v": 1, "layers": 2, "experts": 2, "counts": packed, "model": "m", **more}
    return b'"nightside_expert_counts":' + json.dumps(said).encode()


def handed(*members: bytes) -> bytes:
    return b"{" + b",".join(members) + b"}"


_PLAIN = handed(TOLD)
_BOMB = zlib.compress(bytes(64 << 20), 9)
_DEEP = b"[" * 100_000 + b"]" * 100_000
_HUGE = b"1" + b"0" * 400

# fmt: off
PREFILL_CASES = (
    PrefillCase("nothing of ours", _PLAIN, _PLAIN),
    PrefillCase("counts", handed(TOLD, counts()), _PLAIN, counts=True),
    PrefillCase("a host of its choosing", handed(b'"remote_host":"169.254.169.254","remote_port":80'), handed(b'"remote_host":"169.254.169.254","remote_port":80')),
    PrefillCase("a port beyond all numbers", handed(b'"remote_host":"a","remote_port":' + _HUGE), handed(b'"remote_host":"a","remote_port":' + _HUGE)),
    PrefillCase("nothing", b"", None),
    PrefillCase("null", b"null", None),
    PrefillCase("a list", b"[" + _PLAIN + b"]", None),
    PrefillCase("text", b'"{}"', None),
    PrefillCase("a number beyond all numbers", _HUGE, None),
    PrefillCase("half an object", _PLAIN[:-1], None),
    PrefillCase("two objects", _PLAIN + _PLAIN, None),
    PrefillCase("an object and a member beside it", _PLAIN + b',"choices":5}{', None),
    PrefillCase("100,000 levels", handed(b'"x":' + _DEEP), None),
    PrefillCase("more than 512 KiB", handed(b'"x":"' + b"y" * (512 << 10) + b'"'), None),
    PrefillCase("our word in escapes", handed(TOLD, b'"\\u006eightside_order":1'), _PLAIN),
    PrefillCase("our word, more of it", handed(TOLD, b'"nightside":{"a":1}', b'"nightside_x":2'), _PLAIN),
    PrefillCase("our word twice", handed(TOLD, counts(), counts(v=9)), _PLAIN),
    PrefillCase("our word in a value", handed(b'"x":"nightside"'), handed(b'"x":"nightside"')),
    PrefillCase("counts that are null", handed(TOLD, b'"nightside_expert_counts":null'), _PLAIN),
    PrefillCase("counts that are text", handed(TOLD, b'"nightside_expert_counts":"1"'), _PLAIN),
    PrefillCase("counts of 100,000 levels", handed(TOLD, b'"nightside_expert_counts":' + _DEEP), None),
    PrefillCase("counts that swell to 64 MiB", handed(TOLD, counts(), b'"nightside_expert_counts":{"v":1,"layers":2,"experts":2,"counts":"' + b64encode(_BOMB)[:60_000] + b'"}'), _PLAIN),
    PrefillCase("counts of more than 64 KiB", handed(TOLD, counts(model="m" * 70_000)), _PLAIN),
    PrefillCase("more counts than are said", handed(TOLD, counts(bytes(10))), _PLAIN),
    PrefillCase("fewer counts than are said", handed(TOLD, counts(bytes(6))), _PLAIN),
    PrefillCase("no layers", handed(TOLD, counts(layers=0)), _PLAIN),
    PrefillCase("negative layers and experts", handed(TOLD, counts(layers=-2, experts=-2)), _PLAIN),
    PrefillCase("layers beyond all numbers", handed(TOLD, counts().replace(b'"layers": 2', b'"layers": ' + _HUGE)), _PLAIN),
    PrefillCase("as many cells as 2**64", handed(TOLD, counts(layers=2**32, experts=2**32)), _PLAIN),
    PrefillCase("layers with a fraction", handed(TOLD, counts(layers=1.5)), _PLAIN),
    PrefillCase("counts that are not packed", handed(TOLD, counts(counts="AAAA")), _PLAIN),
    PrefillCase("counts that are not base64", handed(TOLD, counts(counts="€€€€")), _PLAIN),
    PrefillCase("counts of another version", handed(TOLD, counts(v=2)), _PLAIN),
    PrefillCase("a fingerprint of 1,000 letters", handed(TOLD, counts(model="m" * 1000)), _PLAIN),
)
# fmt: on
