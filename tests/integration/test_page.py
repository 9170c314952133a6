"""The operators' page of gateways and of a controller, in a real Chromium."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from controller.app import serve_controller
from gateway.app.gateway import GatewayHandle
from gateway.config.sections import ControlConfig, GatewayConfig
from gateway.core.vocabulary import GatewayId
from mesh.control.vocabulary import ForwardsTo, GatewayLoad, Report
from mesh.operators_config import OperatorsConfig, OperatorTokenConfig, Role
from mesh.page.last_hour import SERIES
from mesh.page.serving import add_page
from mesh.values import Address
from tests.fakes.attached import hello
from tests.hostile.names_shown import NAME_CASES, NameCase
from tests.support.browser import Page, chromium
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import AP, EU, MS, US
from tests.support.gateways import ask, until
from tests.support.nightly import first_of
from tests.support.served import Served, in_thread, served

pytestmark = pytest.mark.slow
TOKEN = "of-the-operators"
LOOKER = "may-only-look"
PARTS = 8


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield Page(driver)


@pytest.fixture(autouse=True)
def problems_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for problems with each look of a page, in place of every five seconds."""
    monkeypatch.setattr("mesh.problems._LOOK_EVERY_NS", 0)
    for module in ("gateway.app.overview", "controller.overview"):
        monkeypatch.setattr(f"{module}._LOOK_EVERY_S", 0.05)


@pytest.fixture
async def up(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Served]:
    """A gateway without engines that forwards everything to the next region."""
    async with served(tmp_path, unused_tcp_port_factory, across=True) as made:
        yield made


async def asked(gateway: GatewayHandle, session: aiohttp.ClientSession) -> None:
    """Send a request and wait until the gateway is done with it."""
    async with ask(session, gateway.http_url, max_tokens=3) as response:
        await response.read()
    await until(lambda: gateway.driver.open_requests == 0)


def enter(page: Page, token: str) -> None:
    page.until("document.querySelector('#token-dialog').open")
    page.find("#token-input").send_keys(token + Keys.ENTER)


def order(page: Page, name: str) -> None:
    """Press the button at the top, and wait for the confirmation dialog."""
    page.until(
        "[...document.querySelector('#actions').children].find((each) => each.textContent === arguments[0])", name
    )
    page.find("#actions").find_element(By.XPATH, f".//button[text()='{name}']").click()
    page.until("document.querySelector('#order-dialog').open")


async def test_it_shows_the_gateway_and_follows_what_happens(
    up: Served, page: Page, session: aiohttp.ClientSession
) -> None:
    gateway = up.gateway

    def look() -> None:
        page.open(gateway.admin_url)
        page.until_live()
        assert "gateway us-1 in us-east-1 (US)" in page.text("#who")
        page.until("document.querySelector('#peers tbody')?.textContent.includes('eu-1')")
        assert "us-east-1" in page.text("#regions tbody")
        assert "Requests may be sent to eu-west-1 (EU)" in page.text("#policies")
        assert "No decisions yet." in page.text("#decisions")

    await in_thread(look)
    await asked(gateway, session)

    def follow() -> None:
        page.until("document.querySelector('#decisions tbody').textContent.includes('It ran in eu-west-1')")
        page.until("document.querySelector('.map .rate')?.textContent.includes('/min')")
        assert page.asked() == {gateway.admin_url}
        assert page.console() == []

    await in_thread(follow)


async def test_a_request_is_looked_up_by_its_id_with_the_keyboard_alone(
    up: Served, page: Page, session: aiohttp.ClientSession
) -> None:
    async with ask(session, up.url, max_tokens=3) as response:
        await response.read()
        request_id = response.headers["x-request-id"]

    def look() -> None:
        page.open(up.gateway.admin_url)
        page.until_live()
        tabs = 0
        while page.run("return document.activeElement.id") != "lookup-id":
            page.driver.switch_to.active_element.send_keys(Keys.TAB)
            tabs += 1
            assert tabs < 40, "it is never reached"
        assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.driver.switch_to.active_element.send_keys(request_id + Keys.ENTER)
        page.until("document.querySelector('#lookup .answer').textContent.includes('ended as completed')")
        assert "At eu-1 in eu-west-1 (EU)" in page.text("#lookup .answer"), "the other side is told too"
        page.find("#lookup-id").send_keys("-and-none" + Keys.ENTER)
        page.until(
            "document.querySelector('#lookup .answer').textContent.includes('the request or decision is unknown')"
        )
        page.until("document.querySelector('#decisions button.link')").click()
        page.until("document.querySelector('#lookup .answer').textContent.includes('ended as completed')")

    await in_thread(look)


@pytest.mark.parametrize("part", first_of(list(range(PARTS))))
async def test_what_others_write_stays_text(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], page: Page, session: aiohttp.ClientSession, part: int
) -> None:
    """Pages of a gateway and of a controller with hostile names in every place that takes a name from outside: a
    part of the names on the one and another on the other, and by night every name on both.
    """
    wrong: list[str] = []
    async with served(tmp_path, unused_tcp_port_factory, across=True) as up:
        states = await shown_by_both(up, tmp_path, session)
    for number, told in enumerate(states):
        for case in NAME_CASES[(number + part) % PARTS :: PARTS]:
            async with pretending(hostile(told, case.text), case.text) as pretended:
                wrong += await asyncio.to_thread(look_for_markup, page, pretended, case)
    assert not wrong, "\n".join(wrong)


async def shown_by_both(up: Served, folder: Path, session: aiohttp.ClientSession) -> list[Any]:
    """States that the pages of a gateway and of a controller show."""
    await asked(up.gateway, session)
    shown = []
    async with serve_controller(read_file(folder)) as controller:
        async with plain_gateway(controller.grpc_address, hello("us-1", US)) as us:
            await us.until(lambda us: len(us.replica_ids) == 2)
            for url in (up.gateway.admin_url, controller.admin_url):
                async with session.get(f"{url}/admin/overview") as response:
                    shown.append(await response.json())
    return shown


def hostile(shown: Any, text: str, name: str = "") -> Any:
    """Replace every text by this one, and the names of details too; keywords that the page looks up stay."""
    if isinstance(shown, dict):
        if name == "hour":
            return {"times_ms": [1.0e12, 1.0e12 + 15_000], "regions": {text: {key: [1.0, None] for key in SERIES}}}
        more = {text: {text: [text]}} if name == "details" else {}
        return {key: hostile(each, text, key) for key, each in shown.items()} | more
    if isinstance(shown, list):
        return [hostile(each, text, name) for each in shown]
    return text if isinstance(shown, str) and name not in ("kind", "level", "time") else shown


@asynccontextmanager
async def pretending(shown: dict[str, object], text: str) -> AsyncIterator[str]:
    """A process whose page shows this state, and that explains every request alike."""

    candidate = {"id": text, "region": text, "standing": text, "matched_blocks": 1, "load": 2}

    async def explain(_: web.Request) -> web.Response:
        side = {"gateway": text, "placements": [{"attempt": 1, "reason": text, "considered": [candidate]}]}
        return web.json_response({"here": side, "words": [text], "there": [{"request": side}]})

    async def whoami(_: web.Request) -> web.Response:
        return web.json_response({"operator": text, "role": Role.CHANGE})

    async def orders(_: web.Request) -> web.Response:
        lost = {"region": text, "gateways": [text], "replicas": 1, "home": text, "owner": text, "why": text}
        stays = [{"replicas": 1, "home": text, "why": text}]
        moves = [{"replica": text, "before": text, "after": text}]
        preview = {"moves_in_all": 1, "moves": moves, "stays": stays, "unreachable": [lost], "names": [[text, [text]]]}
        return web.json_response({"preview": {"frozen": text, **preview}})

    app = web.Application()
    add_page(app, lambda: shown)
    app.router.add_post("/admin/orders", orders)
    app.router.add_get("/admin/explain/{id}", explain)
    app.router.add_get("/admin/whoami", whoami)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


MARKUP = "img, script, iframe, svg svg, animate, template, base, style, a, form form, object, embed, link, [onfocus]"
"""Elements that the page never has in its body, except for links to parts of itself."""
LINKS = 'a[href^="#"], :is(#problems, .trouble) a[href^="page/runbook.html#"]'
"""Links that the page has itself."""
UNSEEN = r"/[\u0000-\u0008\u200b\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]|[\u{e0000}-\u{e007f}]/u"
TITLES = "[...document.querySelectorAll('[title], [aria-label]')].map((each) => each.title + each.ariaLabel).join()"
CHECKS = {
    "it has run": "window.owned === undefined",
    "it is markup": f"!document.querySelector('body :is({MARKUP}):not({LINKS})')",
    "it is not seen whole": f"!{UNSEEN}.test(document.documentElement.textContent + document.title)",
    "it is cut in the middle of a letter": "!/\\p{Surrogate}/u.test(document.documentElement.textContent)",
    "it is not seen whole in a tooltip": f"!{UNSEEN}.test({TITLES})",
    "it has changed what all objects have": "!Object.keys(Object.prototype).length && `${{}}` === '[object Object]'",
    "it makes the page wider": "document.documentElement.scrollWidth <= innerWidth",
    "it covers the page": "document.querySelector('.bar').offsetHeight < innerHeight / 3",
    "it makes the page long": "document.body.textContent.length < 2_000_000",
}


FAILED_CHECKS = "return [{}].filter(([, holds]) => !holds).map(([what]) => what)".format(
    ", ".join(f"[{json.dumps(what)}, {check}]" for what, check in CHECKS.items())
)


def look_for_markup(page: Page, url: str, case: NameCase) -> list[str]:
    """Faults of a page that shows this name."""
    page.open(url)
    page.until_live()
    page.run(
        "document.querySelector('#lookup-id').value = 'r1'; document.querySelector('#lookup form').requestSubmit()"
    )
    page.until("document.querySelector('#lookup .answer td')")
    wrong: list[str] = page.run(FAILED_CHECKS)
    page.until("document.querySelector('#gateways td button, #actions button:enabled')")
    page.run("document.querySelector('#gateways td button, #actions button:enabled').click()")
    page.until("document.querySelector('#order-dialog').open")
    wrong += [f"{what}, in a question" for what in page.run(FAILED_CHECKS)]
    if page.run("return document.querySelector('#panels').textContent.split(arguments[0]).length", case.told) <= 20:
        wrong.append("it is not shown where it stands")
    if case.told.strip() not in page.text("#who"):
        wrong.append("it is not shown at the top")
    if (page.console(), page.asked()) != ([], {url}):
        wrong.append("the browser asked somebody else, or complained")
    return [f"{case.name}: {each}" for each in wrong]


async def test_orders_are_asked_about_first_and_want_the_token(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], page: Page
) -> None:
    (tmp_path / "looker").write_text(LOOKER)
    looker = OperatorTokenConfig("a-looker", Role.LOOK, tmp_path / "looker")

    def change(config: GatewayConfig) -> GatewayConfig:
        return replace(config, admin_token=TOKEN, operators=OperatorsConfig((looker,)))

    async with served(tmp_path, unused_tcp_port_factory, change=change) as up:
        core = up.gateway.core

        def refuse() -> None:
            page.open(up.gateway.admin_url)
            assert "us-1" not in page.text("body")
            enter(page, "not-the-token")
            page.until("document.querySelector('#token-why').textContent.includes('refused')")
            enter(page, LOOKER)
            page.until("document.querySelector('#as').textContent === 'as a-looker (look)'")
            page.until("document.querySelector('#actions').children.length === 0")
            page.find("#forget").click()
            enter(page, TOKEN)
            page.until_live()
            order(page, "Lock down")
            assert page.run("return document.activeElement.id") == "order-cancel"
            page.find("#order-cancel").click()

        await in_thread(refuse)
        assert core.forwarding_stop is None

        def lock() -> None:
            order(page, "Lock down")
            page.find("#order-reason").send_keys("a drill")
            page.find("#order-do").click()
            page.until("document.querySelector('#problems').textContent.includes('a drill')")

        await in_thread(lock)
        assert core.forwarding_stop is not None

        def drain() -> None:
            order(page, "Drain")
            assert "New requests are rejected with 503" in page.text("#order-means")
            page.find("#order-do").click()
            page.until("document.querySelector('#notes').textContent.includes('Draining')")
            order(page, "Undrain")
            page.find("#order-do").click()
            page.until("!document.querySelector('#notes').textContent.includes('Draining')")
            order(page, "Drain")
            page.find("#order-do").click()
            page.until("document.querySelector('#notes').textContent.includes('Draining')")

        await in_thread(drain)
        assert core.draining
        async with aiohttp.ClientSession() as session:
            for path in ("/admin/drain", "/admin/undrain", "/admin/lockdown"):
                async with session.post(up.gateway.admin_url + path, json={"active": False}) as response:
                    assert response.status == 401
                shown = {"authorization": f"Bearer {TOKEN}", "content-type": "text/plain"}
                async with session.post(up.gateway.admin_url + path, data=b"{}", headers=shown) as response:
                    assert response.status == 415, "what a page of another site could send"
        assert core.forwarding_stop is not None


async def test_a_controller_shows_the_whole_mesh_and_freezes_it(tmp_path: Path, page: Page) -> None:
    async with serve_controller(read_file(tmp_path)) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("us-1", US)) as us, plain_gateway(address, hello("eu-1", EU)) as eu:
            await us.until(lambda us: us.replica_ids == ["us-1-r0", "us-1-r1"])
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
            load = GatewayLoad(replicas=8, available=3, running=21, waiting=17)
            await us.say(Report((), 40, load=load, forwards=(ForwardsTo(GatewayId("eu-1"), 120, 4),)))

            def look() -> None:
                page.open(controller.admin_url)
                page.until_live()
                page.until("document.querySelector('#regions tbody').textContent.includes('3/8')")
                page.until("document.querySelector('.map .rate')?.textContent === '120/min'")
                assert "eu-1-r0" in page.text("#owners tbody")
                assert "us-1" in page.text("#names tbody")
                assert "Requests may be sent to" in page.text("#policies")
                order(page, "Freeze")
                assert "no replica is reassigned" in page.text("#order-means")
                page.find("#order-do").click()
                page.until("document.querySelector('#problems').textContent.includes('frozen, automatic')")
                page.until("document.querySelector('#orders tbody').textContent.includes('freeze')")
                page.until("document.querySelector('#events tbody').textContent.includes('failover_frozen')")
                order(page, "Unfreeze")
                page.find("#order-do").click()
                page.until("!document.querySelector('#problems').textContent.includes('frozen, automatic')")
                page.find("#gateways").find_element(By.XPATH, ".//button[@aria-label='Drain us-1']").click()
                page.until("document.querySelector('#order-dialog').open")
                assert "2 replicas are reassigned" in page.text("#order-means")
                page.find("#order-do").click()
                page.until("document.querySelector('#owners tbody').textContent.includes('eu-1')")
                page.until("document.querySelector('#gateways tbody').textContent.includes('drained by order')")
                assert controller.manager.core.gateways[GatewayId("us-1")].is_drained
                page.find("#gateways").find_element(By.XPATH, ".//button[@aria-label='Undrain us-1']").click()
                page.until("document.querySelector('#order-dialog').open")
                page.find("#order-do").click()
                page.until("!document.querySelector('#gateways tbody').textContent.includes('drained by order')")
                assert page.console() == []

            await in_thread(look)
            assert not controller.manager.core.gateways[GatewayId("us-1")].is_drained


async def test_a_controller_is_told_by_gateways_what_they_have_and_why_a_request_ran_there(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], session: aiohttp.ClientSession
) -> None:
    """Real gateways, without a browser: the data that the controller's page reads."""
    async with serve_controller(read_file(tmp_path)) as controller:
        us_1 = partial(attached_to, controller.grpc_address)
        async with served(tmp_path, unused_tcp_port_factory, across=True, change=us_1) as up:
            await until(
                lambda: all(each.is_registered for each in controller.links.all()) and len(controller.links) == 1
            )
            async with ask(session, up.url, max_tokens=3) as response:
                await response.read()
                request_id = response.headers["x-request-id"]
            await until(lambda: up.gateway.driver.open_requests == 0)

            async def explained() -> dict[str, Any]:
                async with session.get(f"{controller.admin_url}/admin/explain/{request_id}") as response:
                    answer: dict[str, Any] = await response.json()
                    return answer

            while "here" not in (explanation := await explained()):
                pass  # answers may come too late on a busy machine, and are requested again
            assert explanation["here"]["gateway"] == "us-1"
            assert explanation["words"][1].startswith("It ran in eu-west-1")
            async with session.get(f"{controller.admin_url}/admin/explain/nobody") as response:
                assert response.status == 404
            link = controller.links.get(GatewayId("us-1"))
            assert link is not None
            await until(lambda: bool(link.forwards) and link.forwards[0].per_minute > 0 and link.load == GatewayLoad())
            assert link.forwards[0].gateway_id == "eu-1"
            await until(lambda: link.totals is not None and (link.totals.requests, link.totals.forwards) == (1, 1))
            assert link.totals is not None
            assert (link.totals.errors, sum(link.totals.first_tokens)) == (0, 1), "a stream that was forwarded"

            async def decided() -> list[dict[str, object]]:
                async with session.get(f"{controller.admin_url}/admin/overview") as response:
                    rows: list[dict[str, object]] = (await response.json())["decisions"]
                    return rows

            while not (rows := await decided()):  # noqa: ASYNC110 - it asks gateways while it is looked at
                await asyncio.sleep(0.01)
            assert (rows[0]["gateway"], rows[0]["request"]) == ("us-1", request_id)


def attached_to(controller: Address, config: GatewayConfig) -> GatewayConfig:
    return replace(
        config, control=ControlConfig(controllers=(controller,), report_interval_ns=50 * MS, reconnect_min_ns=MS)
    )


async def test_it_is_drawn_dark_and_small_too(up: Served, page: Page) -> None:
    def look() -> None:
        grounds = set()
        for width, dark in ((1400, False), (1400, True), (390, True), (360, True)):
            page.open(up.gateway.admin_url, width=width, dark=dark)
            page.until_live()
            page.until("document.querySelectorAll('.spots li').length === 2")
            assert page.run("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
            grounds.add(page.run("return getComputedStyle(document.body).backgroundColor"))
            assert len(zlib.compress(page.driver.get_screenshot_as_png())) > 15_000, "it is not blank"
        assert len(grounds) == 2
        page.find("#theme").click()
        assert page.run("return getComputedStyle(document.body).backgroundColor") in grounds
        assert page.run("return document.documentElement.dataset.theme") == "light"

    await in_thread(look)


async def test_no_column_of_a_table_is_cut_off_on_a_laptop(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], page: Page
) -> None:
    """The tables that have most columns, with names as long as those of clouds."""
    beyond = (
        "return [...document.querySelectorAll('#regions .scroll, #replicas .scroll, #gateways .scroll')]"
        ".filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"
    )
    async with served(tmp_path, unused_tcp_port_factory) as home, serve_controller(read_file(tmp_path)) as controller:
        async with plain_gateway(controller.grpc_address, hello("ap-northeast-1a", AP)) as ap:
            await ap.until(lambda ap: len(ap.replica_ids) == 2)
            await ap.say(Report((), 40, load=GatewayLoad(replicas=8, down=8, running=21, waiting=17, slots=48)))

            def look() -> None:
                for url in (home.gateway.admin_url, controller.admin_url):
                    for width in (1100, 1280, 1440, 1700):
                        page.open(url, width=width)
                        page.until_live()
                        page.until("document.querySelector('#regions tbody tr')")
                        assert page.run(beyond) == [], (url, width)

            await in_thread(look)


async def test_a_stream_that_ends_is_opened_again(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], page: Page
) -> None:
    """The gateway is restarted at the same address."""
    port = unused_tcp_port_factory()

    def at_port(config: GatewayConfig) -> GatewayConfig:
        return replace(config, listen=replace(config.listen, admin=replace(config.listen.admin, port=port)))

    async with served(tmp_path, unused_tcp_port_factory, change=at_port) as up:
        await in_thread(partial(page.open, up.gateway.admin_url))
        await in_thread(page.until_live)
    await in_thread(lambda: page.until("document.querySelector('#live').dataset.state === 'again'"))
    async with served(tmp_path, unused_tcp_port_factory, change=at_port):
        await in_thread(page.until_live)
        await asyncio.sleep(0)
