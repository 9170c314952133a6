"""Warns operators of files that others than their owner and group may read or change: secrets given to the gateway, and
records that it keeps. It changes none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from mesh.private_files import open_to_others

TOLD_MAX = 20
_RECORDS = ("*.journal", "*.crash", "*.audit", "*.lockdown.json")


def open_secrets(config: GatewayConfig) -> Iterator[tuple[Path, str]]:
    """Secret files open to others, each with its mode."""
    return open_to_others(dict.fromkeys(config.secret_files))


def open_records(config: GatewayConfig) -> Iterator[tuple[Path, str]]:
    """Record files open to others, each with its mode. New records are for owner and group; these were made before, or
    by other programs."""
    folders = dict.fromkeys(
        folder for folder in (config.journal.folder, config.audit.folder, config.state.folder) if folder is not None
    )
    for folder in folders:
        for pattern in _RECORDS:
            yield from open_to_others(sorted(folder.glob(pattern)))


def warn_of_open_files(config: GatewayConfig, log: FilteringBoundLogger) -> None:
    """Log a line for each file, up to a bound."""
    for kind, found in (("secret", open_secrets(config)), ("record", open_records(config))):
        for path, mode in islice(found, TOLD_MAX):
            log.warning("file_permissions_too_open", kind=kind, path=str(path), mode=mode)
        if more := sum(1 for _ in found):
            log.warning("more_file_permissions_too_open", kind=kind, files=more)
