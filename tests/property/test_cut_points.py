"""Requests cut at many bytes, and where properties are explored at every byte: whatever happens at any point of an
answer, each leg ends once, the sink is ended once and gets nothing afterwards, and the client's bytes are the beginning
of the answer or all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from gateway.core.kernel.effects import StopLeg
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import Connector, LegRole, Outcome
from gateway.request.engine_api import MESSAGES_PATH, RESPONSES_PATH
from gateway.request.legs import LegFailure
from gateway.request.proxied import ProxiedRequest
from gateway.request.sse import events, fields
from tests.fakes.engine import DONE, event, named_event
from tests.support.disaggregated import POOL, workers
from tests.support.nightly import is_exploring
from tests.support.proxied import EVENT_STREAM, FAILED, JSON, SILENCE, Reply, Scene, Script, ScriptedLeg, pieces_of

AGAIN = (FAILED,) * 8
"""Replies to all further legs, so that no byte of the client's can come from another one."""
FEW_STEP = 7
OVER = frozenset(Outcome) - {Outcome.FAILED_INTERNALLY}


def chunk(delta: dict[str, object], **more: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, **more}]})


COUNTS: dict[str, object] = {"prompt_tokens": 3, "completion_tokens": 2}
ENDING = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": COUNTS})
CHAT = b":\n\n" + chunk({"content": "a"}) + ENDING + DONE
RESPONSE = (
    named_event("response.created", response={"id": "resp_1"})
    + named_event("response.output_text.delta", delta="a")
    + named_event("response.completed", response={"id": "resp_1"})
)
MESSAGE = (
    named_event("message_start", message={"id": "m"})
    + named_event("content_block_delta", delta={"text": "a"})
    + named_event("message_delta", delta={"stop_reason": "end_turn"})
    + named_event("message_stop")
)
WHOLE = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'
STORED = b'{"id":"resp_1","object":"response"}'
ERROR = b'{"error":{"code":400}}'
PREFILLED = (
    b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},'
    b'"finish_reason":"length"}],"usage":{"prompt_tokens":3},"kv_transfer_params":{"blocks":[1]}}'
)
BODY = b'{"model":"llama","messages":[{"role":"user","content":"hello"}],"stream":true}'


def disaggregated(connector: Connector = Connector.NIXL) -> Scene:
    """Scene with a prefill worker and two decode workers."""
    scene = Scene()
    pool = replace(POOL, connector=connector)
    scene.port.submit(AssignmentApplied(2, workers(), (), pools=(pool,)))
    scene.probe("p0", "d0", "d1")
    return scene


def beside_a_peer() -> Scene:
    """Scene whose own replicas are full, and whose peer has a free one."""
    scene = Scene()
    scene.probe(waiting=1)
    scene.hear()
    return scene


@dataclass(frozen=True)
class Case:
    """Request one of whose legs is cut."""

    data: bytes
    """Answer of the leg that is cut."""
    headers: tuple[tuple[str, str], ...] = EVENT_STREAM
    status: int = 200
    before: tuple[Script, ...] = ()
    """Replies to the legs before it."""
    behind: tuple[Script, ...] = ()
    """Replies to the legs after it, where it ends well."""
    scene: Callable[[], Scene] = Scene
    asked: dict[str, object] = field(default_factory=dict)
    outcome: Outcome = Outcome.COMPLETED
    step: int = 1
    """Bytes from one cut to the next where properties are explored: more than one for a variant of another case."""

    def replies(self, *pieces: bytes | Exception | object) -> tuple[Script, ...]:
        """Replies to all legs, of which the one that is cut comes in these pieces."""
        reply = Reply(pieces, self.status, self.headers)  # type: ignore[arg-type]
        return (*self.before, reply, *self.behind, *AGAIN)

    def begin(self, scene: Scene, *pieces: bytes | Exception | object) -> ProxiedRequest:
        """Begin the request, and play until the leg that is cut is silent."""
        request = scene.begin(*self.replies(*pieces), **self.asked)
        while not self._is_silent(scene.opener.legs):
            due_ns = scene.port.next_ns()
            assert due_ns is not None, "the leg has not been ordered"
            scene.port.pass_time(due_ns)
            scene.play_on(request)
        return request

    def _is_silent(self, legs: list[ScriptedLeg]) -> bool:
        before = sum(not isinstance(script, Exception) for script in self.before)
        return len(legs) > before and not legs[before].can_speak

    def whole(self) -> bytes:
        """Client's bytes of the answer that nothing cuts."""
        scene = self.scene()
        assert scene.play(*self.replies(self.data), **self.asked) is self.outcome
        assert scene.faults == []
        return scene.sink.body

    def places(self) -> Iterator[int]:
        yield from range(0, len(self.data), self.step if is_exploring() else FEW_STEP)
        yield len(self.data)


PREFILL = Reply((PREFILLED,), headers=JSON)
RESUMED: dict[str, object] = {"body": BODY, "hold": lambda _: True}
BROKEN = Reply((chunk({"role": "assistant"}), chunk({"content": "b"}), FAILED))
CASES = {
    "chat": Case(CHAT),
    "responses": Case(RESPONSE, asked={"path": RESPONSES_PATH}),
    "messages": Case(MESSAGE, asked={"path": MESSAGES_PATH}),
    "whole": Case(WHOLE, JSON),
    "error": Case(ERROR, JSON, 400, outcome=Outcome.CLIENT_ERROR),
    "stored stream": Case(RESPONSE, asked={"path": RESPONSES_PATH, "stores_response": True}, step=7),
    "stored": Case(STORED, JSON, asked={"path": RESPONSES_PATH, "stores_response": True}),
    "forwarded": Case(CHAT, asked={"forwarded": True}, step=7),
    "at a peer": Case(RESPONSE, scene=beside_a_peer, asked={"path": RESPONSES_PATH}, step=3),
    "kept": Case(CHAT, asked=RESUMED, step=3),
    "resumed": Case(CHAT, before=(BROKEN,), asked=RESUMED, step=3),
    "prefill": Case(PREFILLED, JSON, behind=(Reply((CHAT,)),), scene=disaggregated, step=5, asked={"body": BODY}),
    "decode": Case(
        CHAT, before=(Reply((PREFILLED,), headers=JSON),), scene=disaggregated, step=5, asked={"body": BODY}
    ),
    "assembled": Case(
        CHAT,
        before=(PREFILL,),
        scene=disaggregated,
        step=5,
        asked={"body": BODY.replace(b"true", b"false"), "stream": False},
    ),
    "both at once": Case(
        CHAT,
        before=(Reply((WHOLE,), headers=JSON),),
        scene=lambda: disaggregated(Connector.SGLANG),
        step=5,
        asked={"body": BODY},
    ),
}
EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def check(scene: Scene, whole: bytes) -> None:
    scene.check()
    assert scene.port.progress.sample(POOL.name) == ()
    assert scene.faults == []
    assert scene.end.outcome in OVER
    assert whole.startswith(scene.sink.body)


@EACH_CASE
def test_two_pieces_come_out_as_one(case: Case) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        assert scene.play(*case.replies(*pieces_of(case.data, at)), **case.asked) is case.outcome
        check(scene, whole)
        assert scene.sink.body == whole


@EACH_CASE
@pytest.mark.parametrize("reads_after_s", [0.0, 0.5])
def test_a_client_that_reads_slowly_gets_all_of_it(case: Case, reads_after_s: float) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        scene.sink.is_narrow, scene.sink.reads_after_s = True, reads_after_s
        assert scene.play(*case.replies(*pieces_of(case.data, at)), **case.asked) is case.outcome
        check(scene, whole)
        assert scene.sink.body == whole


@EACH_CASE
@pytest.mark.parametrize("failure", [FAILED, None])
def test_a_leg_may_break_off_anywhere(case: Case, failure: LegFailure | None) -> None:
    """A leg without a failure ends as if its answer were complete."""
    whole = case.whole()
    end = () if failure is None else (failure,)
    for at in case.places():
        scene = case.scene()
        scene.play(*case.replies(*pieces_of(case.data[:at]), *end), **case.asked)
        check(scene, whole)


@EACH_CASE
@pytest.mark.parametrize("is_narrow", [False, True])
def test_the_client_may_leave_anywhere(case: Case, is_narrow: bool) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        request = case.begin(scene, SILENCE, *pieces_of(case.data[:at]), SILENCE)
        scene.sink.is_narrow, scene.sink.reads_after_s = is_narrow, 1000.0
        scene.leg.go_on()
        scene.play_on(request)
        scene.leave(request)
        check(scene, whole)
        assert scene.end.outcome in (Outcome.ABANDONED, case.outcome)


@EACH_CASE
def test_the_core_may_stop_a_leg_anywhere(case: Case) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        request = case.begin(scene, *pieces_of(case.data[:at]), SILENCE)
        order = scene.leg.order
        stop = StopLeg(order.request_id, order.attempt, order.leg, "")
        scene.port.give(lambda: request.on_effect(stop))  # noqa: B023 - called at once
        scene.finish(request)
        check(scene, whole)


@EACH_CASE
def test_an_engine_that_falls_silent_anywhere_ends_with_the_request(case: Case) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        scene.finish(case.begin(scene, *pieces_of(case.data[:at]), SILENCE))
        check(scene, whole)


@EACH_CASE
def test_an_error_of_ours_anywhere_ends_the_request_once(case: Case) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        error = KeyError("choices")
        scene.play(*case.replies(*pieces_of(case.data[:at]), error), **case.asked)
        scene.check()
        assert scene.faults == [error]
        if scene.opener.legs[0].order.role is not LegRole.PREFILL:  # another decode worker may be tried
            assert scene.end.outcome in (Outcome.FAILED_INTERNALLY, Outcome.COMPLETED)
        assert whole.startswith(scene.sink.body)


@EACH_CASE
def test_a_crash_of_the_core_anywhere_ends_the_request(case: Case) -> None:
    whole = case.whole()
    for at in case.places():
        scene = case.scene()
        request = case.begin(scene, *pieces_of(case.data[:at]), SILENCE)
        scene.port.crash()
        scene.finish(request)
        assert (scene.sink.breaches, scene.port.timers, scene.port.open_requests) == ([], [], 0)
        assert len(scene.sink.ends) == 1
        assert all(leg.terminals == 1 for leg in scene.opener.legs)
        assert whole.startswith(scene.sink.body)


def test_what_is_cut_is_what_the_clients_get() -> None:
    """The cases are what their names say: each answers its client, in one piece or by events."""
    for name, case in CASES.items():
        whole = case.whole()
        if name == "assembled":
            assert json.loads(whole)["choices"][0]["message"]["content"] == "a"
        elif name == "resumed":
            texts = [
                json.loads(payload) for _, payload in map(fields, events(whole)) if payload and payload[:1] == b"{"
            ]
            deltas = [each["choices"][0]["delta"].get("content", "") for each in texts if each["choices"]]
            assert "".join(deltas) == "ba"
        elif name == "prefill":
            assert whole == CHAT
        else:
            assert whole == case.data
