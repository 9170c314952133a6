"""What a claim of a verified token says, by its name or by the way to it. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUES_MAX = 1000
_SCOPES = frozenset({"scope", "scp"})


def claim_values(claims: Mapping[str, Any], path: str) -> list[str]:
    """All that it says, as texts; nothing where it is missing or is no text, number or list of them.

    A claim that is called `path` is meant first, dots and all: some issuers call theirs by a URL. Else each dot leads
    into an object.
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
    """As OAuth has them, in words of one text (RFC 8693), or as a list, which some issuers call `scp`."""
    said = claims.get("scope", claims.get("scp", ""))
    if isinstance(said, str):
        return set(said.split())
    return {each for each in said if isinstance(each, str)} if isinstance(said, list) else set()
