"""Buckets in an emulator of S3."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import boto3

from tests.cloud.programs import Emulator


def new_bucket(emulator: Emulator) -> str:
    """Create an empty bucket and return its name. Credentials come from the environment."""
    name = f"nightside-{uuid4().hex[:8]}"
    client_of_s3(emulator).create_bucket(Bucket=name)
    return name


def client_of_s3(emulator: Emulator) -> Any:
    return boto3.client("s3", endpoint_url=emulator.url)
