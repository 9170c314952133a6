from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.core.response_key import response_key
from gateway.core.vocabulary import ModelName, TenantName
from gateway.peers.forward_checks import check_forward
from gateway.request.bodies import RESERVED_FIELDS
from gateway.request.engine_api import CHAT_PATH, POSTED_PATHS, RESPONSES_PATH
from gateway.request.legs import OutboundRequest
from mesh.wire import WireError
from tests.support.core import TENANT, profile

HEADERS = (("content-type", "application/json"), ("x-request-id", "r1"))
CHAT: dict[str, Any] = {"model": "llama", "stream": True, "messages": []}
OTHER = TenantName("another")


def forwarded(body: object, path: str = CHAT_PATH, *, stores: bool = False, **of_profile: Any) -> OutboundRequest:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return OutboundRequest(replace(profile("r1"), **of_profile), path, HEADERS, raw, stores_response=stores)


def response(**more: object) -> dict[str, object]:
    return {"model": "llama", "stream": True, "input": "hello", **more}


def about_a_response() -> OutboundRequest:
    key = response_key(TENANT, "resp_1")
    control = replace(profile("r1"), model=ModelName(""), stream=False, follows=key, is_control=True)
    return OutboundRequest(control, f"{RESPONSES_PATH}/resp_1", HEADERS, b"", "GET")


class TestWhatDoorsMake:
    @pytest.mark.parametrize("path", POSTED_PATHS)
    def test_is_let_in_on_every_path(self, path: str) -> None:
        body = {"model": "llama", "stream": False, "store": False}
        assert check_forward(forwarded(body, path, stream=False)) is not None

    def test_a_response_that_follows_another_is_let_in(self) -> None:
        follows = response_key(TENANT, "resp_1")
        body = response(previous_response_id="resp_1")
        found = check_forward(forwarded(body, RESPONSES_PATH, stores=True, follows=follows))
        assert found is not None
        assert found.followed_response_id == "resp_1"

    def test_a_call_about_a_response_has_no_body(self) -> None:
        assert check_forward(about_a_response()) is None

    def test_priority_is_for_the_receiver_to_judge_not_a_lie(self) -> None:
        found = check_forward(forwarded({**CHAT, "priority": 3}))
        assert found is not None
        assert found.names_priority


def lies() -> Iterator[tuple[str, OutboundRequest]]:
    for name in RESERVED_FIELDS:
        yield f"{name}: only gateways", forwarded({**CHAT, name: 1})
    yield "vllm_xargs.rid: only gateways", forwarded({**CHAT, "vllm_xargs": {"rid": "x"}})
    for extensions in (b"{}", b"null", b'{"x":1},"nvext":null'):
        yield "nvext", forwarded(b'{"model":"llama","stream":true,"nvext":%b}' % extensions)
    for raw in (b"", b"hello", b"[1]", b'{"model": "llama"', b"\xff\xfe", b'\x1f\x8b{"model": "llama"}'):
        yield "invalid_", forwarded(raw)
    yield "different models", forwarded({**CHAT, "model": "llama-405b"})
    yield "different models", forwarded(CHAT, model=ModelName("qwen"))
    yield "streaming", forwarded({**CHAT, "stream": False})
    yield "background", forwarded(response(background=True), RESPONSES_PATH, stores=True)
    yield "storing", forwarded(response(store=False), RESPONSES_PATH, stores=True)
    yield "storing", forwarded(response(), RESPONSES_PATH)
    yield "is marked as a call about", forwarded(CHAT, is_control=True)
    followed = response(previous_response_id="resp_1")
    for key in ("", response_key(TENANT, "resp_2"), response_key(OTHER, "resp_1")):
        yield "follows is not", forwarded(followed, RESPONSES_PATH, stores=True, follows=key)
    yield "follows is not", forwarded(CHAT, follows=response_key(TENANT, "resp_1"))
    for name in ("x-data-parallel-rank", "x-api-key", "content-encoding", "X-Vllm-Priority", "accept-encoding"):
        yield f"header {name.lower()} is not for engines", replace(forwarded(CHAT), headers=(*HEADERS, (name, "1")))
    yield "named twice", replace(forwarded(CHAT), headers=(*HEADERS, HEADERS[0]))
    yield "another request", replace(forwarded(CHAT), headers=(("x-request-id", "r2"),))
    control = about_a_response()
    yield "has a body", replace(control, body=b'{"model": "llama"}')
    yield "stores none", replace(control, stores_response=True)
    yield "not marked", replace(control, profile=replace(control.profile, is_control=False))


@pytest.mark.parametrize("fault,request_", list(lies()))
def test_what_no_door_makes_is_a_fault_of_the_peer(fault: str, request_: OutboundRequest) -> None:
    with pytest.raises(WireError, match=fault):
        check_forward(request_)
