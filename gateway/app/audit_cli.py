"""Command `nightside audit`, with the commands that features add to it."""

from __future__ import annotations

from gateway.features.catalogue import KINDS
from gateway.records.audit_cli import audit

for command in [each for kind in KINDS for each in kind.audit_commands]:
    audit.add_command(command)

__all__ = ["audit"]
