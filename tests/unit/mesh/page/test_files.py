from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from html.parser import HTMLParser

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mesh.page.files import _FOLDER, PAGE_PATHS, add_files


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application()
    add_files(app)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def test_every_file_comes_with_what_a_browser_is_to_refuse(url: str, session: aiohttp.ClientSession) -> None:
    assert "/" in PAGE_PATHS
    assert "/page/main.js" in PAGE_PATHS
    for path in PAGE_PATHS:
        async with session.get(url + path) as response:
            assert response.status == 200
            policy = response.headers["content-security-policy"].split("; ")
            assert policy[:5] == [
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "connect-src 'self'",
                "img-src 'self' data:",
            ]
            assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy)
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"


async def test_a_file_that_is_known_is_not_sent_again(url: str, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{url}/page/main.js") as response:
        tag = response.headers["etag"]
        assert response.headers["cache-control"] == "no-cache"
        assert response.content_type == "text/javascript"
    async with session.get(f"{url}/page/main.js", headers={"if-none-match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    async with session.get(f"{url}/page/main.js", headers={"if-none-match": '"other"'}) as response:
        assert response.status == 200


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str]] = []
        self.inline = ""
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.inline += data.strip()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    markup = _Markup()
    markup.feed((_FOLDER / "index.html").read_text())
    names = {name for name, _ in markup.attributes}
    assert not markup.inline
    assert not [name for name in names if name.startswith("on") or name == "style"]
    asked_for = [value for name, value in markup.attributes if name in ("src", "href") and value[0] not in "#d"]
    assert {f"/{each}" for each in asked_for} <= PAGE_PATHS


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_no_module_makes_markup_of_text_or_asks_anybody_else(path: object) -> None:
    text = (_FOLDER / str(getattr(path, "name", ""))).read_text()
    told = re.sub(r"http://www\.w3\.org/2000/svg|^/\*! https://github\.com/leeoniya/uPlot", "", text)
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|https?://"
    assert re.findall(banned, told) == []
    assert {f"/page/{each}" for each in re.findall(r'from "\./([\w.]+)"', text)} <= PAGE_PATHS


def test_the_library_that_draws_is_kept_as_it_was_published_with_its_licence() -> None:
    kept = json.loads((_FOLDER / "uplot.json").read_text())
    assert kept["license"] == "MIT"
    assert f"(v{kept['version']})" in (_FOLDER / "uplot.js").read_text()[:80]
    assert (_FOLDER / "uplot.LICENSE.txt").read_text().startswith("The MIT License")
    for name, (_, digest) in kept["files"].items():
        assert sha256((_FOLDER / name).read_bytes()).hexdigest() == digest, name


STYLE = (_FOLDER / "page.css").read_text()
SCHEMES = re.findall(r"color-scheme: (?:light|dark);\n(.*?)\n *}", STYLE, flags=re.DOTALL)
LINES = [f"line-{number}" for number in range(8)]
READ = ("text", "muted", "accent", "healthy", "busy", "degraded", "closed", "down", "unknown")


def colours(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_all_that_is_read_can_be_told_from_its_ground() -> None:
    light, dark, dark_by_system = map(colours, SCHEMES)
    assert dark == dark_by_system, "however it came to be dark"
    for scheme in (light, dark):
        worst = min(contrast(scheme[name], scheme[ground]) for name in READ for ground in ("surface", "ground"))
        assert worst >= 4.5
        assert min(contrast(scheme[name], scheme["surface"]) for name in LINES) >= 3, "lines of a chart, by WCAG 1.4.11"
        assert contrast(scheme["on-accent"], scheme["accent"]) >= 4.5
        assert contrast(scheme["on-accent"], scheme["down"]) >= 4.5
