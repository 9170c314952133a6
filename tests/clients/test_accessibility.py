"""Accessibility of the page, judged by axe-core in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import Page
from tests.support.browser import chromium as started
from tests.support.page_sections import Sections, controller_sections, gateway_sections, shown_page
from tests.support.served import in_thread

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SIZES = [(1400, False), (1400, True), (390, False), (390, True)]
BURIED = """
const image = document.createElement("img");
image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
document.querySelector("main").append(image);
"""


@pytest.fixture
def page(tmp_path: Path, chromium: str, chromedriver: str) -> Iterator[Page]:
    with started(tmp_path) as driver:
        yield Page(driver)


def faults(page: Page, axe: str) -> list[str]:
    """Rules that the page breaks, each with the elements that break it."""
    page.run(axe)
    found = page.driver.execute_async_script(
        "const done = arguments[1]; axe.run(document, { runOnly: arguments[0] }).then(done, done);", TAGS
    )
    broken = [(each["id"], node) for each in found["violations"] for node in each["nodes"]]
    return [f"{rule}: {node['html']} {node['failureSummary']}" for rule, node in broken]


def show(page: Page, url: str, width: int, *, dark: bool) -> None:
    page.open(url, width=width, dark=dark)
    page.until_live()
    page.until("document.querySelectorAll('.plot canvas').length === 6")
    page.until("document.querySelectorAll('#actions button').length > 0")
    page.find("#lookup-id").send_keys("r-1\n")
    page.until("document.querySelector('#lookup .answer td')")


@pytest.mark.parametrize("sections", [gateway_sections, controller_sections])
async def test_axe_finds_nothing(sections: Callable[[], Sections], page: Page, modules: Path) -> None:
    axe = (modules / "axe-core/axe.min.js").read_text()
    async with shown_page(sections()) as url:

        def look() -> list[str]:
            wrong = []
            for width, dark in SIZES:
                show(page, url, width, dark=dark)
                wrong += [f"{width} dark={dark}: {each}" for each in faults(page, axe)]
            page.find("#actions button").click()
            page.until("document.querySelector('#order-dialog').open || document.querySelector('#said').textContent")
            return wrong + faults(page, axe)

        assert await _told(look) == []


async def test_axe_finds_nothing_in_the_runbook(page: Page, modules: Path) -> None:
    axe = (modules / "axe-core/axe.min.js").read_text()
    async with shown_page(gateway_sections()) as url:

        def look() -> list[str]:
            wrong = []
            for width, dark in SIZES:
                page.open(url, width=width, dark=dark)
                page.driver.get(f"{url}/page/runbook.html#nightsidereplicadown")
                wrong += faults(page, axe)
            return wrong

        assert await _told(look) == []


async def test_axe_finds_an_image_without_a_text(page: Page, modules: Path) -> None:
    """The check itself can fail."""
    axe = (modules / "axe-core/axe.min.js").read_text()
    async with shown_page(gateway_sections()) as url:

        def look() -> list[str]:
            show(page, url, 1400, dark=False)
            page.run(BURIED)
            return faults(page, axe)

        found = await _told(look)
        assert [each.split(":")[0] for each in found] == ["image-alt"]


async def _told(look: Callable[[], list[str]]) -> list[str]:
    found: list[str] = []
    await in_thread(lambda: found.extend(look()))
    return found
