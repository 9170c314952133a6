"""Invalid messages of a peer in each of its roles, and the expected result of each: one case per line.

As a caller it forwards requests to this gateway (`CALL_CASES`), as a called peer it answers this gateway's forwards
(`ANSWER_CASES`), and it sends heartbeats (`BEAT_CASES`). It holds a certificate of the mesh, so that only its messages
are wrong. Messages are protobuf or, where no honest library would write them, raw bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc

from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, token

Status = grpc.StatusCode


class Came(Enum):
    """Result of a forward to this gateway."""

    SERVED = "served"
    REFUSED = "refused"
    """Refusal by a message, after which the origin tries elsewhere."""
    MALFORMED = "malformed"
    DENIED = "denied"
    """Denial for a caller that is not the gateway which it claims to be."""


SERVED, REFUSED, MALFORMED, DENIED = Came.SERVED, Came.REFUSED, Came.MALFORMED, Came.DENIED
_BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
_EU = {"region": "eu-west-1", "jurisdiction": "EU"}


# The peer as a caller


@dataclass(frozen=True, slots=True)
class CallCase:
    name: str
    changes: dict[str, Any] | bytes
    """Changes by field, with dots for nested ones; bytes stand for the whole message."""
    came: Came
    not_at_engine: bytes = b""
    """Bytes that the headers at the engine must not contain where the forward is served all the same."""


def forward(changes: dict[str, Any]) -> pb.ForwardRequest:
    """A valid forward with these changes."""
    message = pb.ForwardRequest(
        request_id="r-1",
        origin_gateway_id="eu-1",
        hops_cross_region=1,
        stamp=pb.ResidencyStamp(
            origin=pb.Place(**_EU), tenant="default", rule=pb.PlaceRule(regions=["us-east-1"]), policy_digest="d"
        ),
        deadline_ms=20_000,
        profile=pb.Profile(
            model="llama", tenant="default", prompt_bytes=35, prefix_block_bytes=256, session_key="s", stream=True
        ),
        path="/v1/chat/completions",
        headers=[pb.Header(name="content-type", value="application/json")],
        body=_BODY,
        method="POST",
    )
    for path, value in changes.items():
        _set(message, path, value)
    return message


def _set(message: Any, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        message = getattr(message, parent)
    if isinstance(value, list):
        message.ClearField(name)
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _header(name: str, value: str) -> dict[str, Any]:
    return {"headers": [pb.Header(name=name, value=value)]}


def _body(text: str) -> dict[str, Any]:
    return {"body": text.encode()}


def _about(response_id: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    """A call about a stored response."""
    profile = {"profile.model": "", "profile.is_control": True, "profile.stream": False, "profile.follows": "k"}
    return {"method": method, "path": f"/v1/responses/{response_id}", "body": b"", **profile, **more}


_WIRE = forward({}).SerializeToString()

# fmt: off
CALL_CASES = (
    CallCase("nothing wrong", {}, SERVED),
    # Messages
    CallCase("nothing but a field of a later version", b"\xfa\x3e\x04evil", MALFORMED),
    CallCase("bytes that are no message", b"\xff" * 100, MALFORMED),
    CallCase("half a message", _WIRE[: len(_WIRE) // 2], MALFORMED),
    CallCase("a text that is not UTF-8", b"\x0a\x02\xff\xfe" + _WIRE, MALFORMED),
    CallCase("a field of a later version", _WIRE + b"\xfa\x3e\x04evil", SERVED),
    CallCase("a field twice", _WIRE + b"\x0a\x03r-2", SERVED),
    CallCase("a field of another type", b"\x08\x05" + _WIRE, SERVED),
    # Identities and places
    CallCase("no id", {"request_id": ""}, MALFORMED),
    CallCase("an id of 10,000 letters", {"request_id": "a" * 10_000}, MALFORMED),
    CallCase("an id with a line break", {"request_id": "a\r\nx-evil: 1"}, MALFORMED),
    CallCase("an origin that nobody knows", {"origin_gateway_id": "eu-2"}, REFUSED),
    CallCase("an origin that is us", {"origin_gateway_id": "us-1"}, REFUSED),
    CallCase("no origin", {"origin_gateway_id": ""}, MALFORMED),
    CallCase("an origin that is no id", {"origin_gateway_id": "eu-1\n"}, MALFORMED),
    CallCase("a stamp from another place", {"stamp.origin.region": "ap-east-1"}, REFUSED),
    CallCase("a stamp of another law", {"stamp.origin.jurisdiction": "US"}, REFUSED),
    CallCase("a stamp from nowhere", {"stamp.origin.region": ""}, MALFORMED),
    CallCase("another tenant's stamp", {"stamp.tenant": "acme"}, MALFORMED),
    CallCase("no tenant", {"stamp.tenant": "", "profile.tenant": ""}, MALFORMED),
    CallCase("a tenant of 10,000 letters", {"stamp.tenant": "a" * 10_000, "profile.tenant": "a" * 10_000}, MALFORMED),
    CallCase("a rule that does not allow us", {"stamp.rule.regions": ["eu-west-1"]}, REFUSED),
    CallCase("a rule that denies us", {"stamp.rule.denied_regions": ["us-east-1"]}, REFUSED),
    CallCase("a rule without a place", {"stamp.rule.regions": []}, REFUSED),
    CallCase("a rule of 5,000 places", {"stamp.rule.regions": [f"r-{number}" for number in range(5000)]}, MALFORMED),
    CallCase("a rule with a place that is no name", {"stamp.rule.regions": ["us east"]}, MALFORMED),
    # Hops and deadlines
    CallCase("no hops", {"hops_cross_region": 0}, MALFORMED),
    CallCase("two hops across regions", {"hops_cross_region": 2}, REFUSED),
    CallCase("9 hops", {"hops_in_region": 8}, MALFORMED),
    CallCase("2**32 - 1 hops", {"hops_cross_region": 2**32 - 1}, MALFORMED),
    CallCase("no time left", {"deadline_ms": 0}, MALFORMED),
    CallCase("2**64 - 1 milliseconds left", {"deadline_ms": 2**64 - 1}, MALFORMED),
    # Profiles and bodies
    CallCase("another model than the body's", {"profile.model": "other"}, MALFORMED),
    CallCase("a body with another model", _body('{"model": "other", "messages": [], "stream": true}'), MALFORMED),
    CallCase("a body with two models", _body('{"model": "llama", "model": "other", "messages": [], "stream": true}'), MALFORMED),
    CallCase("a body with a model in disguise", _body('{"model": "llama", "\\u006dodel": "other", "messages": [], "stream": true}'), MALFORMED),
    CallCase("a body that is no JSON", _body("<html>"), MALFORMED),
    CallCase("an empty body", _body(""), MALFORMED),
    CallCase("a body of 100,000 levels", _body('{"model": "llama", "messages": ' + "[" * 100_000), MALFORMED),
    CallCase("a body with a reserved field", _body('{"model": "llama", "messages": [], "kv_transfer_params": {"a": 1}, "stream": true}'), MALFORMED),
    CallCase("a body with a reserved field in extra arguments", _body('{"model": "llama", "messages": [], "vllm_xargs": {"rid": "x"}, "stream": true}'), MALFORMED),
    CallCase("a body that follows what its profile does not", {"path": "/v1/responses", **_body('{"model": "llama", "input": "x", "previous_response_id": "resp_1", "store": false, "stream": true}')}, MALFORMED),
    CallCase("a body that runs in the background", {"path": "/v1/responses", **_body('{"model": "llama", "input": "x", "background": true, "store": false, "stream": true}')}, MALFORMED),
    CallCase("a packed body", _header("content-encoding", "gzip"), MALFORMED),
    CallCase("a prefix that is no whole number of blocks", {"profile.prefix": b"1234567"}, MALFORMED),
    CallCase("a prefix longer than its prompt", {"profile.prefix": bytes(8)}, MALFORMED),
    CallCase("a prefix of 2**20 + 1 blocks", {"profile.prefix": bytes(8 * (2**20 + 1)), "profile.prompt_bytes": 2**32}, MALFORMED),
    CallCase("blocks of no length", {"profile.prefix_block_bytes": 0}, MALFORMED),
    CallCase("a prompt of 2**64 - 1 bytes", {"profile.prompt_bytes": 2**64 - 1}, MALFORMED),
    CallCase("an output of 2**64 - 1 tokens", {"profile.output_tokens_max": 2**64 - 1}, SERVED),
    CallCase("no session", {"profile.session_key": ""}, MALFORMED),
    CallCase("a session of 10,000 letters", {"profile.session_key": "a" * 10_000}, MALFORMED),
    CallCase("a model that nobody has", {"profile.model": "none", **_body('{"model": "none", "messages": [], "stream": true}')}, REFUSED),
    CallCase("a model with a line break", {"profile.model": "a\nb"}, MALFORMED),
    # Paths and methods
    CallCase("a path of the engine's own", {"path": "/metrics"}, MALFORMED),
    CallCase("a path that leads back", {"path": "/v1/responses/../../sleep", "method": "GET"}, MALFORMED),
    CallCase("a path with a line break", {"path": "/v1/chat/completions\r\nx-evil: 1"}, MALFORMED),
    CallCase("a path with a query", {"path": "/v1/chat/completions?x=1"}, MALFORMED),
    CallCase("a whole address", {"path": "http://169.254.169.254/v1/chat/completions"}, MALFORMED),
    CallCase("another method", {"method": "PUT"}, MALFORMED),
    CallCase("a method with a line break", {"method": "POST / HTTP/1.1\r\nx-evil: 1\r\n\r\n"}, MALFORMED),
    CallCase("another's stored response", _about("resp_1"), MALFORMED),
    CallCase("another's stored response, to delete", _about("resp_1", "DELETE"), MALFORMED),
    CallCase("a stored response by no name", _about("resp%2F1"), MALFORMED),
    # Headers
    CallCase("65 headers", {"headers": [pb.Header(name=f"x-{number}", value="y") for number in range(65)]}, MALFORMED),
    CallCase("a header that is no name", _header("x y", "z"), MALFORMED),
    CallCase("a header without a name", _header("", "z"), MALFORMED),
    CallCase("a header with a line break", _header("user-agent", "a\r\nx-evil: 1"), MALFORMED),
    CallCase("a header with a zero", _header("user-agent", "a\0b"), MALFORMED),
    CallCase("a header of 10,000 letters", _header("user-agent", "a" * 10_000), MALFORMED),
    CallCase("a length", _header("content-length", "5"), MALFORMED),
    CallCase("a coding", _header("transfer-encoding", "chunked"), MALFORMED),
    CallCase("a host", _header("Host", "169.254.169.254"), MALFORMED),
    CallCase("a key", _header("Authorization", "Bearer x"), MALFORMED),
    CallCase("another key", _header("x-api-key", "x"), MALFORMED),
    CallCase("a rank", _header("x-data-parallel-rank", "1"), MALFORMED),
    CallCase("a priority", _header("x-vllm-priority", "-9"), MALFORMED),
)
# fmt: on
"""Forwards of a peer in eu-west-1 to a gateway in us-east-1."""


# The peer as the called gateway


@dataclass(frozen=True, slots=True)
class AnswerCase:
    name: str
    messages: tuple[pb.AnswerFrame | bytes, ...]
    status: int
    """Status that the client gets; 0 where it waits, for another peer or for more, until it leaves."""
    counts: bool
    aborts: grpc.StatusCode | None = None
    """Status with which the stream ends, if it fails."""
    holds: bool = False
    """True if the forward does not end."""
    contains: bytes = b""
    lacks: bytes = b""


def head(status: int = 200, *headers: tuple[str, str], ran_at: str | None = "eu-a;eu-west-1;EU") -> pb.AnswerFrame:
    own = [] if ran_at is None else [("x-nightside-ran-at", ran_at)]
    kind = [] if any(name == "content-type" for name, _ in headers) else [("content-type", "text/event-stream")]
    pairs = [pb.Header(name=name, value=value) for name, value in (*own, *kind, *headers)]
    return pb.AnswerFrame(head=pb.Head(status=status, headers=pairs))


def data(*pieces: bytes) -> pb.AnswerFrame:
    return pb.AnswerFrame(data=b"".join(pieces))


def ended(outcome: str = "completed", **more: Any) -> pb.AnswerFrame:
    return pb.AnswerFrame(ended=pb.Ended(outcome=outcome, **more))


def refused(reason: str, detail: str = "") -> pb.AnswerFrame:
    return pb.AnswerFrame(refused=pb.Refused(reason=reason, detail=detail))


ACCEPTED = pb.AnswerFrame(accepted=pb.Accepted())
_STREAM = data(*GOOD_STREAM)
_BEGUN = (ACCEPTED, head(), data(ROLE, token("x")))
_NEWER = b"\xfa\x3e\x04evil"
"""Serialised field that this version does not know: a frame's, or a message's."""
_JSON = ("content-type", "application/json")
_BROKE_OFF = b"engine_failed_midstream"
GOOD_ANSWER = (ACCEPTED, head(), _STREAM, ended())

# fmt: off
ANSWER_CASES = (
    AnswerCase("nothing wrong", GOOD_ANSWER, 200, False, contains=b"[DONE]"),
    # First messages
    AnswerCase("not a word", (), 502, True),
    AnswerCase("an empty message", (b"",), 502, True),
    AnswerCase("bytes that are no message", (b"\xff" * 100,), 502, True),
    AnswerCase("a head", (head(), _STREAM, ended()), 502, True),
    AnswerCase("a piece of the body", (_STREAM, ended()), 502, True),
    AnswerCase("the end", (ended(),), 502, True),
    AnswerCase("a kind of a later version", (_NEWER, *GOOD_ANSWER), 200, False),
    AnswerCase("nothing but kinds of a later version", (_NEWER,) * 100, 0, False),
    AnswerCase("silence", (), 0, False, holds=True),
    AnswerCase("not now", (refused("busy"),), 0, False),
    AnswerCase("a refusal of a later version", (refused("tired"),), 0, False),
    AnswerCase("a refusal without a reason", (refused(""),), 502, True),
    AnswerCase("a refusal whose reason is no word", (refused("a\nb"),), 502, True),
    AnswerCase("a refusal of 10,000 letters", (refused("busy", "a" * 10_000),), 502, True),
    AnswerCase("a refusal, then an answer", (refused("busy"), *GOOD_ANSWER), 0, False, lacks=b"Hello"),
    AnswerCase("it does not know us", (), 502, True, aborts=Status.PERMISSION_DENIED),
    AnswerCase("it fails", (), 502, True, aborts=Status.INTERNAL),
    AnswerCase("it has no such call", (), 502, True, aborts=Status.UNIMPLEMENTED),
    AnswerCase("it finds us malformed", (), 0, False, aborts=Status.INVALID_ARGUMENT),
    AnswerCase("it takes no more", (), 0, False, aborts=Status.RESOURCE_EXHAUSTED),
    # Accepted forwards
    AnswerCase("accepted, and gone", (ACCEPTED,), 502, True),
    AnswerCase("accepted, and failed", (ACCEPTED,), 502, True, aborts=Status.UNAVAILABLE),
    AnswerCase("accepted twice", (ACCEPTED, *GOOD_ANSWER), 502, True),
    AnswerCase("accepted, then refused", (ACCEPTED, refused("busy")), 502, True),
    AnswerCase("accepted, then silence", (ACCEPTED,), 0, False, holds=True),
    AnswerCase("accepted, then over", (ACCEPTED, ended()), 502, True),
    AnswerCase("accepted, then a change of mind", (ACCEPTED, ended("rejected_draining")), 0, False),
    AnswerCase("accepted, then an outcome of a later version", (ACCEPTED, ended("vanished")), 0, False),
    AnswerCase("accepted, then no outcome", (ACCEPTED, ended("")), 502, True),
    AnswerCase("accepted, then failed there", (ACCEPTED, ended("failed_before_first_byte")), 502, True),
    AnswerCase("accepted, then abandoned by nobody", (ACCEPTED, ended("abandoned")), 502, True),
    AnswerCase("accepted, then a body", (ACCEPTED, _STREAM, ended()), 502, True),
    # Heads
    AnswerCase("two heads", (ACCEPTED, head(), head(), _STREAM, ended()), 502, True),
    AnswerCase("a status of 0", (ACCEPTED, head(0), _STREAM, ended()), 502, True),
    AnswerCase("an interim status", (ACCEPTED, head(100), *GOOD_ANSWER[1:]), 502, True),
    AnswerCase("another protocol from now on", (ACCEPTED, head(101), _STREAM, ended()), 502, True),
    AnswerCase("a status of 600", (ACCEPTED, head(600), _STREAM, ended()), 502, True),
    AnswerCase("a status of 2**32 - 1", (ACCEPTED, head(2**32 - 1), _STREAM, ended()), 502, True),
    AnswerCase("nothing to say, and says it", (ACCEPTED, head(204, _JSON), data(b'{"choices": [], "evil": 1}'), ended()), 502, True, lacks=b"evil"),
    AnswerCase("nothing to say, and streams it", (ACCEPTED, head(204), _STREAM, ended()), 502, True, lacks=b"Hello"),
    AnswerCase("reset content, and content", (ACCEPTED, head(205, _JSON), data(b'{"choices": []}'), ended()), 502, True),
    AnswerCase("not modified", (ACCEPTED, head(304), ended()), 502, True),
    AnswerCase("a redirection", (ACCEPTED, head(307, ("location", "http://169.254.169.254/")), ended()), 502, True, lacks=b"169.254"),
    AnswerCase("no place", (ACCEPTED, head(ran_at=None), _STREAM, ended()), 502, True),
    AnswerCase("two places", (ACCEPTED, head(200, ("x-nightside-ran-at", "a;eu-west-1;EU")), _STREAM, ended()), 502, True),
    AnswerCase("a place that is none", (ACCEPTED, head(ran_at="eu-a"), _STREAM, ended()), 502, True),
    AnswerCase("a place with a line break", (ACCEPTED, head(ran_at="eu-a;eu-west-1\r\nx-evil: 1;EU"), _STREAM, ended()), 502, True),
    AnswerCase("65 headers", (ACCEPTED, head(200, *((f"x-{number}", "y") for number in range(65))), _STREAM, ended()), 502, True),
    AnswerCase("a header that is no name", (ACCEPTED, head(200, ("x y", "z")), _STREAM, ended()), 502, True),
    AnswerCase("a header with a line break", (ACCEPTED, head(200, ("x-note", "a\r\nset-cookie: evil=1")), _STREAM, ended()), 502, True, lacks=b"evil"),
    AnswerCase("a cookie", (ACCEPTED, head(200, ("set-cookie", "evil=1")), _STREAM, ended()), 502, True, lacks=b"evil"),
    AnswerCase("a length", (ACCEPTED, head(200, ("content-length", "5")), _STREAM, ended()), 502, True),
    AnswerCase("a coding", (ACCEPTED, head(200, ("transfer-encoding", "gzip")), _STREAM, ended()), 502, True),
    AnswerCase("names of ours", (ACCEPTED, head(200, ("x-nightside-region", "evil-1"), ("x-request-id", "evil")), _STREAM, ended()), 200, False, lacks=b"evil"),
    # Bodies
    AnswerCase("no body", (ACCEPTED, head(), ended()), 502, True),
    AnswerCase("a body of nothing", (ACCEPTED, head(), data(), data(), ended()), 502, True),
    AnswerCase("a whole answer that is no JSON", (ACCEPTED, head(200, _JSON), data(b"<html>"), ended()), 502, True),
    AnswerCase("a whole answer that is not UTF-8", (ACCEPTED, head(200, _JSON), data(b'{"choices": ["\xff"]}'), ended()), 502, True),
    AnswerCase("a stream that is not UTF-8", (ACCEPTED, head(), data(token("x").replace(b'"x"', b'"\xff"'), DONE), ended()), 502, True),
    AnswerCase("a piece of 40 MiB", (ACCEPTED, head(), data(b" " * (40 << 20))), 502, True),
    AnswerCase("it stops", _BEGUN, 200, True, contains=_BROKE_OFF),
    AnswerCase("it fails midway", _BEGUN, 200, True, aborts=Status.INTERNAL, contains=_BROKE_OFF),
    AnswerCase("it accepts midway", (*_BEGUN, ACCEPTED), 200, True, contains=_BROKE_OFF),
    AnswerCase("it refuses midway", (*_BEGUN, refused("busy")), 200, True, contains=_BROKE_OFF),
    AnswerCase("a head midway", (*_BEGUN, head(500)), 200, True, contains=_BROKE_OFF),
    AnswerCase("garbage midway", (*_BEGUN, b"\xff" * 100), 200, True, contains=_BROKE_OFF),
    AnswerCase("a kind of a later version midway", (*_BEGUN, _NEWER, data(STOP, DONE), ended()), 200, False, contains=b"[DONE]"),
    AnswerCase("silence midway", _BEGUN, 0, False, holds=True),
    AnswerCase("an error in its stream", (*_BEGUN, data(b'data: {"error": {"code": 500}}\n\n'), ended()), 200, True, contains=_BROKE_OFF),
    # Ends
    AnswerCase("completed, but for its end", (*_BEGUN, ended()), 200, True, contains=_BROKE_OFF),
    AnswerCase("completed twice", (*GOOD_ANSWER, ended()), 200, False),
    AnswerCase("more after the end", (*GOOD_ANSWER, data(b"data: evil\n\n")), 200, False, lacks=b"evil"),
    AnswerCase("a second answer", (*GOOD_ANSWER, head(), data(b"evil")), 200, False, lacks=b"evil"),
    AnswerCase("complete, and never ended", GOOD_ANSWER[:-1], 200, False, holds=True, contains=b"[DONE]"),
    AnswerCase("a call that fails after its end", GOOD_ANSWER, 200, False, aborts=Status.INTERNAL),
    AnswerCase("failed midway", (*_BEGUN, ended("failed_midstream")), 200, True, contains=_BROKE_OFF),
    AnswerCase("a change of mind midway", (*_BEGUN, ended("rejected_queue_full")), 200, False, contains=_BROKE_OFF),
    AnswerCase("an outcome of a later version midway", (*_BEGUN, ended("vanished")), 200, False, contains=_BROKE_OFF),
    AnswerCase("an outcome that is no word", (*_BEGUN, ended("a b")), 200, True, contains=_BROKE_OFF),
    AnswerCase("2**64 - 1 tokens", (*GOOD_ANSWER[:-1], ended(prompt_tokens=2**64 - 1, output_tokens=2**64 - 1)), 200, False),
)
# fmt: on
"""Answers of a peer in eu-west-1 to a forward of a gateway in us-east-1 that has no engine."""
_FAR = {"region": "ap-east-1", "jurisdiction": "AP"}
# fmt: off
ELSEWHERE_CASES = (
    AnswerCase("it runs elsewhere", (ACCEPTED, head(ran_at="ap-a;ap-east-1;AP"), _STREAM, ended()), 502, True, lacks=b"Hello"),
    AnswerCase("it runs under another law", (ACCEPTED, head(ran_at="eu-a;ap-east-1;EU"), _STREAM, ended()), 502, True, lacks=b"Hello"),
    AnswerCase("it ran elsewhere", (ACCEPTED, head(), data(ROLE, token("x")), ended(replica_id="r", place=pb.Place(**_FAR))), 200, True, contains=_BROKE_OFF),
    AnswerCase("it failed elsewhere", (ACCEPTED, ended("failed_before_first_byte", replica_id="r", place=pb.Place(**_FAR))), 502, True),
)
# fmt: on
"""Answers that say that the request ran where its residency rule forbids. The peer must get no further requests."""


# The peer as the called gateway, frame by frame


@dataclass(frozen=True, slots=True)
class FrameCase:
    name: str
    messages: tuple[pb.ExchangeResponse | bytes, ...]
    """Messages in order. Forward 0 in a frame stands for the answered one; other numbers are offsets above it."""
    status: int
    """Status that the client gets; 0 where it waits until it leaves."""
    breaks: bool = False
    """True if the peer loses its stream."""
    contains: bytes = b""
    lacks: bytes = b""
    times: int = 1
    """Number of times that the first message is sent."""


def frames(*each: pb.AnswerFrame, **more: Any) -> pb.ExchangeResponse:
    return pb.ExchangeResponse(frames=each, **more)


def frame(*said: pb.AnswerFrame, forward: int = 0, **more: Any) -> pb.AnswerFrame:
    """One frame with all words of these."""
    made = pb.AnswerFrame(forward=forward, **more)
    for each in said:
        data = made.data + each.data
        made.MergeFrom(each)
        made.data = data
    return made


def _later(message: pb.ExchangeResponse) -> pb.ExchangeResponse:
    message.MergeFromString(_NEWER)
    return message


_ACCEPTED, _HEAD, _ENDED = frame(ACCEPTED), frame(head()), frame(ended())
_WHOLE = frame(*GOOD_ANSWER)
_OTHERS = 1000
"""Offset far above any forward of the test."""
_EVIL = data(b"data: evil\n\n")

# fmt: off
FRAME_CASES = (
    FrameCase("nothing wrong, in one frame", (frames(_WHOLE),), 200, contains=b"[DONE]"),
    FrameCase("nothing wrong, in one message", (frames(*(frame(each) for each in GOOD_ANSWER)),), 200, contains=b"[DONE]"),
    FrameCase("nothing wrong, and a last word", (frames(_WHOLE, frame(last=True)),), 200, contains=b"[DONE]"),
    # Forwards that are not the answered one
    FrameCase("another's answer first", (frames(frame(*GOOD_ANSWER[:2], _EVIL, forward=_OTHERS)), frames(_WHOLE)), 200, contains=b"[DONE]", lacks=b"evil"),
    FrameCase("another's head in the middle", (frames(_ACCEPTED, frame(head(500), forward=_OTHERS)), frames(_HEAD, frame(_STREAM), _ENDED)), 200, contains=b"[DONE]"),
    FrameCase("another's end in the middle", (frames(_ACCEPTED, _HEAD, frame(ended("failed_midstream"), forward=_OTHERS)), frames(frame(_STREAM), _ENDED)), 200, contains=b"[DONE]"),
    FrameCase("a forward that never can be", (frames(frame(_EVIL, forward=2**63)), frames(_WHOLE)), 200, contains=b"[DONE]", lacks=b"evil"),
    FrameCase("1,100 forwards that never were, one by one", (frames(frame(ACCEPTED, forward=_OTHERS)), frames(_WHOLE)), 502, breaks=True, times=1100),
    FrameCase("1,100 forwards that never were, at once", (frames(*[frame(ACCEPTED, forward=_OTHERS)] * 1100), frames(_WHOLE)), 502, breaks=True),
    # Order of frames
    FrameCase("two heads in two frames", (frames(_ACCEPTED, _HEAD, _HEAD, frame(_STREAM), _ENDED),), 502),
    FrameCase("accepted and refused in one frame", (frames(frame(ACCEPTED, refused("busy")), frame(*GOOD_ANSWER[1:])),), 502),
    FrameCase("two ends", (frames(_WHOLE, _ENDED),), 200, contains=b"[DONE]"),
    FrameCase("2,000 ends", (frames(_WHOLE, *[_ENDED] * 2000),), 200, breaks=True),
    FrameCase("tokens after the end", (frames(_WHOLE, frame(_EVIL)),), 200, contains=b"[DONE]", lacks=b"evil"),
    FrameCase("tokens after the last word", (frames(frame(*GOOD_ANSWER[:2], last=True), frame(_EVIL), _ENDED),), 502, lacks=b"evil"),
    FrameCase("a last word first of all", (frames(frame(last=True), _WHOLE),), 502, lacks=b"Hello"),
    FrameCase("a last word in the middle", (frames(_ACCEPTED, _HEAD, frame(data(ROLE, token("x"))), frame(last=True)),), 200, contains=_BROKE_OFF),
    FrameCase("an end before its beginning", (frames(_ENDED, _WHOLE),), 502, lacks=b"Hello"),
    FrameCase("tokens before their head", (frames(_ACCEPTED, frame(_STREAM), _HEAD, _ENDED),), 502),
    # Sizes and credit
    FrameCase("credit beyond all numbers", (frames(frame(credit=2**64 - 1)), frames(_WHOLE)), 502, breaks=True),
    FrameCase("credit below nothing", (frames(frame(credit=2**63)), frames(_WHOLE)), 502, breaks=True),
    FrameCase("credit byte by byte", (frames(*[frame(credit=1)] * 1100), frames(_WHOLE)), 502, breaks=True),
    FrameCase("more than it has credit for", (frames(_ACCEPTED, _HEAD), *[frames(frame(data(b":" * (1 << 19))))] * 10), 502, breaks=True),
    FrameCase("a message of 2 MiB", (frames(_ACCEPTED, frame(data(b":" * (2 << 20)))),), 502, breaks=True),
    FrameCase("a frame of nothing", (frames(frame(), _WHOLE),), 502),
    FrameCase("1,100 frames of nothing", (frames(*[frame()] * 1100),), 502, breaks=True),
    FrameCase("1,100 messages of nothing", (frames(), frames(_WHOLE)), 502, breaks=True, times=1100),
    FrameCase("bytes that are no message", (b"\xff" * 50,), 502, breaks=True),
    FrameCase("half a message", (frames(_WHOLE).SerializeToString()[:-7],), 502, breaks=True),
    FrameCase("a field of a later version", (_later(frames(_WHOLE)),), 200, contains=b"[DONE]"),
    FrameCase("40,000 heads", (frames(_ACCEPTED, *[frame(pb.AnswerFrame(head=pb.Head()))] * 40_000),), 502, breaks=True),
    FrameCase("40,000 pieces of a byte", (frames(_ACCEPTED, _HEAD, *[frame(data(b":"))] * 40_000),), 502, breaks=True),
    # Streams
    FrameCase("it closes, and answers", (frames(_WHOLE, closing=True),), 200, contains=b"[DONE]"),
    FrameCase("it closes again and again", (frames(closing=True), frames(_WHOLE)), 200, contains=b"[DONE]", times=100),
    # Refusals and their details
    FrameCase("a refusal with a wait of years", (frames(frame(refused("busy", "retry after 99999999999 s"))),), 0, lacks=b"99999999999"),
    FrameCase("it refuses by its policy", (frames(frame(refused("residency_not_accepted"))),), 0),
    FrameCase("it refuses by our stamp", (frames(frame(refused("residency_stamp"))),), 0),
    FrameCase("it has no such model", (frames(frame(refused("unknown_model"))),), 0),
    FrameCase("it has no such answer", (frames(frame(refused("unknown_response"))),), 0),
    FrameCase("it calls it too long", (frames(frame(refused("too_long"))),), 0),
    FrameCase("it calls it too late", (frames(frame(refused("deadline"))),), 0),
    FrameCase("it has had it already", (frames(frame(refused("duplicate"))),), 0),
    FrameCase("it is locked down", (frames(frame(refused("lockdown"))),), 0),
    FrameCase("a tenant's limit at the end", (frames(_ACCEPTED, frame(ended("rejected_tenant_limit", detail="retry-after: 99999999999"))),), 0, lacks=b"99999999999"),
    FrameCase("a client's fault at the end", (frames(_ACCEPTED, frame(ended("client_error"))),), 502),
    FrameCase("an error with a wait of years", (frames(_ACCEPTED, frame(head(429, _JSON, ("retry-after", "99999999999"))), frame(data(b'{"error": {"message": "evil"}}')), _ENDED),), 0),
)
# fmt: on
"""Answers to a forward of a gateway in us-east-1 that has no engine."""


# The peer as a source of heartbeats


@dataclass(frozen=True, slots=True)
class BeatCase:
    name: str
    changes: dict[str, Any] | bytes
    """Changes by field, with dots for nested ones; bytes stand for the whole message."""
    believed: bool
    """True if the peer counts as a possible target."""


def beat(number: int, changes: dict[str, Any]) -> pb.SubscribeResponse:
    """A valid heartbeat with these changes."""
    message = pb.SubscribeResponse(
        gateway_id="eu-1",
        place=pb.Place(**_EU),
        sequence=number,
        accepting=True,
        assignment_version=1,
        policy_digest="d",
        capacities=[capacity()],
    )
    for path, value in changes.items():
        _set(message, path, value)
    return message


def capacity(**changes: Any) -> pb.ModelCapacity:
    told = {"model": "llama", "pool": "default", "place": pb.Place(**_EU), "replicas": 1, "available": 1, "room": 1}
    return pb.ModelCapacity(**{**told, **changes})


def _capacities(**changes: Any) -> dict[str, Any]:
    return {"capacities": [capacity(**changes)]}


def _queues(*queues: pb.ModelQueue) -> dict[str, Any]:
    return {"queues": list(queues)}


# fmt: off
BEAT_CASES = (
    BeatCase("nothing wrong", {}, True),
    BeatCase("an empty message", b"", False),
    BeatCase("bytes that are no message", b"\xff" * 100, False),
    BeatCase("a text that is not UTF-8", b"\x0a\x02\xff\xfe", False),
    BeatCase("33 MiB", {"policy_digest": "a" * (33 << 20)}, False),
    BeatCase("another's name", {"gateway_id": "eu-2"}, False),
    BeatCase("our name", {"gateway_id": "us-1"}, False),
    BeatCase("no name", {"gateway_id": ""}, False),
    BeatCase("another region", {"place.region": "us-east-1"}, False),
    BeatCase("another law", {"place.jurisdiction": "US"}, False),
    BeatCase("no place", {"place.region": "", "place.jurisdiction": ""}, False),
    BeatCase("not accepting", {"accepting": False}, False),
    BeatCase("an age of two hours", {"age_us": 2 * 3600 * 10**6}, False),
    BeatCase("an age of 2**64 - 1", {"age_us": 2**64 - 1}, False),
    BeatCase("an age of half an hour", {"age_us": 1800 * 10**6}, False),
    BeatCase("a sequence of 0", {"sequence": 0}, True),
    BeatCase("a sequence of 2**64 - 1", {"sequence": 2**64 - 1}, True),
    BeatCase("a version of 2**64 - 1", {"assignment_version": 2**64 - 1}, True),
    BeatCase("a digest of 300 letters", {"policy_digest": "a" * 300}, False),
    BeatCase("more available than there are", _capacities(replicas=1, available=2), False),
    BeatCase("2**32 - 1 available", _capacities(replicas=2**32 - 1, available=2**32 - 1), True),
    BeatCase("a model of 10,000 letters", _capacities(model="a" * 10_000), False),
    BeatCase("a model with a line break", _capacities(model="a\nb"), False),
    BeatCase("a model without a name", _capacities(model=""), False),
    BeatCase("a pool that is no name", _capacities(pool="a b"), False),
    BeatCase("a capacity nowhere", _capacities(place=pb.Place()), False),
    BeatCase("5,000 capacities", {"capacities": [capacity(model=f"m-{number}") for number in range(5000)]}, False),
    BeatCase("4,000 capacities", {"capacities": [capacity(model=f"m-{number}") for number in range(4000)]}, True),
    BeatCase("the same capacity 1,000 times", {"capacities": [capacity()] * 1000}, True),
    BeatCase("a queue of 2**32 - 1", _queues(pb.ModelQueue(model="llama", length=2**32 - 1)), True),
    BeatCase("a queue without a model", _queues(pb.ModelQueue(length=1)), False),
    # Room and releases
    BeatCase("room for 2**31", _capacities(room=2**31), False),
    BeatCase("room for 2**63 - 1", _capacities(room=2**63 - 1), False),
    BeatCase("room for less than -2**62", _capacities(room=-(2**63)), False),
    BeatCase("room for 10**9", _capacities(room=10**9), True),
    BeatCase("room for -10**9", _capacities(room=-(10**9)), True),
    BeatCase("room, and nobody available", _capacities(available=0, room=10**9), True),
    BeatCase("more replicas with room to spare than there are", _capacities(replicas=2, spare=3), False),
    BeatCase("a release each microsecond", _capacities(room=-5, release_us=1), True),
    BeatCase("a release of 2**64 - 1", _capacities(release_us=2**64 - 1), False),
    BeatCase("a load of 2**64 - 1", _capacities(load=2**64 - 1), False),
    BeatCase("a backlog of 2**64 - 1", _capacities(backlog_bytes=2**64 - 1), False),
    BeatCase("free tokens of 2**64 - 1", _capacities(free_tokens=2**64 - 1), False),
    BeatCase("a context of 2**64 - 1", _capacities(context_tokens_max=2**64 - 1), False),
    BeatCase("a threshold of 2**64 - 1", _capacities(threshold_tokens=2**64 - 1), False),
    BeatCase("a connector that nobody knows", _capacities(connector="teleport"), True),
    BeatCase("a connector with a line break", _capacities(connector="a\nb"), True),
    # Claims about other regions, tenants and budgets
    BeatCase("a capacity in our region", _capacities(place=pb.Place(region="us-east-1", jurisdiction="US")), True),
    BeatCase("a capacity in a third region", _capacities(place=pb.Place(region="ap-east-1", jurisdiction="AP")), True),
    BeatCase("a capacity in its region under another law", _capacities(place=pb.Place(region="eu-west-1", jurisdiction="US")), True),
    BeatCase("a region with a line break that it takes", {"accepts": ["us-east-1\nx"]}, True),
    BeatCase("5,000 regions that it takes", {"accepts": [f"r-{number}" for number in range(5000)]}, True),
    BeatCase("a way of 2**64 - 1", {"ways": [pb.Way(region="us-east-1", rtt_us=2**64 - 1)]}, True),
    BeatCase("5,000 ways", {"ways": [pb.Way(region=f"r-{number}") for number in range(5000)]}, True),
    BeatCase("a tenant that uses 2**64 - 1", {"tenant_uses": [pb.TenantUse(tenant="acme", running=2**64 - 1, demand=2**64 - 1, tokens_per_minute=2**64 - 1)]}, False),
    BeatCase("a tenant of 10,000 letters", {"tenant_uses": [pb.TenantUse(tenant="a" * 10_000)]}, False),
    BeatCase("100,000 tenants", {"tenant_uses": [pb.TenantUse(tenant=f"t-{number}") for number in range(100_000)]}, False),
    BeatCase("a budget of no kind", {"budget_uses": [pb.BudgetUse(kind="planet", name="a", day="2026-11-22")]}, True),
    BeatCase("a budget of the year 9999", {"budget_uses": [pb.BudgetUse(kind="key", name="a", day="9999-12-31", tokens_in_day=5)]}, True),
    BeatCase("a budget of no such day", {"budget_uses": [pb.BudgetUse(kind="key", name="a", day="2026-13-45")]}, True),
    BeatCase("a budget used up by 2**64 - 1", {"budget_uses": [pb.BudgetUse(kind="key", name="a", day="2026-11-22", tokens_in_day=2**64 - 1)]}, False),
    BeatCase("a pool that wants 2**32 - 1", {"pool_loads": [pb.PoolLoad(model="llama", pool="default", wanted=2**32 - 1, offered=2**64 - 1, price=2**64 - 1)]}, True),
    BeatCase("a term of 2**64 - 1", {"control_term": 2**64 - 1, "control_version": 2**64 - 1}, True),
    BeatCase("5,000 queues", _queues(*(pb.ModelQueue(model=f"m-{number}") for number in range(5000))), False),
)
# fmt: on
"""Heartbeats of a peer in eu-west-1 to a gateway in us-east-1 with an engine of its own. That gateway has no budgets,
plans no replicas and follows no controller, so it does not read the fields about those."""
