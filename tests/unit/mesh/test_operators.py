from __future__ import annotations

from pathlib import Path

import pytest

from mesh.faults import ConfigError
from mesh.operators import ANY_OPERATOR, NotAnOperator, Operator, Operators, told_of
from mesh.operators_config import OperatorsConfig, OperatorTokenConfig, Role, operator_faults
from mesh.reloader import ReloadRefused
from tests.support.log_calls import OPERATORS_FIELDS


def tokens(folder: Path, **roles: Role) -> OperatorsConfig:
    """One token for each name, in a file of its own."""
    for name in roles:
        (folder / name).write_text(f"token-of-{name}\n")
    return OperatorsConfig(tuple(OperatorTokenConfig(name, role, folder / name) for name, role in roles.items()))


def test_log_lines_name_the_operator_and_the_role_where_a_credential_is_required() -> None:
    told = told_of(Operator("grafana", Role.LOOK))
    assert (told, told_of(ANY_OPERATOR)) == (dict(zip(OPERATORS_FIELDS, ("grafana", Role.LOOK), strict=True)), {})


def test_each_role_may_do_what_those_before_it_may() -> None:
    may = {role: [needed for needed in Role if Operator("a", role).may(needed)] for role in Role}
    assert may == {
        Role.LOOK: [Role.LOOK],
        Role.DRAIN: [Role.LOOK, Role.DRAIN],
        Role.CHANGE: [Role.LOOK, Role.DRAIN, Role.CHANGE],
    }


async def test_a_token_says_who_asks(tmp_path: Path) -> None:
    operators = Operators("everything", tokens(tmp_path, grafana=Role.LOOK, oncall=Role.DRAIN))
    assert await operators.identify("token-of-grafana") == Operator("grafana", Role.LOOK)
    assert await operators.identify("token-of-oncall") == Operator("oncall", Role.DRAIN)
    assert (await operators.identify("everything")).role is Role.CHANGE
    for wrong in ("", "token-of-grafan", "token-of-grafana ", "everythin", "é\udcff"):
        with pytest.raises(NotAnOperator):
            await operators.identify(wrong)


async def test_where_nothing_is_asked_for_anybody_may_do_everything() -> None:
    assert await Operators().identify("") == ANY_OPERATOR
    assert not Operators().are_asked


async def test_a_token_that_was_replaced_opens_nothing_and_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path,
) -> None:
    operators = Operators(None, tokens(tmp_path, grafana=Role.LOOK))
    (tmp_path / "grafana").write_text("another")
    await operators.reload()
    assert (await operators.identify("another")).name == "grafana"
    with pytest.raises(NotAnOperator):
        await operators.identify("token-of-grafana")
    (tmp_path / "grafana").unlink()
    with pytest.raises(ReloadRefused, match=r"operators\.tokens\[0\]\.token_file"):
        await operators.reload()
    assert (await operators.identify("another")).name == "grafana"


async def test_an_issuer_is_asked_only_about_what_no_file_holds(tmp_path: Path) -> None:
    asked: list[str] = []

    async def verify(credential: str) -> Operator | None:
        asked.append(credential)
        return Operator("corp:alice", Role.DRAIN) if credential == "hers" else None

    operators = Operators(None, tokens(tmp_path, grafana=Role.LOOK), verify)
    assert (await operators.identify("token-of-grafana")).name == "grafana"
    assert (await operators.identify("hers")).name == "corp:alice"
    for nobody in ("", "his"):
        with pytest.raises(NotAnOperator):
            await operators.identify(nobody)
    assert asked == ["hers", "his"], "neither what is known nor what is empty"


def test_one_token_is_one_operator_s(tmp_path: Path) -> None:
    config = tokens(tmp_path, grafana=Role.LOOK, oncall=Role.DRAIN)
    (tmp_path / "oncall").write_text("token-of-grafana")
    with pytest.raises(ConfigError, match="grafana and oncall have the same token"):
        Operators(None, config)
    with pytest.raises(ConfigError, match="admin-token and grafana have the same token"):
        Operators("token-of-grafana", config)


def test_names_are_used_once(tmp_path: Path) -> None:
    twice = OperatorsConfig(tokens(tmp_path, grafana=Role.LOOK).tokens * 2)
    assert [(fault.key, fault.message) for fault in operator_faults(twice)] == [
        ("operators.tokens[1].name", "'grafana' is used twice")
    ]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    assert "token-of" not in repr(Operators("x", tokens(tmp_path, grafana=Role.LOOK))._kept)
