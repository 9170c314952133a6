"""`nightside gateway config-keys`: every key of a region file. It reads no region file and asks no running gateway."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.region_file import RegionFile
from gateway.config.sections import Sections
from gateway.core.config import CoreConfig
from mesh.config_keys_cli import config_keys_command
from mesh.settings_reference import Key, keys_of

INTRODUCTION = (
    "# Region file",
    "",
    "Every key of the file that a gateway reads. `nightside gateway check FILE` finds faults, and prints every key",
    "with its value. Examples: [the smallest file](../examples/smallest.yaml), and",
    "[a file with every key](../examples/every_key.yaml). This page is made by `make config-pages`, which runs",
    "`nightside gateway config-keys`.",
)


def region_file_keys() -> Iterable[Key]:
    return keys_of(RegionFile, CoreConfig, Sections)


config_keys = config_keys_command(INTRODUCTION, region_file_keys, "region file")
