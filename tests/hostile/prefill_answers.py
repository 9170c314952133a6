"""False `kv_transfer_params` of a prefill worker, and the expected result of each: one case per line. A hand-off is
passed on to the decode engine unchanged, so it must be one JSON object of a bounded size, must not contain a member of
the gateway's own in any spelling, and must lead to the worker itself (10.0.0.7 and 127.0.0.1, port 5600) and nowhere
else. Counts of experts are used or dropped, at no other cost.
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
    """Raw value of the member in the answer."""
    told: bytes | None
    """Hand-off that the decode engine is given; None if the prefill is at fault and the decode engine is given none."""
    counts: bool = False
    """True if the counts can be used."""


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


def _leading(host: str = '"10.0.0.7"', port: str = "5600") -> tuple[bytes, bytes]:
    """A hand-off with this address, and the same as the expected result where it is allowed."""
    told = handed(f'"remote_host":{host},"remote_port":{port},"remote_block_ids":[[1,2]]'.encode())
    return told, told


def _also(*members: bytes) -> tuple[bytes, bytes]:
    told = handed(TOLD, *members)
    return told, told


# fmt: off
PREFILL_CASES = (
    PrefillCase("nothing of ours", _PLAIN, _PLAIN),
    PrefillCase("counts", handed(TOLD, counts()), _PLAIN, counts=True),
    # Addresses
    PrefillCase("itself, by its other address", *_leading('"127.0.0.1"')),
    PrefillCase("itself by its name on its machine", *_leading('"localhost"')),
    PrefillCase("no host and no port", *_leading("null", "null")),
    PrefillCase("many nodes, all itself", *_also(b'"remote_multi_nodes_meta_mapping":{"0":{"host":"10.0.0.7","engine_id":"e"},"1":{"host":"10.0.0.7","engine_id":"f"}}')),
    PrefillCase("ids that look like much", *_also(b'"remote_engine_id":"d1f3-10","remote_request_id":"chatcmpl-10.0.0.9-x","tp_size":8,"remote_blocks_expiry_time":null,"transfer_mode":"pull"')),
    PrefillCase("a cloud's metadata", _leading('"169.254.169.254"')[0], None),
    PrefillCase("another replica", _leading('"10.0.0.8"')[0], None),
    PrefillCase("a host by name", _leading('"evil.example.net"')[0], None),
    PrefillCase("a host that begins like its own", _leading('"10.0.0.7.evil.example.net"')[0], None),
    PrefillCase("its own host as a user's name", _leading('"10.0.0.7@evil.example.net"')[0], None),
    PrefillCase("its own host and another's", _leading('"10.0.0.7,10.0.0.8"')[0], None),
    PrefillCase("its own host with a line break", _leading('"10.0.0.7\\n10.0.0.8"')[0], None),
    PrefillCase("its own host in another spelling", _leading('"010.0.0.7"')[0], None),
    PrefillCase("its own host as a number", _leading("167772167")[0], None),
    PrefillCase("its own host, mapped into IPv6", _leading('"::ffff:10.0.0.7"')[0], None),
    PrefillCase("every host", _leading('"0.0.0.0"')[0], None),
    PrefillCase("an empty host", _leading('""')[0], None),
    PrefillCase("a host in escapes", handed(b'"remote_\\u0068ost":"10.0.0.8","remote_port":5600'), None),
    PrefillCase("a host twice", handed(TOLD, b'"remote_host":"10.0.0.8"'), None),
    PrefillCase("a list of hosts", _leading('["10.0.0.7", "10.0.0.8"]')[0], None),
    PrefillCase("an object for a host", _leading('{"a": "10.0.0.8"}')[0], None),
    PrefillCase("a Unix socket", _leading('"/run/engine.sock"')[0], None),
    PrefillCase("a port of another service", _leading(port="22")[0], None),
    PrefillCase("port 0", _leading(port="0")[0], None),
    PrefillCase("a port below all", _leading(port="-1")[0], None),
    PrefillCase("a port beyond all", _leading(port="65536")[0], None),
    PrefillCase("a port beyond all numbers", handed(b'"remote_host":"10.0.0.7","remote_port":' + _HUGE), None),
    PrefillCase("a port with a fraction", _leading(port="5600.0")[0], None),
    PrefillCase("a port that is text", _leading(port='"5600"')[0], None),
    PrefillCase("a port that is true", _leading(port="true")[0], None),
    PrefillCase("a bootstrap server", handed(TOLD, b'"remote_bootstrap_addr":"http://169.254.169.254:80"'), None),
    PrefillCase("its own bootstrap server, at another port", handed(TOLD, b'"remote_bootstrap_addr":"http://10.0.0.7:22"'), None),
    PrefillCase("a metaserver", handed(TOLD, b'"metaserver":"http://evil.example.net/v1/metaserver"'), None),
    PrefillCase("a URL by any name", handed(TOLD, b'"x":"tcp://evil.example.net:1"'), None),
    PrefillCase("a URL with its own host as a user's name", handed(TOLD, b'"x":"http://10.0.0.7:5600@evil.example.net/"'), None),
    PrefillCase("an address by any name", handed(TOLD, b'"x":"10.0.0.8:80"'), None),
    PrefillCase("an address deep within", handed(TOLD, b'"x":{"y":[[{"z":["fd00::8"]}]]}'), None),
    PrefillCase("an address as a name", handed(TOLD, b'"x":{"10.0.0.8":1}'), None),
    PrefillCase("many nodes, one of them elsewhere", handed(TOLD, b'"remote_multi_nodes_meta_mapping":{"0":{"host":"10.0.0.7"},"1":{"host":"evil.example.net"}}'), None),
    PrefillCase("a member of a long name", handed(TOLD, b'"' + b"x" * 1000 + b'host":"evil"'), None),
    PrefillCase("20,000 nodes", handed(TOLD, b'"nodes":[' + b",".join([b'{"host":"10.0.0.7"}'] * 20_000) + b"]"), None),
    # Documents
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
    PrefillCase("layers that are no number", handed(TOLD, counts().replace(b'"layers": 2', b'"layers": NaN')), None),
    PrefillCase("layers without end", handed(TOLD, counts().replace(b'"layers": 2', b'"layers": 1e999')), None),
    PrefillCase("experts of another model", handed(TOLD, counts(bytes(12), experts=3)), _PLAIN, counts=True),
    PrefillCase("tokens below none", handed(TOLD, counts(tokens=-(2**63))), _PLAIN, counts=True),
    PrefillCase("counts that are a list", handed(TOLD, counts(counts=[-1, 2])), _PLAIN),
    PrefillCase("counts of 2,000 layers", handed(TOLD, counts(bytes(8), layers=2000, experts=2000)), _PLAIN),
    PrefillCase("counts and bytes behind them", handed(TOLD, counts(bytes(8)).replace(b'", "model"', b'AAAA", "model"')), _PLAIN),
    PrefillCase("layers with a fraction", handed(TOLD, counts(layers=1.5)), _PLAIN),
    PrefillCase("counts that are not packed", handed(TOLD, counts(counts="AAAA")), _PLAIN),
    PrefillCase("counts that are not base64", handed(TOLD, counts(counts="€€€€")), _PLAIN),
    PrefillCase("counts of another version", handed(TOLD, counts(v=2)), _PLAIN),
    PrefillCase("a fingerprint of 1,000 letters", handed(TOLD, counts(model="m" * 1000)), _PLAIN),
)
# fmt: on
