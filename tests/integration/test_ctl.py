"""`nightside ctl` against a running controller: which commands change state, which only report, and their exit
codes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from controller.app import ControllerHandle, serve_controller
from controller.ctl.commands import ctl
from gateway.core.vocabulary import GatewayId
from tests.fakes.attached import hello
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import AP, EU, US, policy, rule


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerHandle]:
    async with serve_controller(read_file(tmp_path)) as handle:
        yield handle


async def run(controller: ControllerHandle, *arguments: str) -> Result:
    whole = [*arguments, "--admin", controller.admin_url]
    return await asyncio.to_thread(CliRunner().invoke, ctl, whole)


async def done(controller: ControllerHandle, *arguments: str) -> str:
    result = await run(controller, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


async def test_a_replica_is_moved_and_comes_home_and_a_dry_run_changes_nothing(controller: ControllerHandle) -> None:
    address = controller.grpc_address
    async with plain_gateway(address, hello("us-1", US)) as us, plain_gateway(address, hello("eu-1", EU)) as eu:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"] and len(eu.newest.peers) == 1)
        before = controller.manager.store_writer.version
        told = await done(controller, "move", "us-1-r0", "--to", "eu-1", "--dry-run")
        assert "nothing was changed" in told
        assert "us-1-r0: us-1 -> eu-1" in told
        assert "policy policy-of-us-east-1 of us-east-1: accept names jurisdiction EU" in told
        assert controller.manager.store_writer.version == before
        assert "us-1-r0: us-1 -> eu-1" in await done(controller, "move", "us-1-r0", "--to", "eu-1")
        await eu.until(lambda eu: "us-1-r0" in eu.replica_ids)
        await us.until(lambda us: us.replica_ids == ["us-1-r1"])
        status = await run(controller, "status")
        assert status.exit_code == 0, status.output
        assert "moved to eu-1" in status.output
        assert "us-1-r0: eu-1 -> us-1 (it is at home there)" in await done(controller, "move", "us-1-r0", "--home")
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])


async def test_a_move_that_residency_forbids_is_told_with_the_policy_that_says_so(controller: ControllerHandle) -> None:
    closed_off = hello("us-1", US, own=policy(US, accept=rule(US)))
    async with plain_gateway(controller.grpc_address, closed_off) as us:
        async with plain_gateway(controller.grpc_address, hello("eu-1", EU)) as eu:
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
            told = await done(controller, "move", "us-1-r0", "--to", "eu-1", "--dry-run")
            assert "no replica moves" in told
            assert "us-1-r0 does not go to eu-1: policy policy-of-us-east-1 of us-east-1: accept names neither" in told


async def test_drained_removed_and_added_again(controller: ControllerHandle) -> None:
    async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        await done(controller, "replicas", "drain", "us-1-r0")
        snapshot = await us.until(lambda us: us.replica_ids == ["us-1-r1"])
        assert [(each.replica_id, each.owner) for each in snapshot.away] == [("us-1-r0", "")]
        await done(controller, "replicas", "undrain", "us-1-r0")
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"] and not us.newest.away)
        await done(controller, "replicas", "remove", "us-1-r1")
        await us.until(lambda us: us.replica_ids == ["us-1-r0"])
        refused = await run(controller, "replicas", "drain", "nobody")
        assert (refused.exit_code, "'nobody' is not registered" in refused.output) == (1, True)


async def test_a_replica_that_no_region_file_names(controller: ControllerHandle, tmp_path: Path) -> None:
    file = tmp_path / "replica.yaml"
    file.write_text(yaml.safe_dump({"id": "extra", "url": "http://10.0.0.9:8000", "models": ["m"], "api_key_env": "K"}))
    async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        await done(controller, "replicas", "add", "extra", "--home", "us-1", "--file", str(file))
        snapshot = await us.until(lambda us: "extra" in us.replica_ids)
        (document,) = [json.loads(each.document) for each in snapshot.replicas if '"extra"' in each.document]
        assert document["api_key_env"] == "K"
        assert (document["region"], document["jurisdiction"]) == ("us-east-1", "US")
        file.write_text(yaml.safe_dump({"id": "extra2", "url": "nonsense", "models": ["m"]}))
        refused = await run(controller, "replicas", "add", "extra2", "--home", "us-1", "--file", str(file))
        assert (refused.exit_code, "url: 'nonsense' is not an address" in refused.output) == (1, True)
        await done(controller, "replicas", "remove", "extra")
        await us.until(lambda us: "extra" not in us.replica_ids)


async def test_a_gateway_is_drained_and_removed_and_may_come_back_only_when_added(controller: ControllerHandle) -> None:
    address = controller.grpc_address
    async with plain_gateway(address, hello("us-1", US)) as us:
        async with plain_gateway(address, hello("eu-1", EU)) as eu:
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
            told = await done(controller, "gateways", "drain", "eu-1")
            assert "eu-1-r0: eu-1 -> us-1 (the nearest that may have it" in told
            await us.until(lambda us: len(us.replica_ids) == 4)
            await done(controller, "gateways", "remove", "eu-1")
            assert "removed by an operator" in await eu.until_ended()
        async with plain_gateway(address, hello("eu-1", EU)) as eu:
            assert "has to add it again" in await eu.until_ended()
        await done(controller, "gateways", "add", "eu-1")
        async with plain_gateway(address, hello("eu-1", EU)) as eu:
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])


async def test_a_drain_says_first_what_clients_would_reach_no_more_and_is_not_ordered_unasked(
    controller: ControllerHandle,
) -> None:
    """The replicas may only move to Europe, and clients are led to Japan, whose policy sends nothing there."""
    address = controller.grpc_address
    own = {"us-1": policy(US, accept=rule(EU)), "eu-1": policy(EU), "ap-1": policy(AP, process=rule(AP))}
    async with (
        plain_gateway(address, hello("us-1", US, own=own["us-1"])) as us,
        plain_gateway(address, hello("eu-1", EU, own=own["eu-1"])) as eu,
        plain_gateway(address, hello("ap-1", AP, own=own["ap-1"])) as ap,
    ):
        for each in (us, eu, ap):
            await each.until(lambda each: len(each.replica_ids) == 2 and len(each.newest.peers) == 2)
        lost = (
            "clients in us-east-1, led to ap-1, reach 2 replicas of us-1 no more: served by eu-1, policy "
            "policy-of-ap-northeast-1 of ap-northeast-1: process names neither region eu-west-1 nor jurisdiction EU"
        )
        refused = await run(controller, "gateways", "drain", "us-1")
        assert refused.exit_code == 1
        assert "nothing was ordered; --yes orders it all the same" in refused.output
        assert lost in refused.output
        assert not us.newest.is_drained
        assert lost in await done(controller, "gateways", "drain", "us-1", "--dry-run")
        await done(controller, "gateways", "drain", "us-1", "--yes")
        await us.until(lambda us: us.newest.is_drained and not us.replica_ids)
        assert not eu.newest.is_drained
        await done(controller, "gateways", "undrain", "us-1")
        await us.until(lambda us: not us.newest.is_drained and len(us.replica_ids) == 2)


async def test_a_drain_that_moves_nothing_says_that_clients_still_arrive_and_what_comes_before_the_stop(
    controller: ControllerHandle,
) -> None:
    alone = policy(US, accept=rule(US), process=rule(US))
    address = controller.grpc_address
    async with plain_gateway(address, hello("us-1", US, own=alone)) as us, plain_gateway(address, hello("eu-1", EU)):
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        told = await done(controller, "gateways", "drain", "us-1")
        assert "no replica moves" in told
        assert (
            "warning: clients in us-east-1 still arrive at us-1 and 2 replicas stay with us-1, since no other gateway "
            "may take them; before you stop it, take it out of the mesh with `nightside ctl gateways remove us-1`"
        ) in told


async def test_a_policy_narrows_and_moves_what_rested_on_it(controller: ControllerHandle, tmp_path: Path) -> None:
    file = tmp_path / "us.yaml"
    places = {"version": 1, "region": "us-east-1", "jurisdiction": "US", "process": {"jurisdictions": ["US"]}}
    file.write_text(yaml.safe_dump({**places, "accept": {}}))
    address = controller.grpc_address
    async with plain_gateway(address, hello("us-1", US)) as us, plain_gateway(address, hello("eu-1", EU)) as eu:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
        await done(controller, "move", "us-1-r0", "--to", "eu-1")
        await eu.until(lambda eu: "us-1-r0" in eu.replica_ids)
        told = await done(controller, "policy", "set", str(file), "--dry-run")
        assert "us-1-r0: eu-1 -> us-1" in told
        assert "us-1-r0 does not go to eu-1: policy policy-of-us-east-1+" in told
        await done(controller, "policy", "set", str(file))
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"] and us.newest.narrowing is not None)
        await eu.until(lambda eu: "us-1-r0" not in eu.replica_ids)
        assert eu.newest.narrowing is None
        await done(controller, "policy", "clear", "us-east-1")
        await eu.until(lambda eu: "us-1-r0" in eu.replica_ids)


async def test_parameters_freeze_export_import_and_history(controller: ControllerHandle, tmp_path: Path) -> None:
    file, exported = tmp_path / "parameters.yaml", tmp_path / "export.json"
    file.write_text(yaml.safe_dump({"queue": {"length_max": 7}}))
    async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
        await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
        await done(controller, "parameters", "set", str(file))
        await us.until(lambda us: json.loads(us.newest.parameters or "{}") == {"queue": {"length_max": 7}})
        await done(controller, "freeze", "--reason", "a move of cables")
        status = await run(controller, "status", "--json")
        assert status.exit_code == 1
        assert json.loads(status.output)["wrong"] == [
            "frozen, automatic failover and reassignment are suspended: a move of cables"
        ]
        exported.write_text(await done(controller, "export"))
        await done(controller, "unfreeze")
        await done(controller, "parameters", "clear")
        assert controller.manager.core.frozen == ""
        await done(controller, "import", str(exported))
        assert controller.manager.core.frozen == "a move of cables"
        await us.until(lambda us: json.loads(us.newest.parameters or "{}") == {"queue": {"length_max": 7}})
        file.write_text("listen: {http: x}")
        assert (await run(controller, "parameters", "set", str(file))).exit_code == 1
        told = (await done(controller, "history", "--count", "3")).splitlines()
        assert ["parameters-clear" in told[0], "import" in told[1], "refused: listen: only" in told[2]] == [True] * 3


async def test_who_is_not_there_and_who_wants_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    assert (
        await asyncio.to_thread(CliRunner().invoke, ctl, ["status", "--admin", "http://127.0.0.1:1"])
    ).exit_code == 4
    async with serve_controller(read_file(tmp_path, admin_token_file=str(token))) as controller:
        assert (await run(controller, "freeze")).exit_code == 4
        assert controller.manager.registry.freeze is None
        assert (await run(controller, "freeze", "--token-file", str(token))).exit_code == 0
        assert controller.manager.core.frozen == "by order"
        assert (await run(controller, "move", "a")).exit_code == 2
        assert GatewayId("us-1") not in controller.links
