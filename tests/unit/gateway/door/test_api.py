"""The clients' API behind its server, on transports without sockets: what is answered without any engine, and what a
request's sink sends."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.app.listening import server_limits
from gateway.config.sections import CorsConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import RequestArrived
from gateway.core.vocabulary import GatewayId, LegResult, ModelName, Outcome, ReplicaId, RequestId
from gateway.door import errors
from gateway.door.api import ClientApi
from gateway.door.call import raw_answer
from gateway.door.settings import HttpSettings
from gateway.http1.server import HttpFault, HttpServer
from gateway.records.refusals import Refusal
from gateway.request.legs import LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from gateway.request.proxied import RequestContext
from mesh.clock import Clock
from tests.support.core import US
from tests.support.gateways import until
from tests.support.lines import Line

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama","messages":[],"stream":true}'
SETTINGS = HttpSettings(GatewayId("us-1"), US)
RAN_AT = RanAt(ReplicaId("a"), US)


class Began:
    """Stands in for a request: it keeps its sink, for the test to answer."""

    def __init__(
        self, context: RequestContext, arrival: RequestArrived, outbound: OutboundRequest, sink: Any, **_: object
    ) -> None:
        del context
        self.outbound = outbound
        self.profile = arrival.profile
        self.sink = sink
        self.summary = RequestSummary()
        self.has_left = False
        self.writable = 0

    def begin(self) -> None:
        pass

    def client_left(self) -> None:
        self.has_left = True
        self.end(Outcome.ABANDONED)

    def on_writable(self) -> None:
        self.writable += 1

    def start(self, status: int = 200, *headers: tuple[str, str]) -> None:
        self.sink.start(LegHead(status, headers, RAN_AT, 1, 1))

    def end(self, outcome: Outcome = Outcome.COMPLETED, detail: str = "") -> None:
        self.sink.end(EndRequest(self.profile.request_id, outcome, detail, 1), self.summary)


class NoDriver:
    """Port without any request."""

    def __init__(self) -> None:
        self.open: set[RequestId] = set()

    def is_open(self, request_id: RequestId) -> bool:
        return request_id in self.open


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> object:
        return json.loads(self.body)["error"]["code"]


class Edge:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: HttpSettings, **options: Any) -> None:
        self.requests: list[Began] = []
        self.refused: list[Refusal] = []
        self.faults: list[BaseException] = []
        self.turns = 0
        self.port = NoDriver()
        monkeypatch.setattr("gateway.door.api.ProxiedRequest", self.make)
        given: dict[str, Any] = {"models": lambda _tenant, _rule: [ModelName("llama")], "readiness": str, **options}
        self.api = ClientApi(
            RequestContext(cast(Any, self.port), {}),
            settings,
            given.pop("models"),
            given.pop("readiness"),
            clock=Clock(),
            turn_over=self.turn,
            on_refused=self.refused.append,
            on_fault=self.faults.append,
            **given,
        )
        self.server = HttpServer(self.api, server_limits(settings), on_turn=self.turn)

    def make(self, *arguments: Any, **options: Any) -> Began:
        self.requests.append(Began(*arguments, **options))
        return self.requests[-1]

    def turn(self) -> None:
        self.turns += 1

    def connect(self) -> Line:
        line = Line()
        line.connect(self.server())
        return line

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answered:
        """Answer to a request that is answered at once."""
        line = self.connect()
        line.say(asked(method, target, body, **headers))
        line.lose()
        return read(bytes(line.sent))

    def post(self, body: bytes = BODY, path: str = CHAT, **headers: str) -> tuple[Line, Began]:
        """Post a request; it has begun."""
        line = self.connect()
        known = len(self.requests)
        line.say(asked("POST", path, body, **headers))
        assert len(self.requests) == known + 1, bytes(line.sent)
        return line, self.requests[-1]


def asked(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    length = f"content-length: {len(body)}\r\n" if body or method == "POST" else ""
    return f"{method} {target} HTTP/1.1\r\nhost: x\r\n{lines}{length}\r\n".encode() + body


def read(sent: bytes) -> Answered:
    head, _, body = sent.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines), "no header stands twice"
    if headers.get("transfer-encoding") == "chunked":
        body = dechunked(body)
    return Answered(int(first.split()[1]), headers, body)


def dechunked(data: bytes) -> bytes:
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return whole


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, settings: HttpSettings = SETTINGS, **options: Any
) -> AsyncIterator[Edge]:
    made = Edge(monkeypatch, settings, **options)
    try:
        yield made
    finally:
        made.server.close(at_once=True)
        made.api.close()
    assert (made.api._room.requests, made.api._room.bytes) == (0, 0), "every call gives back what it held"
    assert not made.faults


@pytest.fixture
async def edge(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    async with serving(monkeypatch) as made:
        yield made


class TestPages:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/health", {"status": "ok"}),
            ("/ready", {"status": "ready"}),
            ("/", {"name": "nightside", "gateway": "us-1", "api": "/openapi.yaml"}),
        ],
    )
    @pytest.mark.parametrize("before", ["", "http://elsewhere:80"])
    async def test_open_pages(self, edge: Edge, path: str, expected: object, before: str) -> None:
        answer = edge.ask("GET", before + path + "?a=b")
        assert (answer.status, json.loads(answer.body)) == (200, expected)
        head = edge.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == answer.headers["content-length"]

    async def test_one_that_is_not_ready_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch, readiness=lambda: "draining") as edge:
            answer = edge.ask("GET", "/ready")
            assert (answer.status, json.loads(answer.body)["reason"]) == (503, "draining")
            assert edge.ask("GET", "/health").status == 200, "it still lives"

    async def test_models_are_listed_and_described(self, edge: Edge) -> None:
        assert [each["id"] for each in json.loads(edge.ask("GET", "/v1/models").body)["data"]] == ["llama"]
        assert json.loads(edge.ask("GET", "/v1/models/llama").body)["id"] == "llama"
        assert json.loads(edge.ask("GET", "/v1/models/ll%61ma").body)["id"] == "llama"
        assert edge.ask("GET", "/v1/models/nope").code == "model_not_found"

    async def test_the_description(self, edge: Edge) -> None:
        answer = edge.ask("GET", "/openapi.yaml")
        assert answer.headers["content-type"].startswith("application/yaml")
        assert answer.body.startswith(b"openapi:")

    @pytest.mark.parametrize(
        ("method", "path", "status", "allow"),
        [
            ("GET", "/nowhere", 404, None),
            ("GET", "/v1/models/", 404, None),
            ("GET", "/v1/responses/", 404, None),
            ("GET", "/v1/responses/a/b", 404, None),
            ("POST", "/v1/responses/a/b/cancel", 404, None),
            ("GET", CHAT, 405, "POST"),
            ("PUT", "/health", 405, "GET,HEAD"),
            ("POST", "/v1/models", 405, "GET,HEAD"),
            ("PATCH", "/v1/responses/a", 405, "DELETE,GET"),
            ("GET", "/v1/responses/a/cancel", 405, "POST"),
        ],
    )
    async def test_what_is_not_there(self, edge: Edge, method: str, path: str, status: int, allow: str | None) -> None:
        answer = edge.ask(method, path, x_request_id="r1")
        assert (answer.status, answer.headers.get("allow")) == (status, allow)
        assert answer.headers["x-request-id"] == "r1"
        assert [each.status for each in edge.refused] == [status]

    @pytest.mark.parametrize(("path", "allow"), [(CHAT, "OPTIONS, POST"), ("/health", "GET, HEAD, OPTIONS")])
    async def test_options(self, edge: Edge, path: str, allow: str) -> None:
        answer = edge.ask("OPTIONS", path)
        assert (answer.status, answer.body, answer.headers["allow"]) == (204, b"", allow)
        assert "content-length" not in answer.headers
        assert edge.ask("OPTIONS", "/nowhere").status == 404

    async def test_pages_of_listed_origins_may_read_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = replace(SETTINGS, cors=CorsConfig(origins=("https://a.example",)))
        async with serving(monkeypatch, settings) as edge:
            told = edge.ask("GET", "/v1/models", origin="https://a.example").headers
            assert told["access-control-allow-origin"] == "https://a.example"
            assert "access-control-allow-origin" not in edge.ask("GET", "/v1/models", origin="https://b").headers
            preflight = edge.ask("OPTIONS", CHAT, origin="https://a.example", access_control_request_method="POST")
            assert "POST" in preflight.headers["access-control-allow-methods"]

    async def test_every_answer_says_who_gives_it(self, edge: Edge) -> None:
        for method, path in (("GET", "/health"), ("GET", "/nowhere"), ("POST", CHAT), ("GET", "/v1/messages")):
            headers = edge.ask(method, path, x_request_id="r1").headers
            assert headers["server"] == "nightside"
            assert headers["date"].endswith(" GMT")
            assert headers["x-nightside-gateway"] == "us-1"
            assert headers["x-nightside-region"] == US.region
            assert headers.get("request-id") == ("r1" if "messages" in path else None)


class TestRefusals:
    @pytest.mark.parametrize("fault", HttpFault)
    async def test_each_fault_of_a_connection_is_a_whole_answer_and_counted(self, edge: Edge, fault: HttpFault) -> None:
        answer = read(edge.api.refuse(fault))
        code = {
            HttpFault.VERSION_NOT_SUPPORTED: "http_version_not_supported",
            HttpFault.HEADERS_INCOMPLETE: "headers_timeout",
        }.get(fault, fault)
        assert answer.code == code
        assert answer.headers["content-length"] == str(len(answer.body))
        assert answer.headers["connection"] == "close"
        assert [(each.reason, each.status, each.tenant) for each in edge.refused] == [(code, answer.status, None)]

    def test_one_that_may_be_tried_again_says_when(self) -> None:
        answer = read(raw_answer(errors.TOO_MANY_CONNECTIONS, SETTINGS))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["x-nightside-gateway"] == "us-1"

    @pytest.mark.parametrize(
        ("body", "code"), [(b"", "invalid_json"), (b"{", "invalid_json"), (b"{}", "invalid_field")]
    )
    async def test_bodies_that_are_none(self, edge: Edge, body: bytes, code: str) -> None:
        answer = edge.ask("POST", CHAT, body)
        assert (answer.status, answer.code) == (400, code)
        assert not edge.requests

    async def test_a_missing_key_and_a_wrong_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch, check_key=lambda _: None) as edge:
            for path in (CHAT, "/nowhere", "/v1/messages"):
                assert edge.ask("POST", path, BODY).status == 401
            assert edge.ask("POST", CHAT, BODY, authorization="Bearer no").code == "invalid_api_key"
            assert edge.ask("GET", "/health").status == 200
            assert edge.ask("OPTIONS", CHAT).status == 204
            assert {each.tenant for each in edge.refused} == {None}

    async def test_without_an_audit_record_nothing_comes_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch, has_audit=lambda: False) as edge:
            assert edge.ask("POST", CHAT, BODY).code == "audit_unavailable"
            assert edge.ask("GET", "/v1/responses/resp_1").code == "audit_unavailable"
            assert edge.ask("GET", "/v1/models").status == 200

    async def test_a_tenant_that_may_not_enter_is_the_core_s_to_refuse_and_its_body_is_not_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving(monkeypatch, may_enter=lambda _tenant, _rule: False) as edge:
            line, request = edge.post(b"not json")
            assert request.outbound.body == b""
            request.end(Outcome.REJECTED_RESIDENCY_INGRESS)
            assert read(bytes(line.sent)).code == "residency_ingress"

    @pytest.mark.parametrize("is_chunked", [False, True])
    @pytest.mark.parametrize("pieces", [1, 2])
    async def test_a_body_too_large(self, monkeypatch: pytest.MonkeyPatch, is_chunked: bool, pieces: int) -> None:
        async with serving(monkeypatch, replace(SETTINGS, body_bytes_max=1000)) as edge:
            line = edge.connect()
            body = BODY + b" " * 2000
            sent = asked("POST", CHAT, body)
            if is_chunked:
                sent = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
                sent += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            line.say(*([sent] if pieces == 1 else [sent[:500], sent[500:]]))
            await until(lambda: bool(line.sent))
            assert read(bytes(line.sent)).code == "body_too_large"
            assert not edge.requests
            line.lose()

    async def test_no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch, replace(SETTINGS, requests_max=1)) as edge:
            line, request = edge.post()
            assert edge.ask("POST", CHAT, BODY).code == "gateway_full"
            request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)
            edge.post()
            line.lose()
            edge.requests[-1].end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    async def test_one_that_waits_to_go_on_is_refused_and_left(self, edge: Edge) -> None:
        line = edge.connect()
        line.say(b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: a-miracle\r\ncontent-length: 3\r\n\r\n" % CHAT.encode())
        answer = read(bytes(line.sent))
        assert (answer.status, answer.headers["connection"]) == (417, "close")
        assert line.is_closed

    async def test_an_error_of_ours_ends_its_call_and_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch) as edge:
            line, running = edge.post()
            with monkeypatch.context() as patched:
                patched.setattr("gateway.door.api.read_request", lambda *_a, **_o: 1 / 0)
                assert edge.ask("POST", CHAT, BODY).code == "internal_error"
            assert [type(each) for each in edge.faults] == [ZeroDivisionError]
            edge.faults.clear()
            running.start()
            running.sink.write(b"x")
            running.end()
            assert read(bytes(line.sent)).body == b"x"

    @pytest.mark.parametrize("has_begun", [False, True])
    async def test_and_one_at_its_end(self, monkeypatch: pytest.MonkeyPatch, has_begun: bool) -> None:
        def fail(*_: object) -> None:
            raise KeyError("ours")

        monkeypatch.setattr("gateway.door.call.ClientCall._settle", fail)
        async with serving(monkeypatch) as edge:
            line, request = edge.post()
            if has_begun:
                request.start()
                request.sink.write(b"x")
            with pytest.raises(KeyError, match="ours"):
                request.end()
            if has_begun:
                assert line.is_cut
            else:
                assert read(bytes(line.sent)).code == "internal_error"


class TestUploads:
    async def test_a_large_or_packed_body_is_read_aside(self, edge: Edge) -> None:
        large = BODY[:-1] + b',"pad":"' + b"y" * 200_000 + b'"}'
        for sent in (
            [asked("POST", CHAT, large)],
            [asked("POST", CHAT, BODY)[:-5], BODY[-5:]],
            [asked("POST", CHAT, gzip.compress(BODY), content_encoding="gzip")],
        ):
            known = len(edge.requests)
            line = edge.connect()
            line.say(*sent)
            assert len(edge.requests) == known
            await until(lambda known=known: len(edge.requests) == known + 1)  # type: ignore[misc]
            await asyncio.sleep(0)
            assert edge.requests[-1].outbound.body in (BODY, large)
            edge.requests[-1].end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    async def test_its_end_is_a_turn(self, edge: Edge) -> None:
        line = edge.connect()
        line.say(asked("POST", CHAT, BODY)[:-5])
        before = edge.turns
        line.say(BODY[-5:])
        await until(lambda: bool(edge.requests))
        await until(lambda: edge.turns == before + 2)
        edge.requests[0].end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    async def test_a_client_that_leaves_meanwhile(self, edge: Edge) -> None:
        line = edge.connect()
        line.say(asked("POST", CHAT, BODY)[:-5])
        await until(lambda: edge.api._room.bytes > 0)
        line.lose()
        assert edge.api._room.bytes == 0
        await until(lambda: not edge.api._tasks)
        assert not edge.requests

    async def test_a_malformed_one(self, edge: Edge) -> None:
        line = edge.connect()
        line.say(b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n" % CHAT.encode())
        await until(lambda: edge.api._room.bytes > 0)
        line.say(b"nonsense\r\n")
        await until(lambda: bool(line.sent))
        assert read(bytes(line.sent)).code == "invalid_request"
        assert line.is_closed

    async def test_closing_gives_up_all_that_wait(self, edge: Edge) -> None:
        edge.connect().say(asked("POST", CHAT, BODY)[:-5])
        await until(lambda: edge.api._room.bytes > 0)
        for each in tuple(edge.server.connections):
            cast(Line, each.transport).lose()
        edge.api.close()
        await until(lambda: not edge.api._tasks)


class TestCalls:
    async def test_what_is_known_of_it_when_it_begins(self, edge: Edge) -> None:
        _, request = edge.post(x_request_id="r1", x_session_id="s")
        assert (request.profile.request_id, request.profile.model, request.profile.stream) == ("r1", "llama", True)
        assert request.outbound.body == BODY
        assert dict(request.outbound.headers)["x-session-id"] == "s"
        request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    @pytest.mark.parametrize("unsent", [0, 5], ids=["before its head", "during its upload"])
    async def test_an_id_that_is_running_is_not_used_twice(self, edge: Edge, unsent: int) -> None:
        sent = asked("POST", CHAT, BODY, x_request_id="r1")
        line = edge.connect()
        if unsent:
            line.say(sent[:-unsent])
        edge.port.open.add(RequestId("r1"))
        line.say(sent[-unsent:])
        await until(lambda: bool(edge.requests))
        (request,) = edge.requests
        assert request.profile.request_id != "r1"
        request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    @pytest.mark.parametrize(
        ("method", "target", "path", "is_stream"),
        [
            ("GET", "/v1/responses/resp_1?stream=true&a=b", "/v1/responses/resp_1?stream=true&a=b", True),
            ("GET", "/v1/responses/resp_1", "/v1/responses/resp_1", False),
            ("DELETE", "/v1/responses/resp_1?a=b", "/v1/responses/resp_1", False),
            ("POST", "/v1/responses/resp_1/cancel", "/v1/responses/resp_1/cancel", False),
        ],
    )
    async def test_one_about_a_stored_response(
        self, edge: Edge, method: str, target: str, path: str, is_stream: bool
    ) -> None:
        line = edge.connect()
        line.say(asked(method, target))
        (request,) = edge.requests
        assert (request.outbound.method, request.outbound.path) == (method, path)
        assert request.profile.stream is is_stream
        request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)

    async def test_a_client_that_leaves_is_told_to_the_request(self, edge: Edge) -> None:
        line, request = edge.post()
        request.start()
        request.sink.write(b"x")
        line.lose()
        assert request.has_left

    async def test_room_in_the_buffer_is_told_to_the_request(self, edge: Edge) -> None:
        line, request = edge.post()
        line.is_stuck = True
        request.start()
        assert not request.sink.write(bytes(100_000))
        line.take_all()
        assert request.writable == 1
        request.end()


class TestSink:
    async def test_an_answer_of_an_engine(self, edge: Edge) -> None:
        line, request = edge.post(x_request_id="r1")
        request.start(200, ("Content-Type", "text/event-stream"), ("x-engine", "1"), ("Content-Length", "5"))
        assert not line.sent
        assert request.sink.write(b"hello")
        request.end()
        answer = read(bytes(line.sent))
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["x-engine"] == "1"
        assert answer.headers["x-request-id"] == "r1"
        assert answer.headers["x-nightside-decision"]
        assert "transfer-encoding" not in answer.headers
        assert not line.is_closed

    async def test_one_of_unknown_length_is_chunked(self, edge: Edge) -> None:
        line, request = edge.post()
        request.start()
        for piece in (b"one ", b"two"):
            request.sink.write(piece)
        request.end()
        assert read(bytes(line.sent)).body == b"one two"
        line.taken()
        line.say(asked("GET", "/health"))
        assert line.taken().startswith(b"HTTP/1.1 200 OK\r\n")

    @pytest.mark.parametrize(
        "header",
        [
            ("Date", "1970"),
            ("server", "engine"),
            ("set-cookie", "a=b"),
            ("Connection", "close"),
            ("transfer-encoding", "chunked"),
            ("x-request-id", "theirs"),
            ("X-Nightside-Anything", "theirs"),
            ("access-control-allow-origin", "*"),
            ("a\r\nb", "theirs"),
            ("x-evil", "a\r\nb: c"),
            ("x-evil", "a\nb: c"),
        ],
    )
    async def test_what_an_engine_says_of_its_own_connection_is_not_passed_on(
        self, edge: Edge, header: tuple[str, str]
    ) -> None:
        line, request = edge.post(x_request_id="r1")
        request.start(200, header, ("x-kept", "1"))
        request.sink.write(b"x")
        request.end()
        answer = read(bytes(line.sent))
        assert answer.headers["x-kept"] == "1"
        assert answer.headers["date"].endswith(" GMT")
        assert header[1] not in [text for name, text in answer.headers.items() if name != "transfer-encoding"]
        assert "b" not in answer.headers
        assert answer.headers["x-request-id"] == "r1"

    @pytest.mark.parametrize(
        ("outcome", "told"),
        [
            (Outcome.FAILED_BEFORE_FIRST_BYTE, (502, "engine_failed")),
            (Outcome.FAILED_INTERNALLY, (500, "internal_error")),
        ],
    )
    async def test_before_its_beginning_an_end_is_an_error_of_its_own(
        self, edge: Edge, outcome: Outcome, told: tuple[int, str]
    ) -> None:
        line, request = edge.post()
        request.end(outcome)
        answer = read(bytes(line.sent))
        assert (answer.status, answer.code) == told
        assert not line.is_closed

    async def test_a_gateway_that_drains_closes(self, edge: Edge) -> None:
        line, request = edge.post()
        request.end(Outcome.REJECTED_DRAINING)
        assert read(bytes(line.sent)).headers["connection"] == "close"
        assert line.is_closed

    @pytest.mark.parametrize(
        ("outcome", "code"),
        [(Outcome.FAILED_MIDSTREAM, "engine_failed_midstream"), (Outcome.FAILED_INTERNALLY, "internal_error")],
    )
    @pytest.mark.parametrize(
        ("path", "shape"),
        [
            (CHAT, (b"", {}, b"data: [DONE]\n\n")),
            ("/v1/responses", (b"event: error\n", {"type": "error", "sequence_number": 3}, b"")),
            ("/v1/messages", (b"event: error\n", {"type": "error", "request_id": "r1"}, b"")),
        ],
    )
    async def test_in_a_stream_it_is_an_event(
        self, edge: Edge, outcome: Outcome, code: str, path: str, shape: tuple[bytes, dict[str, object], bytes]
    ) -> None:
        name, more, done = shape
        line, request = edge.post(path=path, x_request_id="r1")
        request.start(200, ("content-type", "text/event-stream"))
        request.sink.write(b"data: 1\n\n")
        request.summary.is_event_stream, request.summary.output_events = True, 3
        request.end(outcome)
        relayed, event, rest = read(bytes(line.sent)).body.partition(b"data: 1\n\n" + name + b"data: ")
        told, end, rest = rest.partition(b"\n\n")
        assert (relayed, bool(event), end, rest) == (b"", True, b"\n\n", done)
        content = json.loads(told)
        assert content["error"]["code"] == code
        assert {key: content[key] for key in content if key not in ("error", "code", "message", "param")} == more

    async def test_in_an_answer_in_one_piece_it_is_a_cut(self, edge: Edge) -> None:
        line, request = edge.post()
        request.start(200, ("content-length", "10"))
        request.sink.write(b"half")
        request.end(Outcome.FAILED_MIDSTREAM)
        assert line.is_cut

    async def test_a_refusal_of_an_engine_is_in_the_client_s_shape(self, edge: Edge) -> None:
        line, request = edge.post(path="/v1/messages", x_request_id="r1")
        request.start(400, ("content-type", "application/json"), ("content-length", "2"), ("x-kept", "1"))
        request.sink.write(b'{"error":{"message":"too long","code":400}}')
        request.end(Outcome.CLIENT_ERROR)
        answer = read(bytes(line.sent))
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["message"] == "too long"
        assert answer.headers["content-length"] == str(len(answer.body))
        assert answer.headers["x-kept"] == "1"


class TestKeepingAlive:
    """Comments while a stream waits."""

    SETTINGS = replace(SETTINGS, keep_alive_comments_s=0.001)
    WAITS = b": the request waits\n\n"

    @asynccontextmanager
    async def waiting(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Line, Began]]:
        async with serving(monkeypatch, self.SETTINGS) as edge:
            line, request = edge.post()
            await until(lambda: line.sent.count(self.WAITS) >= 2)
            yield line, request

    async def test_a_stream_follows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with self.waiting(monkeypatch) as (line, request):
            request.start(200, ("content-type", "text/event-stream"))
            request.sink.write(b"data: 1\n\n")
            request.end()
        answer = read(bytes(line.sent))
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.body.replace(self.WAITS, b"") == b"data: 1\n\n"

    async def test_an_answer_in_one_piece_cannot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with self.waiting(monkeypatch) as (line, request):
            with pytest.raises(LegFailure) as caught:
                request.start(200, ("content-type", "application/json"))
            assert caught.value.result is LegResult.FAILED
            request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)
        body = read(bytes(line.sent)).body
        assert b'"engine_failed' in body
        assert body.endswith(b"data: [DONE]\n\n")

    async def test_a_refusal_is_the_only_event(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with self.waiting(monkeypatch) as (line, request):
            request.start(400)
            request.sink.write(b'{"error":{"message":"too long","code":400}}')
            request.end(Outcome.CLIENT_ERROR)
        assert b"too long" in read(bytes(line.sent)).body

    async def test_they_end_with_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with self.waiting(monkeypatch) as (line, request):
            line.lose()
            assert request.has_left
            assert request.sink._comment_timer is None

    async def test_a_request_without_a_stream_gets_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(monkeypatch, self.SETTINGS) as edge:
            line, request = edge.post(b'{"model":"llama","messages":[]}')
            assert request.sink._comment_timer is None
            request.end(Outcome.FAILED_BEFORE_FIRST_BYTE)
            assert line.sent
