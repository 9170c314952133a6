"""Residency policies written short: as the content of a file, and as what a gateway makes of it, without the file."""

from __future__ import annotations

from pathlib import Path

from gateway.core.residency import ResidencyPolicy
from gateway.policy.file import PolicyDocument

Rule = dict[str, list[str]]
Stated = tuple[Path, ResidencyPolicy]
"""A file's name and the policy that it states."""


def by_jurisdiction(*names: str) -> Rule:
    return {"jurisdictions": list(names)}


def by_region(*names: str) -> Rule:
    return {"regions": list(names)}


def policy_content(region: str, jurisdiction: str, **changes: object) -> dict[str, object]:
    """A policy that keeps its requests in its jurisdiction and takes in nobody, changed as told."""
    content = {
        "version": 1,
        "region": region,
        "jurisdiction": jurisdiction,
        "process": by_jurisdiction(jurisdiction),
        "accept": {},
    }
    return {**content, **changes}


def stated(region: str, jurisdiction: str, *, file: str | None = None, **changes: object) -> Stated:
    """What `policy_content` says, as read from a file of the region's name."""
    content = policy_content(region, jurisdiction, **changes)
    return Path(f"{file or region}.yaml"), PolicyDocument.model_validate(content).policy()
