"""Reads values of a verified token's claims, by name or by path. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUES_MAX = 1000
_SCOPES = frozenset({"scope", "scp"})


def claim_values(claims: Mapping[str, Any], path: str) -> list[str]:
    """Values of a claim as texts; none where it is missing or is no text, number or list of them.

    A claim whose whole name is `path` comes first, dots and all, since some issuers name theirs by a URL. Else each dot
    leads into an object.
    """
    if path in _SCOPES:
        return sorted(scopes_of(claims))
    return _texts(claims[path] if path in claims else _led_to(claims, path))


def _led_to(claims: Mapping[str, Any], path: str) -> Any:
    found: Any = claims
    for part in path.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def _texts(said: Any) -> list[str]:
    listed = said[:VALUES_MAX] if isinstance(said, list) else [said]
    return [str(each) for each in listed if isinstance(each, str | int) and not isinstance(each, bool)]


def scopes_of(claims: Mapping[str, Any]) -> set[str]:
    """Scopes of a token: words of one text, as in OAuth (RFC 8693), or a list, which some issuers call `scp`."""
    said = claims.get("scope", claims.get("scp", ""))
    if isinstance(said, str):
        return set(said.split())
    return {each for each in said if isinstance(each, str)} if isinstance(said, list) else set()
