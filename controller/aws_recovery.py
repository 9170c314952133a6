"""Recovery of a gateway by AWS: its auto scaling group replaces the instance, or the instance is rebooted. The instance
is the only one with the gateway's name as a tag; where there is none, or several, nothing is done. Gateways outside AWS
are left to others.

The calls need no more than docs/examples/aws_recovery_policy.json allows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from controller.aws_regions import is_aws_region
from controller.config import AwsAction, AwsRecoveryConfig
from gateway.core.vocabulary import GatewayId, RegionName

_CALL_S = 10.0
_LIVES = ("pending", "running", "stopping", "stopped")


class AwsRefused(Exception):
    """The recovery cannot be done; the message says why. Nothing was done."""


class OutsideAws(Exception):
    """The gateway does not run in AWS, as far as is known; the message says why. Nothing was done."""


async def recover(config: AwsRecoveryConfig, gateway_id: GatewayId, region: RegionName) -> str:
    """Recover a gateway, and say in words what was done. Raises AwsRefused and OutsideAws. A call that is given up runs
    on, up to the client's own time limits."""
    where = config.regions.get(region) or config.region or region
    if where == region and config.endpoint is None and not is_aws_region(region):
        raise OutsideAws(f"{region} is no AWS region, and recovery.aws.regions names none for it")
    try:
        return await asyncio.to_thread(partial(_recover, config, gateway_id, where))
    except _NoInstance as error:
        if region in config.regions:  # AWS's nearest region is written for those of other clouds, too
            raise OutsideAws(str(error)) from error
        raise
    except (BotoCoreError, ClientError) as error:
        raise AwsRefused(f"{where}: {error}") from error


class _NoInstance(AwsRefused):
    pass


def _recover(config: AwsRecoveryConfig, gateway_id: GatewayId, where: str) -> str:
    instance_id = _instance_of(_client("ec2", config, where), config.tag, gateway_id, where)
    if config.action is AwsAction.REBOOT:
        _client("ec2", config, where).reboot_instances(InstanceIds=[instance_id])
        return f"instance {instance_id} starts anew"
    _client("autoscaling", config, where).set_instance_health(
        InstanceId=instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=True
    )
    return f"instance {instance_id} is replaced by its auto scaling group"


def _instance_of(client: Any, tag: str, gateway_id: GatewayId, where: str) -> str:
    wanted = [{"Name": f"tag:{tag}", "Values": [gateway_id]}, {"Name": "instance-state-name", "Values": list(_LIVES)}]
    answer = client.describe_instances(Filters=wanted)
    found = [each["InstanceId"] for reserved in answer["Reservations"] for each in reserved["Instances"]]
    if len(found) != 1:
        which = ", ".join(sorted(found)[:10]) or "none"
        refused = AwsRefused if found else _NoInstance
        raise refused(f"{where}: one instance should have the tag {tag}={gateway_id}: {which}")
    return str(found[0])


def _client(service: str, config: AwsRecoveryConfig, where: str) -> Any:
    """Make a client. Credentials are looked for where AWS's own tools look for them."""
    limits = Config(
        connect_timeout=_CALL_S,
        read_timeout=_CALL_S,
        retries={"mode": "standard", "total_max_attempts": 4},
        user_agent_extra="nightside-controller",
    )
    session: Any = boto3.session.Session()
    return session.client(service, region_name=where, endpoint_url=config.endpoint, config=limits)
