"""Tables in an emulator of DynamoDB, and credentials that it accepts."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import boto3

from tests.cloud.programs import Emulator

NOBODY = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def new_table(emulator: Emulator) -> str:
    """Create an empty table and return its name."""
    client: Any = boto3.client("dynamodb", endpoint_url=emulator.url)
    name = f"nightside-{uuid4().hex[:8]}"
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return name
