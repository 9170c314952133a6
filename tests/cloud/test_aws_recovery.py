"""Recovery of a gateway that is down, by AWS: on an emulator of instances and groups that checks the caller's
permissions.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from controller.aws_recovery import AwsRefused, OutsideAws, recover
from controller.config import AwsAction, AwsRecoveryConfig, RecoveryConfig, RecoveryKind
from controller.core.effects import StartRecovery
from controller.lease import Lease
from controller.recovery import Recovery
from gateway.core.vocabulary import GatewayId, RegionName
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.cloud.programs import Emulator, free_port, moto
from tests.support.clock import StillClock

pytestmark = pytest.mark.needs("emulators")
US = RegionName("us-east-1")
POLICY = Path(__file__).parents[2] / "docs/examples/aws_recovery_policy.json"
SETUP_CALLS = 5
ANSWERS = 1
"""Calls by which the emulator's start is awaited; the emulator counts them too."""


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Emulator that checks permissions once the setup's calls are made."""
    running = moto(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT=str(ANSWERS + SETUP_CALLS))
    running.begin()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    yield running
    running.kill()


def client(service: str, emulator: Emulator) -> Any:
    session: Any = boto3.session.Session()
    return session.client(service, endpoint_url=emulator.url, region_name=US)


class World:
    """An auto-scaling group with a gateway's instance, and a user with the policy that a controller needs."""

    def __init__(self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any]) -> None:
        """Makes SETUP_CALLS calls."""
        self.emulator = emulator
        scaling, iam = client("autoscaling", emulator), client("iam", emulator)
        scaling.create_launch_configuration(
            LaunchConfigurationName="gateway", ImageId="ami-12c6146b", InstanceType="t3.micro"
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="gateways",
            LaunchConfigurationName="gateway",
            MinSize=1,
            MaxSize=1,
            AvailabilityZones=["us-east-1a"],
            Tags=[{"Key": "nightside:gateway", "Value": "us-1", "PropagateAtLaunch": True}],
        )
        iam.create_user(UserName="controller")
        iam.put_user_policy(UserName="controller", PolicyName="p", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName="controller")["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def allowed() -> dict[str, Any]:
    """Policy that the documentation tells operators to use; the emulator checks actions only, not resources."""
    found: dict[str, Any] = json.loads(POLICY.read_text())
    actions = [
        {"Effect": "Allow", "Resource": "*"} | {"Sid": each["Sid"], "Action": each["Action"]}
        for each in found["Statement"]
    ]
    return found | {"Statement": actions}


def test_whatever_changes_an_instance_is_only_allowed_on_what_has_the_tag() -> None:
    for each in json.loads(POLICY.read_text())["Statement"]:
        is_tagged = each.get("Condition") == {"StringLike": {"aws:ResourceTag/nightside:gateway": "*"}}
        assert is_tagged or each["Action"] == "ec2:DescribeInstances"


@pytest.mark.parametrize("action", list(AwsAction))
async def test_the_one_instance_is_helped_by_whoever_may_do_just_that(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, action: AwsAction
) -> None:
    world = World(emulator, monkeypatch, allowed())
    config = AwsRecoveryConfig(action, endpoint=world.emulator.url)
    said = await recover(config, GatewayId("us-1"), US)
    assert said.startswith("instance i-")
    assert ("replaced" if action is AwsAction.REPLACE else "anew") in said
    forbidden: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("ec2", "terminate_instances", {"InstanceIds": [said.split()[1]]}),
        ("ec2", "stop_instances", {"InstanceIds": [said.split()[1]]}),
        ("autoscaling", "delete_auto_scaling_group", {"AutoScalingGroupName": "gateways"}),
        ("iam", "list_users", {}),
    )
    for service, operation, arguments in forbidden:
        with pytest.raises(ClientError, match=r"not authorized|UnauthorizedOperation|AccessDenied"):
            getattr(client(service, emulator), operation)(**arguments)
    with pytest.raises(AwsRefused, match=r"one instance should have the tag nightside:gateway=us-2: none"):
        await recover(config, GatewayId("us-2"), US)
    named = replace(config, regions={"office": US})
    assert (await recover(named, GatewayId("us-1"), RegionName("office"))).startswith("instance i-")
    with pytest.raises(OutsideAws, match=r"us-east-1: one instance should have the tag .*: none"):
        await recover(named, GatewayId("elsewhere"), RegionName("office"))


async def test_what_is_not_allowed_is_said_in_aws_own_words(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = allowed()
    policy["Statement"] = [each for each in policy["Statement"] if each["Sid"] != "Replace"]
    world = World(emulator, monkeypatch, policy)
    with pytest.raises(AwsRefused, match=r"us-east-1: .*SetInstanceHealth.*not authorized"):
        await recover(AwsRecoveryConfig(endpoint=world.emulator.url), GatewayId("us-1"), US)


class TestInAController:
    def begun(
        self, tasks: asyncio.TaskGroup, config: AwsRecoveryConfig, region: RegionName = US
    ) -> tuple[list[str], io.StringIO]:
        ended: list[str] = []
        stream = io.StringIO()
        log = make_logger(LoggingConfig(LogFormat.JSON), "ctl", stream)
        lease = Lease(StillClock(), 1, None)
        settings = RecoveryConfig(RecoveryKind.AWS, aws=config)
        recovery = Recovery(settings, lambda _: region, tasks.create_task, log, lease=lease, on_end=ended.append)
        recovery.begin(StartRecovery(GatewayId("us-1"), "silence"))
        return ended, stream

    async def test_it_is_done_and_told(self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(emulator, monkeypatch, allowed())
        async with asyncio.TaskGroup() as tasks:
            ended, stream = self.begun(tasks, AwsRecoveryConfig(endpoint=world.emulator.url))
        assert (ended, "is replaced by its auto scaling group" in stream.getvalue()) == (["done"], True)

    async def test_a_gateway_outside_aws_is_skipped_with_a_reason(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            ended, stream = self.begun(tasks, AwsRecoveryConfig(), RegionName("office"))
        last = json.loads(stream.getvalue().splitlines()[-1])
        assert (ended, last["event"]) == (["skipped"], "recovery_skipped")
        assert last["reason"] == "office is no AWS region, and recovery.aws.regions names none for it"

    async def test_with_nobody_to_ask_it_has_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        async with asyncio.TaskGroup() as tasks:
            ended, stream = self.begun(tasks, AwsRecoveryConfig(endpoint=f"http://127.0.0.1:{free_port()}"))
        assert (ended, "Could not connect" in stream.getvalue()) == (["failed"], True)
