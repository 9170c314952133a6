from __future__ import annotations

import sys
from pathlib import Path

import pytest
import urllib3.util.connection  # noqa: F401 - it binds a socket when it is imported, which is no test's doing

from controller.dns.publishing import provider_of
from controller.dns.rfc2136 import Rfc2136Dns
from controller.dns.route53.provider import Route53Dns
from controller.lease import Lease
from mesh.clock import Clock
from mesh.faults import ConfigError
from tests.support.controllers import read_file

NAMING = {"zone": "mesh.example"}
ROUTE53 = {"provider": "route53", "route53": {"hosted_zone": "Z0123456789ABC"}}
CLOCK = Clock()
LEASE = Lease(CLOCK, 1, None)


def test_where_the_file_names_none_there_is_none(tmp_path: Path) -> None:
    assert provider_of(read_file(tmp_path), LEASE, CLOCK) is None


async def test_each_is_built_as_its_file_says_and_asks_nobody_yet(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a2V5IGtleSBrZXk=\n")
    updates = {"provider": "rfc2136", "rfc2136": {"server": "192.0.2.53:53", "key_file": str(tmp_path / "key")}}
    for records, kind in ((ROUTE53, Route53Dns), (updates, Rfc2136Dns)):
        made = provider_of(read_file(tmp_path, naming=NAMING, records=records), LEASE, CLOCK)
        assert isinstance(made, kind)
        await made.close()


def test_without_boto3_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"needs boto3 .*: pip install 'nightside\[aws\]'"):
        provider_of(read_file(tmp_path, naming=NAMING, records=ROUTE53), LEASE, CLOCK)
