"""Parts of the operators' page, in a real Chromium, with fixed sections: problems, charts, tables and decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Page, chromium
from tests.support.page_sections import controller_sections, gateway_sections, shown_page
from tests.support.served import in_thread

pytestmark = pytest.mark.slow

Look = Callable[[], None]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield Page(driver)


async def looked_at(page: Page, look: Look, *, width: int = 1400) -> None:
    """Open a gateway's page and look at it."""
    async with shown_page(gateway_sections()) as url:

        def open_and_look() -> None:
            page.open(url, width=width)
            page.until_live()
            page.until("document.querySelector('#replicas tbody tr')")
            look()
            assert page.console() == []
            assert page.asked() == {url}

        await in_thread(open_and_look)


def texts(page: Page, css: str) -> list[str]:
    """Texts of all elements that are rendered."""
    found: list[str] = page.run(
        "return [...document.querySelectorAll(arguments[0])].filter((each) => each.getClientRects().length)"
        ".map((each) => each.textContent)",
        css,
    )
    return found


def press(page: Page, css: str, text: str) -> None:
    found = "[...document.querySelectorAll(arguments[0])].find((each) => each.textContent.startsWith(arguments[1]))"
    page.run(f"{found}.click()", css, text)


async def test_problems_come_first_with_since_when_and_what_to_do(page: Page) -> None:
    def look() -> None:
        assert page.run("return document.querySelector('#panels').firstElementChild.id") == "problems"
        assert page.text("#problems h2") == "Problems: 5"
        assert texts(page, "#problems .what") == [
            "not ready: no engine answers",
            "replica r4 is unhealthy: refused",
            "calls of the scaling webhook fail: 500",
        ]
        assert page.text("#problems time").startswith("since 2026-09-21 14:13:20 UTC (")
        links = page.run("return [...document.querySelectorAll('#problems a')].map((a) => a.getAttribute('href'))")
        assert links == ["page/runbook.html#nightsidenotready", "page/runbook.html#nightsidereplicadown"]
        row = "[...document.querySelectorAll('#replicas tbody tr')].find((row) => row.textContent.startsWith('r4'))"
        assert page.run(f"return {row}.querySelector('.trouble').textContent") == "since 21 Sep 14:13:20 UTC What to do"
        assert page.run(f"return {row}.querySelector('a').getAttribute('href')") == links[1]
        assert len(texts(page, "#replicas .trouble")) == 1, "the other rows have no problem"
        page.driver.get(page.run("return document.querySelector('#problems a').href"))
        assert page.text("h2:target") == "NightsideNotReady"

    await looked_at(page, look)


_LINES_DRAWN = """
const style = getComputedStyle(document.documentElement);
const parts = (name) => style.getPropertyValue(name).trim().slice(1).match(/../g);
const colours = ["--line-0", "--line-1"].map((name) => parts(name).map((part) => parseInt(part, 16)));
return [...document.querySelectorAll(".plot canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return colours.map((colour) => {
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] === 255 && colour.every((part, index) => data[at + index] === part)) return true;
    }
    return false;
  });
});
"""
"""Script that tells of each chart whether it has pixels in the colours of its first two lines."""


async def test_the_last_hour_is_drawn_and_its_newest_values_are_told(page: Page) -> None:
    def look() -> None:
        page.until("document.querySelectorAll('.plot canvas').length === 6")
        assert texts(page, ".lines li") == ["eu-west-1", "us-east-1"]
        assert "us-east-1 4/s" in page.text("#charts .now")
        label = page.run("return document.querySelector('.plot').getAttribute('aria-label')")
        assert label == "Requests of the last hour. Now: eu-west-1 5/s, us-east-1 4/s"
        assert page.run(_LINES_DRAWN) == [[True, True]] * 6

    await looked_at(page, look)


async def test_a_feature_says_itself_what_its_table_shows(page: Page) -> None:
    def look() -> None:
        assert texts(page, "#jobs h2, #none h2") == ["Jobs", "Nothing"]
        assert texts(page, "#jobs .sort") == ["Job", "Lines", "Expected end (UTC)"]
        assert texts(page, "#jobs tbody th, #jobs tbody td") == ["j1", "12,000", "21 Sep 14:13:20", "j2", "7", ""]
        assert "3 more are not shown" in page.text("#jobs")
        assert "Nothing runs." in page.text("#none")
        press(page, "#jobs .sort", "Lines")
        assert texts(page, "#jobs tbody th") == ["j2", "j1"]

    await looked_at(page, look)


async def test_a_table_is_sorted_up_and_down_with_the_keyboard_and_then_as_it_comes(page: Page) -> None:
    def look() -> None:
        rows = partial(texts, page, "#replicas tbody th")
        assert rows() == ["r3", "r1", "r7", "r5", "r2", "r6", "r4"]
        head = "[...document.querySelectorAll('#replicas .sort')].find((each) => each.textContent === 'Slots in use')"
        page.run(f"{head}.focus()")
        page.driver.switch_to.active_element.send_keys(Keys.ENTER)
        assert rows() == ["r1", "r2", "r3", "r4", "r5", "r6", "r7"]
        assert page.run(f"return {head}.closest('th').getAttribute('aria-sort')") == "ascending"
        page.driver.switch_to.active_element.send_keys(Keys.ENTER)
        assert rows() == ["r7", "r6", "r5", "r4", "r3", "r2", "r1"]
        page.driver.switch_to.active_element.send_keys(Keys.ENTER)
        assert rows() == ["r3", "r1", "r7", "r5", "r2", "r6", "r4"]
        press(page, "#replicas .sort", "Health")
        assert rows()[0] == "r4", "the one that is down"

    await looked_at(page, look)


async def test_a_table_is_filtered_by_any_of_its_texts(page: Page) -> None:
    def look() -> None:
        page.find("#replicas .filter").send_keys("unhealthy")
        assert texts(page, "#replicas tbody th") == ["r4"]
        assert "1 of 7 rows" in page.text("#replicas")

    await looked_at(page, look)


async def test_decisions_are_filtered_by_what_became_of_them_and_both_ends_of_a_forward_are_one(page: Page) -> None:
    def look() -> None:
        rows = partial(texts, page, "#decisions tbody button.link")
        assert len(rows()) == 6
        assert [each.split() for each in texts(page, ".chip")] == [
            ["All", "6"],
            ["Failed", "1"],
            ["Slow", "(over", "2", "s)", "1"],
            ["Refused", "1"],
            ["Resumed", "1"],
            ["Forwarded", "1"],
        ]
        found = {}
        for mark in ("failed", "slow", "refused", "resumed", "forwarded"):
            page.find(f".chip[data-mark='{mark}']").click()
            found[mark] = rows()
        assert found == {
            "failed": ["r-failed"],
            "slow": ["r-away"],
            "refused": ["r-refused"],
            "resumed": ["r-resumed"],
            "forwarded": ["r-away"],
        }
        told = page.text("#decisions tbody tr")
        assert "us-1 → eu-1 (eu-west-1)" in told
        assert "It was sent to eu-1." in told
        assert "At eu-1: It ran on eu-1-r0." in told
        assert page.run("return document.querySelector('.chip[data-mark=forwarded]').ariaPressed") == "true"
        page.find(".chip[data-mark='']").click()
        assert len(rows()) == 6

    await looked_at(page, look)


async def test_slots_kv_cache_tenants_and_classes_are_shown(page: Page) -> None:
    def look() -> None:
        assert "82/96" in page.text("#totals")
        assert "KV cache 50 %" in page.text("#totals")
        assert "41/48" in page.text("#regions tbody")
        assert "63 %" in page.text("#regions tbody")
        rows = texts(page, "#tenants tbody tr")
        assert [each.startswith("acme") for each in rows] == [True, True]
        assert "interactive20221 Sep 14:13:20" in rows[0]
        assert "batch30" in rows[1]

    await looked_at(page, look)


async def test_on_a_telephone_tables_are_cards_that_can_be_sorted_and_nothing_sticks_out(page: Page) -> None:
    def look() -> None:
        assert page.run("return document.documentElement.scrollWidth") <= 390
        page.run(
            "const order = document.querySelector('#replicas .order');"
            "order.value = 'KV cache'; order.dispatchEvent(new Event('change'))"
        )
        assert texts(page, "#replicas tbody th")[0] == "r1"

    await looked_at(page, look, width=390)


async def test_a_controllers_page_has_its_parts_in_the_words_of_the_field(page: Page) -> None:
    async with shown_page(controller_sections()) as url:

        def look() -> None:
            page.open(url)
            page.until_live()
            page.until("document.querySelector('#gateways tbody tr')")
            titles = texts(page, "#panels h2")
            assert titles[0] == "Problems: 1"
            assert {"Replica assignment", "Operator audit log", "Controller events", "Recent decisions"} <= set(titles)
            assert "unassigned: no gateway lives" in page.text("#owners tbody")
            assert "failover_frozen" in page.text("#events tbody")
            assert page.console() == []

        await in_thread(look)
