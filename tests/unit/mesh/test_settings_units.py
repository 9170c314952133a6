from __future__ import annotations

import pytest

from mesh.settings_units import unit_of


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("wait_max", "duration", "time"),
        ("body_max", "size", "bytes"),
        ("tokens_per_minute", "integer", "tokens/minute"),
        ("context_tokens_max", "integer", "tokens"),
        ("free_share", "number", "fraction"),
        ("latitude", "number", "degrees"),
        ("bootstrap_port", "integer", "port"),
        ("connections_max", "integer", "connections"),
        ("input_weight", "number", "1"),
        ("connections_max", "list of integer", ""),
        ("port", "string", ""),
    ],
)
def test_a_unit_follows_from_type_and_name(name: str, kind: str, unit: str) -> None:
    assert unit_of(name, kind) == unit
