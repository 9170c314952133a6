"""Promises of `docs/concepts/security.md` are covered by existing tests, and statements without a test are marked as no
promise.
"""

from __future__ import annotations

import re

from tests.support.named_tests import ROOT, is_there, named_on

PAGE = (ROOT / "docs/concepts/security.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", PAGE, flags=re.MULTILINE))
TO_WHOM = ("a client", "a tenant", "a peer", "an operator", "an engine", "a cluster")


def test_each_promise_names_a_test() -> None:
    for party in TO_WHOM:
        promises = re.split(r"^(?=\*\*)", SECTIONS[f"To {party}"].strip(), flags=re.MULTILINE)
        assert promises, party
        assert [promise for promise in promises if promise and not named_on(promise)] == [], party


def test_each_limit_of_what_was_taken_over_names_a_test() -> None:
    for what in ("gateway", "controller"):
        _, *limits = re.split(r"^(?=\*\*)", SECTIONS[f"A {what} that is taken over"].strip(), flags=re.MULTILINE)
        assert len(limits) >= 6, what
        assert [limit for limit in limits if not named_on(limit)] == [], what


def test_what_is_not_promised_is_said() -> None:
    assert SECTIONS["Limits"].count("\n- **") >= 8
    assert not named_on(SECTIONS["Limits"])


def test_tests_that_are_named_are_there() -> None:
    assert [test for test in named_on(PAGE) if not is_there(test)] == []
