"""False answers of a Kubernetes API to a list or on a watch, and the engines that are known afterwards: one case per
line. Each is raw bytes on a socket, from an API that the region file names.

Before each case, the API gives one true answer with two engines, `HONEST`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

HONEST = ("10.0.0.1:8000", "10.0.0.2:8000")
ELSEWHERE = "http://127.0.0.1:{elsewhere}"
"""Server that must not be contacted; `{elsewhere}` is its port."""


@dataclass(frozen=True, slots=True)
class ClusterCase:
    name: str
    lie: bytes | Endless | None
    """Complete answer as raw HTTP; None stands for silence."""
    known: tuple[str, ...] = HONEST
    once: bool = False
    """True if the false answer is given once, and the true one from then on."""


@dataclass(frozen=True, slots=True)
class Endless:
    """Bytes of an answer without an end."""

    head: bytes
    pattern: bytes
    """Bytes that are repeated; `%d` in them is replaced by a growing number."""
    is_chunked: bool = True

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        for number in count():
            piece = self.pattern.replace(b"%d", str(number).encode())
            yield b"%x\r\n%b\r\n" % (len(piece), piece) if self.is_chunked else piece


# Answers


def answer(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def stream(*events: bytes) -> bytes:
    """A watch that ends."""
    text = b"".join(events)
    return _CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)


def bytewise(*events: bytes) -> bytes:
    """A watch with one chunk per byte."""
    return _CHUNKED + b"".join(b"1\r\n%c\r\n" % each for each in b"".join(events)) + b"0\r\n\r\n"


def listed(*items: Any, version: Any = "7", kind: Any = "EndpointSliceList", **metadata: Any) -> bytes:
    told = {"kind": kind, "metadata": {"resourceVersion": version, **metadata}, "items": list(items)}
    return answer(json.dumps(told).encode())


def event(kind: Any, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def endpoint(address: Any, name: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": True},
        "targetRef": {"kind": "Pod", "name": f"pod-{address}" if name is None else name},
        **more,
    }


def sliced(*endpoints: Any, name: Any = "a", port: Any = 8000, version: Any = "8", **more: Any) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "resourceVersion": version},
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": port}],
        **more,
    }


ENGINES = sliced(endpoint("10.0.0.1"), endpoint("10.0.0.2"))
TRUTH = listed(ENGINES)


def _with(address: Any, **more: Any) -> bytes:
    """A list of the true endpoints and a false one."""
    return listed(ENGINES, sliced(endpoint(address, **more), name="b"))


def _port(port: Any) -> bytes:
    return listed(ENGINES, sliced(endpoint("10.0.0.3"), name="b", port=port))


def _raw(text: str) -> bytes:
    return answer(text.encode())


_DEEP = "[" * 200_000
_TRUE = json.dumps([ENGINES])
_BOMB = gzip.compress(b" " * (64 << 20))
_GOING = [endpoint(f"10.0.0.{number}", conditions={"terminating": True}) for number in (1, 2)]
_EVIL = {"nightside/models": "gpt-4\r\nx: y", "nightside/slots": "1e30", "url": "http://169.254.169.254"}

# fmt: off
LIST_CASES = (
    ClusterCase("the truth", TRUTH),
    ClusterCase("silence", None),
    # Invalid lists
    ClusterCase("an empty object", _raw("{}")),
    ClusterCase("nothing", answer(b"")),
    ClusterCase("no JSON", _raw("<html>")),
    ClusterCase("half a list", _raw(TRUTH.decode().partition("\r\n\r\n")[2][:-40])),
    ClusterCase("another's list", listed(kind="PodList")),
    ClusterCase("a status that is a success", _raw('{"kind": "Status", "status": "Success", "metadata": {}, "code": 200}')),
    ClusterCase("a table", listed(kind="Table")),
    ClusterCase("a kind that is a number", listed(kind=5)),
    ClusterCase("levels without end", _raw(f'{{"kind": "EndpointSliceList", "metadata": {{"resourceVersion": "1"}}, "items": {_DEEP}')),
    ClusterCase("an object of levels without end", _raw(f'{{"kind": "EndpointSliceList", "metadata": {{"resourceVersion": "1"}}, "items": [{{"a": {_DEEP + "]" * 200_000}}}]}}')),
    ClusterCase("a text that is not UTF-8", answer(TRUTH.partition(b"\r\n\r\n")[2].replace(b"pod-", b"\xff\xfe"))),
    ClusterCase("numbers that are none", _raw(f'{{"kind": "EndpointSliceList", "metadata": {{"resourceVersion": "1"}}, "items": {_TRUE.replace("8000", "NaN")}}}')),
    ClusterCase("items that are no list", _raw('{"kind": "EndpointSliceList", "metadata": {"resourceVersion": "1"}, "items": {}}')),
    ClusterCase("items that are no objects", listed(5, "a", None)),
    # All endpoints at once
    ClusterCase("nobody, once", listed(), once=True),
    ClusterCase("nobody, again and again", listed(), known=()),
    ClusterCase("nobody, in other words", _raw('{"kind": "EndpointSliceList", "metadata": {"resourceVersion": "1"}, "items": null}'), known=()),
    ClusterCase("all without names, once", listed({**ENGINES, "metadata": {}}), once=True),
    # Versions and pages
    ClusterCase("no version", _raw(f'{{"kind": "EndpointSliceList", "metadata": {{}}, "items": {_TRUE}}}')),
    ClusterCase("an empty version", listed(version="")),
    ClusterCase("a version that is a number", listed(version=7)),
    ClusterCase("a version of 1 MiB", listed(version="7" * (1 << 20))),
    ClusterCase("a version with a line break", listed(version="7\r\nx-evil: 1")),
    ClusterCase("pages in a circle", listed(**{"continue": "again"})),
    ClusterCase("pages of 5,000 objects, one after the other", listed(*[{}] * 5000, **{"continue": "next"})),
    ClusterCase("a next page of 1 MiB", listed(**{"continue": "n" * (1 << 20)})),
    ClusterCase("a next page with a line break", listed(**{"continue": "n\r\nx-evil: 1"})),
    # Sizes
    ClusterCase("5,001 objects", listed(*[{}] * 5001)),
    ClusterCase("an object of 3 MiB", listed(ENGINES, {"metadata": {"name": "b", "x": "x" * (3 << 20)}})),
    ClusterCase("a page of 17 MiB", listed(*[{"x": "x" * (1 << 20)}] * 17)),
    ClusterCase("a page without end", Endless(_CHUNKED, b'{"kind": "EndpointSliceList", "items": [' + b'"x",' * 10_000)),
    ClusterCase("a page of spaces without end", Endless(_CHUNKED, b" " * 60_000)),
    ClusterCase("6,000 engines", listed(*[sliced(*[endpoint(f"10.{a}.{b}.9") for b in range(250) for _ in range(4)], name=f"s{a}") for a in range(6)])),
    ClusterCase("a packed list that swells to 64 MiB", answer(_BOMB, "content-encoding: gzip")),
    ClusterCase("a packed list", answer(gzip.compress(_with("10.0.0.3").partition(b"\r\n\r\n")[2]), "content-encoding: gzip")),
    ClusterCase("an answer that breaks off", answer(b'{"kind": "End', length=10_000)),
    # HTTP
    ClusterCase("no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n"),
    ClusterCase("headers without end", Endless(b"HTTP/1.1 200 OK\r\n", b"x-%d: y\r\n", is_chunked=False)),
    ClusterCase("interim answers without end", Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", is_chunked=False)),
    ClusterCase("another protocol from now on", answer(b"", "upgrade: h2c", status="101 Switching Protocols")),
    ClusterCase("elsewhere", answer(b"", f"location: {ELSEWHERE}/", status="302 Found")),
    ClusterCase("elsewhere, with everything", answer(b"", f"location: {ELSEWHERE}/", status="307 Temporary Redirect")),
    ClusterCase("elsewhere for good", answer(b"", f"location: {ELSEWHERE}/", status="308 Permanent Redirect")),
    ClusterCase("elsewhere after a while", answer(b"{}", f"refresh: 0; url={ELSEWHERE}/")),
    ClusterCase("no list, in a status with line breaks", answer(b'{"message": "a\\nb\\u001b[2J", "code": 200}', status="500 Oops")),
    ClusterCase("too old, again and again", answer(b'{"code": 410}', status="410 Gone")),
    ClusterCase("a cookie", TRUTH.replace(b"content-length", b"set-cookie: a=b\r\ncontent-length")),
    # Addresses and ports
    ClusterCase("a cloud's metadata", _with("169.254.169.254")),
    ClusterCase("a cloud's metadata in IPv6", _with("fd00:ec2::254")),
    ClusterCase("a cloud's metadata, mapped into IPv6", _with("::ffff:169.254.169.254")),
    ClusterCase("this machine", _with("127.0.0.1")),
    ClusterCase("this machine in IPv6", _with("::1")),
    ClusterCase("this link", _with("fe80::1")),
    ClusterCase("an address with a zone that is another's name", _with("2001:db8::1%x]@evil.example.net")),
    ClusterCase("an address with a zone and a line break", _with("2001:db8::1%x\r\nx-evil: 1")),
    ClusterCase("every address", _with("0.0.0.0")),
    ClusterCase("many addresses", _with("224.0.0.1")),
    ClusterCase("a host name", _with("evil.example.net")),
    ClusterCase("an address with a path", _with("10.0.0.3/admin")),
    ClusterCase("an address that can be read in two ways", _with("010.0.0.3")),
    ClusterCase("a number for an address", _with(167772163)),
    ClusterCase("no address", _with(None)),
    ClusterCase("a second address", listed(sliced({**endpoint("10.0.0.1"), "addresses": ["10.0.0.1", "10.0.0.3"]}, endpoint("10.0.0.2")))),
    ClusterCase("port 0", _port(0)),
    ClusterCase("a port beyond all", _port(65_536)),
    ClusterCase("a port below all", _port(-1)),
    ClusterCase("a port that is true", _port(True)),
    ClusterCase("a port with a fraction", _port(8000.5)),
    ClusterCase("a port beyond all numbers", _port(1e300)),
    ClusterCase("a port that is a text", _port("8000")),
    # Names
    ClusterCase("an object without a name", listed(ENGINES, sliced(endpoint("10.0.0.3"), name=""))),
    ClusterCase("a name with a line break", listed(ENGINES, sliced(endpoint("10.0.0.3"), name="b\r\n"))),
    ClusterCase("a name of 10,000 letters", listed(ENGINES, sliced(endpoint("10.0.0.3"), name="b" * 10_000))),
    ClusterCase("a name that is a list", listed(ENGINES, sliced(endpoint("10.0.0.3"), name=["b"]))),
    ClusterCase("a pod's name with a line break", _with("10.0.0.3", name="p\r\nx"), known=(*HONEST, "10.0.0.3:8000")),
    ClusterCase("one name for two objects", listed(sliced(endpoint("10.0.0.3")), ENGINES)),
    ClusterCase("a known pod at another address too", _with("10.0.0.3", name="pod-10.0.0.1")),
    ClusterCase("two pods at one address", _with("10.0.0.1", name="other")),
    ClusterCase("parts of other kinds", listed(ENGINES, sliced(5, [], name="b", ports={"http": 1}), sliced({"addresses": "10.0.0.3", "conditions": [], "targetRef": []}, name="c"))),
    ClusterCase("labels and annotations that would change what is served", listed({**ENGINES, "metadata": {"name": "a", "labels": _EVIL, "annotations": _EVIL}})),
    ClusterCase("more engines than may be", listed(ENGINES, sliced(*[endpoint(f"10.1.0.{number}") for number in range(250)], name="b")), known=(*HONEST, "10.1.0.0:8000", "10.1.0.100:8000")),
)
"""Answers to every list after the first one, or to the second alone if `once` is set."""

WATCH_CASES = (
    ClusterCase("nothing new", stream()),
    ClusterCase("a new one", stream(event("ADDED", sliced(endpoint("10.0.0.3"), name="b"))), known=(*HONEST, "10.0.0.3:8000")),
    ClusterCase("a new one, byte by byte", bytewise(event("ADDED", sliced(endpoint("10.0.0.3"), name="b"))), known=(*HONEST, "10.0.0.3:8000")),
    ClusterCase("silence", None),
    ClusterCase("empty lines without end", Endless(_CHUNKED, b"\n" * 1000)),
    ClusterCase("half an event", stream(event("DELETED", ENGINES)[:-20])),
    ClusterCase("what is no event", stream(b"hello\n")),
    ClusterCase("an event of levels without end", stream(f'{{"type": "ADDED", "object": {_DEEP}\n'.encode())),
    ClusterCase("an event without an object", stream(b'{"type": "ADDED"}\n')),
    ClusterCase("an event about a text", stream(event("DELETED", "a"))),
    ClusterCase("an event of no kind", stream(event(None, ENGINES))),
    ClusterCase("an event of a later version", stream(event("VANISHED", ENGINES))),
    ClusterCase("another kind of object", stream(event("DELETED", {**ENGINES, "kind": "Pod"}))),
    ClusterCase("a line of 3 MiB", stream(event("ADDED", {"x": "x" * (3 << 20)}))),
    ClusterCase("a line without end", Endless(_CHUNKED, b"x" * 60_000)),
    ClusterCase("objects without end", Endless(_CHUNKED, event("ADDED", sliced(endpoint("10.9.9.9", conditions={"ready": False}), name="n%d")))),
    ClusterCase("versions that go back", stream(event("BOOKMARK", {"metadata": {"resourceVersion": "1"}}))),
    ClusterCase("a version of 1 MiB", stream(event("BOOKMARK", {"metadata": {"resourceVersion": "1" * (1 << 20)}}))),
    ClusterCase("too old", stream(event("ERROR", {"code": 410}))),
    ClusterCase("an error that says nothing", stream(event("ERROR", {}))),
    ClusterCase("everybody is gone", stream(event("DELETED", ENGINES))),
    ClusterCase("everybody is gone, in other words", stream(event("MODIFIED", sliced()))),
    ClusterCase("a stranger is gone", stream(event("DELETED", sliced(name="stranger")))),
    ClusterCase("one is somewhere else now", stream(event("MODIFIED", sliced(endpoint("169.254.169.254", "pod-10.0.0.1"), endpoint("10.0.0.2")))), known=("10.0.0.2:8000",)),
    ClusterCase("everybody goes, one by one", stream(event("MODIFIED", sliced(*_GOING))), known=()),
    ClusterCase("a list", TRUTH),
    ClusterCase("a packed watch", stream(gzip.compress(event("ADDED", sliced(endpoint("10.0.0.3"), name="b")))).replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1)),
    ClusterCase("chunks that are none", _CHUNKED + b"zz\r\nhello\r\n"),
    ClusterCase("elsewhere", answer(b"", f"location: {ELSEWHERE}/", status="307 Temporary Redirect")),
)
# fmt: on
"""Answers to the first watch; later watches are silent. Further lists get the true answer, unless the watch has changed
the endpoints."""
