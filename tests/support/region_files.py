"""Region files, for tests of their readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gateway.config.reading import read_region_file
from gateway.config.region_file import RegionFile
from gateway.config.sections import GatewayConfig
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.faults import ConfigError

SMALLEST = """\
gateway: us-1
region: us-east-1
jurisdiction: US
replicas:
  - id: us-a
    url: http://127.0.0.1:8101
    models: [llama]
"""


def region_at(folder: Path, text: str) -> Path:
    path = folder / "us.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_document(
    folder: Path, document: Mapping[str, object], environ: Mapping[str, str] = PROCESS_ENVIRONMENT
) -> RegionFile:
    """Read the document as a region file. Raises ConfigError."""
    return read_region_file(region_at(folder, yaml.safe_dump(dict(document))), environ)


def load_config(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> GatewayConfig:
    return read_region_file(path, environ).as_config()


def region_faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(region_at(folder, text), environ={})
    return str(caught.value).splitlines()


PEER = "peers:\n  - {gateway: eu-1, region: eu-west-1, jurisdiction: EU, address: 'ADDRESS'}\n"


CERTIFIED = "certificate: c.pem, key: c.key"
PROTECTED = (
    f"listen: {{http: '0.0.0.0:8080', admin: '0.0.0.0:9900', peers: '0.0.0.0:7070', tls: {{{CERTIFIED}}}}}\n"
    f"peering: {{tls: {{{CERTIFIED}, roots: r.pem}}}}\n"
)
