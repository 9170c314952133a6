"""Residency policies in short form: as the content of a file, and as a gateway reads it, without a file."""

from __future__ import annotations

from pathlib import Path

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.policy.file import PolicyDocument

Rule = dict[str, list[str]]
Stated = tuple[Path, ResidencyPolicy]
"""Name of a file, and the policy that it states."""


def by_jurisdiction(*names: str) -> Rule:
    return {"jurisdictions": list(names)}


def by_region(*names: str) -> Rule:
    return {"regions": list(names)}


def policy_content(region: str, jurisdiction: str, **changes: object) -> dict[str, object]:
    """A policy that keeps its requests in its jurisdiction and accepts none from elsewhere, with these changes."""
    content = {
        "version": 1,
        "region": region,
        "jurisdiction": jurisdiction,
        "process": by_jurisdiction(jurisdiction),
        "accept": {},
    }
    return {**content, **changes}


def stated(region: str, jurisdiction: str, *, file: str | None = None, **changes: object) -> Stated:
    """Policy of `policy_content`, as if read from a file that is named after the region."""
    content = policy_content(region, jurisdiction, **changes)
    return Path(f"{file or region}.yaml"), PolicyDocument.model_validate(content).policy()
