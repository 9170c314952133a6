from __future__ import annotations

from gateway.policy.flows import region_of
from gateway.policy.matrix import LEGEND, matrix_page
from tests.support.policies import by_jurisdiction, by_region, stated


def page(**tenants: object) -> str:
    dublin = stated("dublin", "EU", accept=by_jurisdiction("US"), tenants=tenants)
    boston = stated("boston", "US", process=by_jurisdiction("US", "EU"))
    return matrix_page([region_of(*each) for each in (dublin, boston)])


def row(text: str, title: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {title}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_each_row_says_where_requests_may_run() -> None:
    text = page()
    assert row(text, "from / to") == ["dublin", "boston"]
    assert row(text, "**dublin (EU)**") == ["here", "neither"]
    assert row(text, "**boston (US)**") == ["yes", "here"]


def test_tenants_have_rows_below_their_region() -> None:
    text = page(clinic={"process": by_region("elsewhere")})
    assert row(text, "*clinic*") == ["421", "-"]


def test_only_words_that_are_used_are_explained_and_each_region_is_told_in_sentences() -> None:
    text = page()
    assert f"- **yes**: {LEGEND['yes']}." in text
    assert "**421**" not in text
    assert "## dublin (EU)" in text
    assert "- Requests may be sent to dublin (EU)" in text


def test_a_tenants_name_is_no_markup() -> None:
    assert "*a\\|b&lt;c*" in page(**{"a|b<c": {"process": by_jurisdiction("EU")}})
