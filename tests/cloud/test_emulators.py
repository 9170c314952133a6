"""The emulators that the other tests here rely on."""

from __future__ import annotations

import boto3
import pytest

from tests.cloud.programs import Emulator

NOBODY = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@pytest.mark.parametrize("emulator", ["running_ministack", "running_moto"])
def test_an_emulator_answers_for_what_we_use(emulator: str, request: pytest.FixtureRequest) -> None:
    running: Emulator = request.getfixturevalue(emulator)
    zones = boto3.client("route53", endpoint_url=running.url, **NOBODY).list_hosted_zones()  # type: ignore[call-overload]
    tables = boto3.client("dynamodb", endpoint_url=running.url, **NOBODY).list_tables()  # type: ignore[call-overload]
    groups = boto3.client("autoscaling", endpoint_url=running.url, **NOBODY).describe_auto_scaling_groups()  # type: ignore[call-overload]
    answers = (zones["HostedZones"], tables["TableNames"], groups["AutoScalingGroups"])
    assert [type(each) for each in answers] == [list, list, list]
