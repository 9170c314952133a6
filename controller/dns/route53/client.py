"""boto3's client with Nightside's limits: it gives up in time and retries nothing by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.dns.config import Route53Config
from mesh.faults import ConfigError

if TYPE_CHECKING:
    from types_boto3_route53.client import Route53Client

_SECOND_NS = 1_000_000_000
_GLOBAL_REGION = "us-east-1"
"""Region of the signature: Route53 has one address for all regions, and a signature names one all the same."""


def check_installed() -> None:
    """Raises ConfigError where boto3 is missing."""
    try:
        import boto3  # noqa: F401, PLC0415 - comes with the extra `aws`
    except ImportError as error:
        raise ConfigError(
            f"records.provider is route53, which needs boto3 ({error}): pip install 'nightside[aws]'"
        ) from error


def make_client(config: Route53Config) -> Route53Client:
    """Make a client with the machine's credentials, looked for as the AWS command does: environment, files, the role of
    the instance or the container. Each client has a session of its own, so that credentials are read anew."""
    import boto3  # noqa: PLC0415 - as above
    from botocore.config import Config  # noqa: PLC0415 - as above

    timeout_s = config.timeout_ns / _SECOND_NS
    session = boto3.session.Session()
    return session.client(
        "route53",
        region_name=session.region_name or _GLOBAL_REGION,
        endpoint_url=config.endpoint,
        config=Config(
            connect_timeout=timeout_s / 2,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            user_agent_extra="nightside",
        ),
    )
