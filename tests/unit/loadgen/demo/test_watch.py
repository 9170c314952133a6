"""A failure is explained by a death only if the request was in flight there, or was sent to the dead gateway's address
too soon.
"""

from __future__ import annotations

import pytest

from loadgen.demo.watch import Cause, Death

REFUSED = "ClientConnectorError: Cannot connect to host llm [Connect call failed ('127.77.3.1', 80)]"
DEATH = Death(frozenset({"127.77.3.1"}), killed_ns=10, dead_ns=12, renamed_ns=1_000)
LAST = 1_000 + 6_000_000_000


@pytest.mark.parametrize(
    ("left_ns", "ended_ns", "detail", "cause"),
    [
        (5, 11, "cut", Cause.IN_FLIGHT),
        (12, 20, "cut", Cause.IN_FLIGHT),
        (5, 9, "cut", Cause.OTHER),
        (13, 20, "cut", Cause.OTHER),
        (13, 20, REFUSED, Cause.CACHED),
        (LAST, LAST + 1, REFUSED, Cause.CACHED),
        (LAST + 1, LAST + 2, REFUSED, Cause.OTHER),
        (5, 9, REFUSED, Cause.OTHER),
        (13, 20, REFUSED.replace("127.77.3.1", "127.77.2.1"), Cause.OTHER),
    ],
)
def test_the_cause_of_a_failure(left_ns: int, ended_ns: int, detail: str, cause: Cause) -> None:
    assert DEATH.cause_of(left_ns, ended_ns, detail) is cause


def test_as_long_as_the_name_did_not_change_no_answer_was_an_old_one() -> None:
    assert Death(DEATH.hosts, 10, 12, None).cause_of(13, 20, REFUSED) is Cause.OTHER
