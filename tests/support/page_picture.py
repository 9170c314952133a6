"""Takes the picture in docs/page.md: the demo's three regions under load, on the controller's page in
a real Chromium. `make page-picture` runs it; no test does.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click
from rich.console import Console

from gateway.core.kernel.config import OverflowMode
from loadgen.demo.main import Demo, page_of
from loadgen.demo.scenario import DemoScenario
from loadgen.demo.story import MESH_RUN
from loadgen.live_runner import LiveRunner
from mesh.clock import Clock
from tests.support.browser import Page, chromium
from tests.support.served import in_thread

_SECONDS = 600.0
"""Duration of the load, longer than the picture takes; the rest is cancelled."""


async def take(folder: Path, pictures: list[tuple[Path, str, int, int, bool]], after_s: float) -> None:
    demo = Demo(DemoScenario(), folder, Console(stderr=True))
    async with asyncio.TaskGroup() as tasks, demo._regions(MESH_RUN, OverflowMode.ON, tasks) as mesh:
        running = tasks.create_task(LiveRunner(demo._plan(mesh, _SECONDS), clock=Clock()).run())
        await asyncio.sleep(after_s)

        def look() -> None:
            with chromium(folder / "profile") as driver:
                page = Page(driver)
                for file, kind, width, height, is_dark in pictures:
                    url = page_of(mesh) if kind == "controller" else next(iter(mesh.admins.values()))
                    page.open(url.rstrip("/"), width=width, height=height, dark=is_dark)
                    page.until_live()
                    page.until("document.querySelectorAll('#decisions tbody tr').length > 3")
                    page.until("document.querySelectorAll('.rate').length > 0")
                    file.write_bytes(driver.get_screenshot_as_png())

        await in_thread(look)
        running.cancel()


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--after", default=25.0, show_default=True, help="Seconds of load before it is taken.")
@click.option(
    "--all", "all_of_them", is_flag=True, help="Of a gateway as well, light and dark, large and small, beside FILE."
)
def main(file: Path, *, after: float, all_of_them: bool) -> None:
    """Take the picture of the controller's page, dark, into FILE."""
    pictures = [(file, "controller", 1440, 1150, True)]
    if all_of_them:
        pictures += [
            (file.with_name(f"{kind}-{'dark' if is_dark else 'light'}-{width}.png"), kind, width, height, is_dark)
            for kind in ("controller", "gateway")
            for width, height, is_dark in (
                (1440, 2300, False),
                (1440, 2300, True),
                (360, 3600, True),
                (900, 2600, False),
            )
        ]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(take(Path(folder), pictures, after))


if __name__ == "__main__":
    main()
