from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.dns.provider import Changes, changes_between
from gateway.core.vocabulary import RegionName
from mesh.naming.tree import RecordTree
from tests.support.naming import AP, EU, US, tree, with_networks

NOBODY: frozenset[RegionName] = frozenset()


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(tree(2), Changes(NOBODY, NOBODY, False), id="nothing"),
        pytest.param(
            tree(2, us=("192.0.2.9",)),
            Changes(frozenset({US}), NOBODY, False),
            id="an-area",
        ),
        pytest.param(
            with_networks(tree(2), EU, "10.0.0.0/8"),
            Changes(frozenset({EU}), NOBODY, False),
            id="whose-clients-are-elsewhere",
        ),
        pytest.param(
            replace(tree(2), areas=tree().areas[1:], anywhere=()),
            Changes(NOBODY, frozenset({AP}), False),
            id="one-gone",
        ),
        pytest.param(replace(tree(2), ttl_s=6), Changes(NOBODY, NOBODY, True), id="ttl"),
    ],
)
def test_what_differs_is_named(after: RecordTree, expected: Changes) -> None:
    assert changes_between(tree(), after) == expected


def test_where_nobody_knows_what_is_said_everything_differs() -> None:
    assert changes_between(None, tree()) == Changes(frozenset({US, EU, AP}), frozenset(), True)
