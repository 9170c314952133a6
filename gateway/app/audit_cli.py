"""Command `nightside audit`, with the commands that features add to it."""

from __future__ import annotations

from gateway.features.recorded import AUDIT_COMMANDS
from gateway.records.audit_cli import audit

for command in AUDIT_COMMANDS:
    audit.add_command(command)

__all__ = ["audit"]
