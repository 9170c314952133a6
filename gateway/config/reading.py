"""Reading a region file into a gateway's config. A file is never repaired: each fault is reported by line and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config.checks import faults_between
from gateway.config.region_file import CoreFile, RegionFile
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.faults import FileError, FileFault
from mesh.values import FileContext
from mesh.yaml_file import YamlFile, faults_in, read_yaml


def read_region_file(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """Read the region file with every default filled in. Raises ConfigError, with one line per fault."""
    return _region_file(read_yaml(path), environ)


def read_named_files(file: RegionFile, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """Return the same region file, with the keys and certificates that it names read again. Raises ConfigError."""
    return _region_file(file.source, environ)


_OF_POLICY = ("policy", "policy_version", "policy_options")


def _policy_faults(source: YamlFile) -> Iterator[FileFault]:
    """Faults of the placement policy, whose name is otherwise looked up only once all keys are valid."""
    section = source.mapping().get("placement")
    named = {key: section[key] for key in _OF_POLICY if key in section} if isinstance(section, dict) else {}
    try:
        CoreFile.model_validate({"placement": named})
    except ValidationError as error:
        yield from faults_in(error, model=CoreFile)


def _region_file(source: YamlFile, environ: Mapping[str, str]) -> RegionFile:
    source.mapping()
    try:
        file = source.read_as(RegionFile, context=FileContext(source.path.parent.resolve(), environ))
    except FileError as error:
        told = {fault.key for fault in error.faults}
        more = [fault for fault in _policy_faults(source) if fault.key not in told]
        raise FileError(source.path, [*error.faults, *source.located(more)]) from error
    if faults := source.located(faults_between(file)):
        raise FileError(source.path, faults)
    return file.overridden(environ).come_from(source)
