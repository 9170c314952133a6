"""Legs of disaggregated requests, one at a time; `tests/integration/test_disaggregated.py` has both behind a whole
gateway."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import LegEnded
from gateway.core.nearness import Nearness, SignatureState
from gateway.core.vocabulary import (
    Connector,
    Decision,
    LegResult,
    LegRole,
    PlacementReason,
    PoolName,
    ReplicaId,
    RequestId,
    Target,
    replica_target,
)
from gateway.request.engine_api import CHAT_PATH
from gateway.request.legs import LegFailure, OutboundRequest, RequestSummary
from gateway.request.mailbox import LegScope
from gateway.request.parts import PartFeed
from gateway.request.relay import Compare, Relay
from tests.fakes.engine import DONE, ROLE, event, token
from tests.support.core import profile
from tests.support.owning import FAILED, JSON, Reply, Scene, ScriptedLeg

DECISION = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0)
AT = replica_target(ReplicaId("a"))
TOLD = b'{"blocks":[ 1]}'
CHOICE = b'{"index":0,"message":{"role":"assistant","content":"H"},"finish_reason":"length"}'
ANSWER = b'{"object":"chat.completion","choices":[%b],"usage":{"prompt_tokens":22},"kv_transfer_params":%b}'
GIVEN_UP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "recomputed"}]})


class Part:
    """Request that is played leg by leg."""

    def __init__(
        self,
        connector: Connector,
        *,
        stream: bool = False,
        scene: Scene | None = None,
        compare: Compare | None = None,
    ) -> None:
        self.scene = scene or Scene()
        self.connector = connector
        outbound = OutboundRequest(replace(profile("r1"), stream=stream), CHAT_PATH, (), b'{"model":"m"}')
        self.relay = Relay(
            self.scene.driver,
            self.scene.clock,
            self.scene.settings,
            self.scene.sink,
            outbound=outbound,
            summary=RequestSummary(),
            arrived_ns=self.scene.clock.now_ns(),
            compare=compare,
        )

    def order(self, role: LegRole, at: Target = AT) -> StartLeg:
        leg = 1 if role is LegRole.PREFILL else 2
        return StartLeg(
            RequestId("r1"), 1, leg, role, at, DECISION, 10**18, connector=self.connector, pool=PoolName("chat")
        )

    async def plays(self, role: LegRole, reply: Reply) -> LegEnded:
        order = self.order(role)
        try:
            return await PartFeed(self.relay, order, LegScope(), lambda _: None).run(ScriptedLeg(reply, order))
        finally:
            self.scene.driver.close()


def answered(told: bytes = TOLD, choice: bytes = CHOICE) -> Reply:
    return Reply((ANSWER % (choice, told),), headers=JSON)


@pytest.mark.parametrize("connector", [Connector.NIXL, Connector.ASCEND])
async def test_what_a_prefill_hands_over_is_kept_as_it_came(connector: Connector) -> None:
    part = Part(connector)
    ended = await part.plays(LegRole.PREFILL, answered())
    assert (ended.result, ended.prompt_tokens) == (LegResult.COMPLETED, 22)
    assert part.relay.handed_over == TOLD
    assert part.relay.assembler is not None
    assert part.scene.sink.head is None


@pytest.mark.parametrize("connector", [Connector.MOONCAKE, Connector.SGLANG])
async def test_of_two_that_begin_at_once_the_decode_is_asked_for_what_the_client_wants(connector: Connector) -> None:
    part = Part(connector)
    assert (await part.plays(LegRole.PREFILL, answered(b"null"))).result is LegResult.COMPLETED
    assert (part.relay.handed_over, part.relay.assembler) == (b"", None)


async def test_a_stream_is_a_prefill_too() -> None:
    """SGLang's prefill is asked for what the client wants, and gives one token of it."""
    part = Part(Connector.SGLANG, stream=True)
    assert (await part.plays(LegRole.PREFILL, Reply((ROLE, token("a"), DONE)))).result is LegResult.COMPLETED
    part = Part(Connector.SGLANG, stream=True)
    error = event({"error": {"message": "no", "code": 500}})
    with pytest.raises(LegFailure, match="the prefill: the engine reported an error"):
        await part.plays(LegRole.PREFILL, Reply((ROLE, error, DONE)))


@pytest.mark.parametrize("choice", [CHOICE.replace(b'"H"', b'"H","citations":[]'), CHOICE + b"," + CHOICE])
async def test_with_a_prefill_that_is_no_mould_the_decode_is_asked_for_the_whole_answer(choice: bytes) -> None:
    part = Part(Connector.NIXL)
    assert (await part.plays(LegRole.PREFILL, answered(choice=choice))).result is LegResult.COMPLETED
    assert part.relay.handed_over == TOLD
    assert part.relay.assembler is None


async def test_a_stream_that_breaks_off_has_sent_nothing() -> None:
    part = Part(Connector.NIXL)
    await part.plays(LegRole.PREFILL, answered())
    for reply in (Reply((ROLE, token("a"), FAILED)), Reply((ROLE, token("a")))):
        with pytest.raises(LegFailure) as raised:
            await part.plays(LegRole.DECODE, reply)
        assert raised.value.result is LegResult.FAILED
    assert part.scene.sink.head is None
    assert part.relay.assembles, "an engine that dies is no reason to ask in another way"


async def test_what_a_decode_worker_gives_up_is_said_to_be_full() -> None:
    """Busy is the result whether or not the client has a part of the answer: another worker may have room for the
    rest."""
    part = Part(Connector.ASCEND)
    await part.plays(LegRole.PREFILL, answered())
    with pytest.raises(LegFailure, match="make room") as raised:
        await part.plays(LegRole.DECODE, Reply((ROLE, token("a"), GIVEN_UP, DONE)))
    assert raised.value.result is LegResult.BUSY
    part = Part(Connector.ASCEND, stream=True)
    with pytest.raises(LegFailure, match="make room") as raised:
        await part.plays(LegRole.DECODE, Reply((ROLE, token("a"), GIVEN_UP, DONE)))
    assert raised.value.result is LegResult.BUSY
    assert part.scene.sink.body == ROLE + token("a")


ODD = event({"choices": [{"index": 0, "delta": {"audio": "x"}}]})


async def test_what_cannot_be_put_together_is_asked_for_whole_and_for_a_while_of_that_engine_always() -> None:
    part = Part(Connector.NIXL)
    await part.plays(LegRole.PREFILL, answered())
    decode = part.order(LegRole.DECODE)
    assert part.relay.will_assemble(decode)
    with pytest.raises(LegFailure, match="put together") as raised:
        await part.plays(LegRole.DECODE, Reply((ROLE, ODD, DONE)))
    assert raised.value.result is LegResult.INTERNAL, "nothing is held against the engine"
    assert not part.relay.assembles
    assert not part.relay.will_assemble(decode)
    next_one = Part(Connector.NIXL, scene=part.scene)
    await next_one.plays(LegRole.PREFILL, answered())
    elsewhere = next_one.order(LegRole.DECODE, replica_target(ReplicaId("b")))
    assert next_one.relay.will_assemble(elsewhere)
    assert not next_one.relay.will_assemble(decode)


async def test_an_answer_that_is_too_long_to_hold_says_nothing_of_the_next_one() -> None:
    part = Part(Connector.NIXL)
    part.relay.settings = replace(part.relay.settings, held_bytes_max=1000)
    await part.plays(LegRole.PREFILL, answered())
    with pytest.raises(LegFailure, match="more than 1000 bytes") as raised:
        await part.plays(LegRole.DECODE, Reply((ROLE, token("x" * 2000), DONE)))
    assert raised.value.result is LegResult.INTERNAL
    assert not part.relay.assembles
    next_one = Part(Connector.NIXL, scene=part.scene)
    await next_one.plays(LegRole.PREFILL, answered())
    assert next_one.relay.will_assemble(next_one.order(LegRole.DECODE))


async def test_what_a_prefill_says_of_its_experts_is_compared_and_handed_on_to_nobody() -> None:
    """The decode, the client and readers of the event get no counts."""
    asked: list[tuple[str, bytes]] = []

    def compare(pool: PoolName, counts: bytes) -> Nearness:
        asked.append((pool, counts))
        return Nearness(SignatureState.USED, "a1", b"\x00\x40")

    part = Part(Connector.NIXL, compare=compare)
    ended = await part.plays(LegRole.PREFILL, answered(b'{"blocks":[ 1],"nightside_expert_counts":{"v":1}}'))
    assert asked == [("chat", b'{"v":1}')]
    assert ended.nearness == Nearness(SignatureState.USED, "a1", b"\x00\x40")
    assert part.relay.handed_over == TOLD
    assert "counts" not in repr(ended)
