"""Problems of a gateway's status, in words."""

from __future__ import annotations

import pytest

from gateway.app.problems import ReplicaStatus, _of_identities


def replica(name: str, identity: str) -> ReplicaStatus:
    return ReplicaStatus(name, "us", ["m"], "available", "", 0, 0, 0, None, identities={"m": identity})


@pytest.mark.parametrize(
    "count,named",
    [
        (2, "/p/0 (r0), /p/1 (r1)"),
        (3, "/p/0 (r0), /p/1 (r1), /p/2 (r2)"),
        (40, "/p/0 (r0), /p/1 (r1), /p/2 (r2), and 37 more"),
    ],
)
def test_a_model_with_many_identities_is_named_with_three_of_them(count: int, named: str) -> None:
    (problem,) = _of_identities([replica(f"r{number}", f"/p/{number}") for number in range(count)])
    assert problem.text == f"m is not the same model everywhere: {named}"
