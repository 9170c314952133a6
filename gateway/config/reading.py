"""From a region file to a gateway's config. No file is ever repaired: what cannot be used is told by line and key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.config.checks import faults_between
from gateway.config.region_file import RegionFile
from gateway.ground.environment import PROCESS_ENVIRONMENT
from gateway.ground.faults import FileError
from gateway.ground.values import Surroundings
from gateway.ground.yaml_file import YamlFile, read_yaml


def read_region_file(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """The region file with every default filled in. Raises ConfigError, with one line per fault."""
    return _region_file(read_yaml(path), environ)


def read_named_files(file: RegionFile, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """The same region file, with the keys and certificates that it names read anew. Raises ConfigError."""
    return _region_file(file.source, environ)


def _region_file(source: YamlFile, environ: Mapping[str, str]) -> RegionFile:
    source.mapping()
    file = source.read_as(RegionFile, context=Surroundings(source.path.parent.resolve(), environ))
    if faults := source.located(faults_between(file)):
        raise FileError(source.path, faults)
    return file.overridden(environ).come_from(source)
