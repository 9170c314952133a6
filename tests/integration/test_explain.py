"""Explanations of placements by whole gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.sections import GatewayConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import OverflowMode, PlacementConfig
from gateway.core.vocabulary import ModelName
from gateway.records.decisions import Explanation
from tests.fakes.engine import GOOD_STREAM, hang_up
from tests.support.controlled import until_seen
from tests.support.core import EU, US
from tests.support.gateways import ask, counted, until, write_policy
from tests.support.programs import nightside
from tests.support.regions import Mesh, Region, busy_us_and_free_eu


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, unused_tcp_port_factory)
    yield made
    await made.close()


async def explained(mesh: Mesh, region: Region, wanted: str) -> Explanation:
    async with mesh.session.get(f"{region.gateway.admin_url}/admin/explain/{wanted}") as response:
        assert response.status == 200
        return msgspec.json.decode(await response.read(), type=Explanation)


async def shadow_overflow(mesh: Mesh, region: Region) -> list[dict[str, Any]]:
    """Rows of the state's shadow overflow: none before the request that waits is placed."""
    async with mesh.session.get(f"{region.gateway.admin_url}/admin/state") as state:
        rows: list[dict[str, Any]] = (await state.json())["shadow_overflow"]
        return rows


async def decision_of(mesh: Mesh, region: Region) -> str:
    async with ask(mesh.session, region.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
        assert response.headers["x-nightside-gateway"] == region.config.gateway_id
        return response.headers["x-nightside-decision"]


async def test_a_forward_is_explained_from_both_sides(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    decision = await decision_of(mesh, us)
    explanation = await explained(mesh, us, decision)
    here = explanation.here
    assert decision == f"us-1:{here.request_id}.1"
    assert (await explained(mesh, us, here.request_id)).there[0].gateway == "eu-1"
    (placement,) = here.placements
    assert (placement.reason, placement.region, placement.result) == ("remote_nearest", EU.region, "completed")
    assert {each.id: each.standing for each in placement.considered} == {"eu-1": "available", "us-1-r0": "pending"}
    assert (here.ran_in, here.replica, here.outcome) == (EU.region, "eu-1-r0", "completed")
    (there,) = explanation.there
    assert there.request is not None
    assert (there.request.gateway, there.request.origin, there.request.outcome) == ("eu-1", "us-1", "completed")
    assert [each.target for each in there.request.placements] == ["eu-1-r0"]

    status, out, _ = await nightside("explain", decision, "--admin", us.gateway.admin_url)
    assert status == 0
    assert "It ran in eu-west-1 (replica eu-1-r0) because the one replica here had pending requests;" in out
    assert f"Decision {decision}: remote_nearest" in out
    assert f"Decision eu-1:{here.request_id}.1: local_explore" in out
    status, out, _ = await nightside("explain", here.request_id, "--admin", us.gateway.admin_url, "--json")
    assert status == 0
    assert msgspec.json.decode(out, type=Explanation).there[0].request is not None

    eu_side = await explained(mesh, eu, here.request_id)
    assert (eu_side.here.origin, eu_side.there) == ("us-1", ())


async def test_hints_reach_the_gateway_that_serves_and_are_told_on_both_sides(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    extensions = {"agent_hints": {"osl": 40, "speculative_prefill": True}, "annotations": ["x"]}
    async with ask(mesh.session, us.gateway.http_url, nvext=extensions) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
        decision = response.headers["x-nightside-decision"]
    assert b"nvext" not in eu.engine.received[-1].body
    explanation = await explained(mesh, us, decision)
    (there,) = explanation.there
    assert there.request is not None
    assert explanation.here.hints == there.request.hints == "output_tokens 40, comes_again"
    assert counted(us.gateway, "hints_total", hint="output_tokens") == 1
    assert counted(eu.gateway, "hints_total", hint="output_tokens") == 0
    status, out, _ = await nightside("explain", decision, "--admin", us.gateway.admin_url)
    assert status == 0
    assert "Its client hinted: output_tokens 40, comes_again." in out


async def test_a_peer_that_is_gone_leaves_our_side_and_a_word_about_it(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    decision = await decision_of(mesh, us)
    await eu.stop()
    status, out, _ = await nightside("explain", decision, "--admin", us.gateway.admin_url)
    assert status == 0
    assert "It ran in eu-west-1 (replica eu-1-r0)" in out
    assert "The other side is missing: of gateway eu-1, it cannot be reached (UNAVAILABLE" in out


async def test_a_peer_that_started_anew_remembers_nothing_and_says_so(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    decision = await decision_of(mesh, us)
    await eu.stop()
    await eu.start()

    async def has_answered() -> bool:
        (there,) = (await explained(mesh, us, decision)).there
        return there.problem == "it remembers no such request of ours"

    while not await has_answered():
        pass


async def test_a_retry_is_told_with_what_went_wrong_before(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    eu.engine.plays(hang_up)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(decision_of(mesh, us))
        await until(lambda: counted(us.gateway, "attempts_total", target="peer", result="failed") == 1)
        await us.become_free()
    decision = waiting.result()
    explanation = await explained(mesh, us, decision)
    results = [(each.target, each.result) for each in explanation.here.placements]
    assert results == [("eu-1", "failed"), ("us-1-r0", "completed")]
    assert decision.endswith(".2")
    (there,) = explanation.there
    assert there.request is not None
    assert there.request.outcome == "failed_before_first_byte"
    _, out, _ = await nightside("explain", decision, "--admin", us.gateway.admin_url)
    assert "Attempt 1 went to eu-west-1 (peer eu-1) because the one replica here had pending requests;" in out
    assert "It ran in us-east-1 (replica us-1-r0) because us-1-r0 was the only one with room." in out


async def test_a_refusal_has_no_decision_but_is_known_by_its_request_id(mesh: Mesh) -> None:
    us, _ = await busy_us_and_free_eu(mesh)
    async with ask(mesh.session, us.gateway.http_url, model="nobody's") as response:
        assert response.status == 404
        assert "x-nightside-decision" not in response.headers
        request_id = response.headers["x-request-id"]
    assert (await explained(mesh, us, request_id)).here.outcome == "rejected_unknown_model"


async def test_what_a_client_wrote_for_a_model_is_shown_to_nobody_who_did_not_ask_for_it(mesh: Mesh) -> None:
    """The text is not on the page, nor sent to a controller, which may be in another jurisdiction."""
    us, _ = await busy_us_and_free_eu(mesh)
    async with ask(mesh.session, us.gateway.http_url, model="a prompt in the wrong field") as response:
        assert response.status == 404
        request_id = response.headers["x-request-id"]
    await until(lambda: us.gateway.driver.open_requests == 0)
    async with mesh.session.get(f"{us.gateway.admin_url}/admin/overview") as response:
        text = await response.text()
    assert request_id in text
    assert "wrong field" not in text


async def test_shadow_overflow_tells_what_would_have_been(mesh: Mesh) -> None:
    core = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))
    us, _ = await busy_us_and_free_eu(mesh, core=core)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(decision_of(mesh, us))
        (row,) = await until_seen(lambda: shadow_overflow(mesh, us), bool)
        assert (row["peer"], row["model"], row["would_have_been_forwarded"]) == ("eu-1", "llama", 1)
        await us.become_free()
    status, out, _ = await nightside("explain", waiting.result(), "--admin", us.gateway.admin_url)
    assert status == 0
    assert "It ran in us-east-1" in out
    assert "Had overflow been on, it would have gone to eu-west-1." in out


async def test_what_nobody_knows_ends_with_1(mesh: Mesh) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    status, out, err = await nightside("explain", "nothing", "--admin", us.gateway.admin_url)
    assert (status, out) == (1, "")
    assert err == "Error: nothing: the request or decision is unknown, or no longer remembered\n"
    _, _, err = await nightside("explain", "eu-1:nothing.1", "--admin", us.gateway.admin_url)
    assert "(the decision was made by gateway eu-1)" in err
    status, _, err = await nightside("explain", "nothing", "--admin", "http://127.0.0.1:1")
    assert status == 1
    assert err.startswith("Error: http://127.0.0.1:1 cannot be reached: ")


async def test_where_operators_need_a_token_the_command_shows_it(mesh: Mesh, tmp_path: Path) -> None:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, admin_token="s3cret")
    await mesh.start(us)
    decision = await decision_of(mesh, us)
    status, _, err = await nightside("explain", decision, "--admin", us.gateway.admin_url)
    assert status == 1
    assert "show an operator's token" in err
    (tmp_path / "token").write_text("s3cret\n")
    status, out, _ = await nightside(
        "explain", decision, "--admin", us.gateway.admin_url, "--token-file", tmp_path / "token"
    )
    assert status == 0
    assert "It ran in us-east-1" in out


RARE = ModelName("rare")


def serving_rare(config: GatewayConfig) -> GatewayConfig:
    (replica,) = config.replicas
    spec = replace(replica.spec, models=(*replica.spec.models, RARE))
    return replace(config, replicas=(replace(replica, spec=spec),))


async def test_a_model_that_is_only_where_the_policy_forbids_is_refused_at_once_and_explained(
    mesh: Mesh, tmp_path: Path
) -> None:
    """The model is not listed and the request does not wait; the client is told no rule, and the operator which one
    applied.
    """
    us = await mesh.region("us-1", US, write_policy(tmp_path, US, process=[US]))
    eu = await mesh.region("eu-1", EU)
    eu.config = serving_rare(eu.config)
    await mesh.start(us, eu)
    async with ask(mesh.session, us.gateway.http_url, model=RARE) as refused:
        assert refused.status == 403
        assert refused.headers["x-should-retry"] == "false"
        told, request_id = (await refused.json())["error"], refused.headers["x-request-id"]
    assert told["code"] == "residency_processing"
    assert EU.region not in told["message"]
    assert (len(eu.engine.received), counted(us.gateway, "forwards_sent_total", peer="eu-1")) == (0, 0)
    for region, names in ((us, ["llama"]), (eu, ["llama", RARE])):
        async with mesh.session.get(f"{region.gateway.http_url}/v1/models") as listed:
            assert [each["id"] for each in (await listed.json())["data"]] == names
    status, out, _ = await nightside("explain", request_id, "--admin", us.gateway.admin_url)
    assert status == 0
    assert "ended as rejected_residency_processing" in out
    assert f"process names neither region {EU.region} nor jurisdiction {EU.jurisdiction}" in out


async def test_a_request_that_waits_is_explained_while_it_waits(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    await eu.stop()
    await until(lambda: not us.gateway.core.peers.usable)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(decision_of(mesh, us))
        await until(lambda: len(us.gateway.core.waiting) == 1)
        (waiting,) = us.gateway.core.waiting
        _, out, _ = await nightside("explain", waiting.request_id, "--admin", us.gateway.admin_url)
        await us.become_free()
        await asking
    assert "not over yet" in out
    assert "It waits for replica:us-1-r0 (pending), peer:eu-1 (" in out
