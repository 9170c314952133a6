from __future__ import annotations

from typing import Any

import pytest

from mesh.tokens.claims import VALUES_MAX, claim_values

CLAIMS: dict[str, Any] = {
    "tenant": "acme",
    "number": 17,
    "flag": True,
    "org": {"id": "org-17", "deep": {"er": ["a", "b"]}, "none": None},
    "https://example.net/org.id": "by-url",
    "groups": ["a", 5, None, {"x": 1}, False, "b"],
    "scope": "read write",
}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tenant", ["acme"]),
        ("number", ["17"]),
        ("flag", []),
        ("org.id", ["org-17"]),
        ("org.deep.er", ["a", "b"]),
        ("org", []),
        ("org.none", []),
        ("org.id.more", []),
        ("https://example.net/org.id", ["by-url"]),
        ("groups", ["a", "5", "b"]),
        ("scope", ["read", "write"]),
        ("missing", []),
        ("", []),
        (".", []),
    ],
)
def test_a_claim_is_found_by_its_name_or_by_the_way_to_it(path: str, said: list[str]) -> None:
    assert claim_values(CLAIMS, path) == said


def test_a_list_is_read_up_to_a_bound() -> None:
    assert len(claim_values({"groups": ["g"] * 10_000}, "groups")) == VALUES_MAX
