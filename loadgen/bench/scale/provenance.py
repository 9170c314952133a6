"""Identifies the sources and the machine of a measurement: figures that differ in either are not compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.bench.relay.machine import describe_machine
from loadgen.bench.scale import measure
from loadgen.studies.sources import version_of

_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Provenance:
    """Sources and machine; equal for comparable figures. It stays the same on its way through JSON."""

    version: str
    """Version of all sources that a run uses."""
    machine: dict[str, Any]

    def told(self) -> str:
        machine = self.machine
        return (
            f"{machine['cores']} cores of {machine['cpu']} with {machine['memory_gib']} GiB, {machine['python']}, "
            f"Linux {machine['kernel']}, core: {machine['core']}, sources: {self.version[:_SHOWN_DIGITS]}"
        )


def provenance_here() -> Provenance:
    return Provenance(version_of(measure.__name__), describe_machine())
