"""Takes the picture in docs/reference/page.md: the demo's three regions under load, on the controller's page in
a real Chromium. `make page-picture` runs it; no test does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from gateway.core.kernel.config import OverflowMode
from loadgen.demo.main import Demo, page_of
from loadgen.demo.mesh import Mesh
from loadgen.demo.scenario import DemoScenario
from loadgen.demo.story import MESH_RUN
from loadgen.live_runner import LiveRunner
from mesh.clock import Clock
from tests.support.browser import Page, chromium
from tests.support.served import in_thread

_SECONDS = 3600.0
"""Duration of the load, longer than the picture takes; the rest is cancelled."""


@dataclass(frozen=True)
class Picture:
    file: Path
    kind: str
    """`controller`, or `gateway`: that of the first region."""
    width: int
    height: int
    is_dark: bool = False
    is_whole: bool = False
    """Cut at the end of the page rather than at `height`."""


async def take(folder: Path, pictures: list[Picture], troubled: list[Picture], after_s: float) -> None:
    demo = Demo(DemoScenario(), folder, Console(stderr=True))
    async with asyncio.TaskGroup() as tasks, demo._regions(MESH_RUN, OverflowMode.ON, tasks) as mesh:
        running = tasks.create_task(LiveRunner(demo._plan(mesh, _SECONDS), clock=Clock()).run())
        await asyncio.sleep(after_s)
        with chromium(folder / "profile") as driver:
            page = Page(driver)
            await in_thread(lambda: _take_all(page, mesh, pictures, "document.querySelector('.rate')"))
            if troubled:
                with _one_stopped(mesh):
                    said = "document.querySelectorAll('#problems li').length > 0"
                    await in_thread(lambda: _take_all(page, mesh, troubled, said))
        running.cancel()


def _take_all(page: Page, mesh: Mesh, pictures: list[Picture], until: str) -> None:
    for each in pictures:
        url = page_of(mesh) if each.kind == "controller" else next(iter(mesh.admins.values()))
        page.open(url.rstrip("/"), width=each.width, height=each.height, dark=each.is_dark)
        page.until_live()
        page.until("document.querySelectorAll('#decisions tbody tr').length > 3")
        page.until(until)
        if each.is_whole:
            page.resize(each.width, int(page.run("return document.documentElement.scrollHeight")))
            page.until("document.querySelector('.map .plane').clientHeight > 0")
        each.file.write_bytes(page.driver.get_screenshot_as_png())


@contextmanager
def _one_stopped(mesh: Mesh) -> Iterator[None]:
    """Stop the last region's gateway, as a machine that hangs would, and let it go on at the end."""
    pid = mesh.first_of(list(mesh.admins)[-1]).child.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _everything(file: Path) -> Iterator[Picture]:
    for kind in ("controller", "gateway"):
        for width, is_dark in ((1440, False), (1440, True), (390, True), (900, False)):
            name = file.with_name(f"{kind}-{'dark' if is_dark else 'light'}-{width}.png")
            yield Picture(name, kind, width, 1000, is_dark, is_whole=True)


def _with_problems(file: Path) -> Iterator[Picture]:
    for kind in ("controller", "gateway"):
        for width in (1440, 390):
            yield Picture(file.with_name(f"{kind}-problems-{width}.png"), kind, width, 1100)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--after", default=200.0, show_default=True, help="Seconds of load before it is taken.")
@click.option(
    "--all",
    "all_of_them",
    is_flag=True,
    help="Of a gateway as well, light and dark, large and small, well and with problems, beside FILE.",
)
def main(file: Path, *, after: float, all_of_them: bool) -> None:
    """Take the picture of the controller's page, dark, into FILE."""
    pictures = [Picture(file, "controller", 1440, 1150, is_dark=True)]
    pictures += _everything(file) if all_of_them else ()
    troubled = list(_with_problems(file)) if all_of_them else []
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(take(Path(folder), pictures, troubled, after))


if __name__ == "__main__":
    main()
