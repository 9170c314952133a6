"""Measuring by other projects' tools: processes, metrics pages between runs, and the script that installs the tools."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from loadgen.demo.processes import DemoFailure
from loadgen.studies.outside import tools
from loadgen.studies.outside.playing import quiet_pages
from loadgen.studies.outside.readings import LOG
from loadgen.studies.outside.running import ToolEnd, run_tool
from loadgen.studies.outside.soaking import SoakPlay
from tests.support.gateways import until
from tests.support.served import served

ROOT = Path(tools.__file__).parents[3]
PYTHON = """#!/bin/sh
# Makes an environment whose pip fails for tools that a file names.
mkdir -p "$4/bin"
echo "$4" >>asked
printf '#!/bin/sh\\nfor pin; do :; done; echo "ERROR: no $pin"; ! grep -q "^${pin%%%%=*}$" failing\\n' >"$4/bin/python"
chmod +x "$4/bin/python"
"""
NPM = """#!/bin/sh
# Installs nothing, and fails for tools that a file names.
echo "$3" >>asked
for pin; do :; done
! grep -q "^${pin%%@*}$" failing || { echo "npm ERR! no $pin"; exit 1; }
"""
SH = shutil.which("sh") or "sh"
LEAVES_ONE_BEHIND = "exec 3>held; sleep 1000 & exit 4"
"""Shell whose child holds the pipe's end open after the shell has ended."""
COUNTERS = "".join(
    f"# TYPE {name} counter\n"
    for name in (
        "nightside_requests_total",
        "nightside_refusals_total",
        "nightside_prompt_tokens_total",
        "nightside_output_tokens_total",
    )
)
QUIET = (
    f"{COUNTERS}# TYPE process_open_fds gauge\nprocess_open_fds 9\n"
    "# TYPE nightside_requests_open gauge\nnightside_requests_open 0\n"
)
BUSY = QUIET.replace("open 0", "open 2")


def is_at_end(reader: int) -> bool:
    """True if no process holds the pipe's other end."""
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


async def run(folder: Path, script: str, deadline_s: float = 60.0) -> ToolEnd:
    async with asyncio.TaskGroup() as tasks:
        return await run_tool([SH, "-c", script], folder, deadline_s, tasks)


async def test_a_process_that_a_tool_leaves_behind_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert (await run(tmp_path, LEAVES_ONE_BEHIND)).status == 4
        await until(lambda: is_at_end(reader))
    finally:
        os.close(reader)


async def test_a_tool_without_an_end_is_ended_at_its_deadline(tmp_path: Path) -> None:
    assert (await run(tmp_path, "exec sleep 1000", deadline_s=0.01)).status is None


async def test_no_proxy_stands_before_a_gateway(tmp_path: Path) -> None:
    await run(tmp_path, 'echo "$NO_PROXY $no_proxy"')
    assert (tmp_path / LOG).read_text() == "* *\n"


@asynccontextmanager
async def answering(answers: Sequence[tuple[int, str]], port: int) -> AsyncIterator[str]:
    """Address whose metrics page answers with each of these in turn, and with the last one ever after."""
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        status, text = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=status, text=text)

    app = web.Application()
    app.add_routes([web.get("/metrics", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_page_that_fails_once_is_read_again(unused_tcp_port: int) -> None:
    async with answering([(200, BUSY), (500, "no"), (200, QUIET)], unused_tcp_port) as url:
        assert await quiet_pages([url]) == [QUIET]


@pytest.mark.parametrize(
    ("answer", "reason"), [((500, "no"), "a metrics page could not be read.*500"), ((200, BUSY), "2 requests are open")]
)
async def test_the_last_reason_is_named(answer: tuple[int, str], reason: str, unused_tcp_port: int) -> None:
    async with answering([answer], unused_tcp_port) as url:
        with pytest.raises(DemoFailure, match=f"not quiet within 3 s: {reason}"):
            await quiet_pages([url], quiet_s=3.0)


async def test_a_gateway_that_is_gone_is_named(unused_tcp_port: int) -> None:
    with pytest.raises(DemoFailure, match="a metrics page could not be read: ClientConnectorError"):
        await quiet_pages([f"http://127.0.0.1:{unused_tcp_port}"], quiet_s=3.0)


@pytest.mark.parametrize("name", ["nightside_requests_open", "nightside_refusals_total"])
async def test_a_page_without_what_is_read_is_no_zero(name: str, unused_tcp_port: int) -> None:
    async with answering([(200, QUIET.replace(name, "renamed"))], unused_tcp_port) as url:
        with pytest.raises(DemoFailure, match=f"/metrics lacks {name}"):
            await quiet_pages([url])


async def test_a_gateways_page_has_what_is_read_before_any_request(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    async with served(tmp_path, unused_tcp_port_factory) as up:
        assert len(await quiet_pages([up.gateway.admin_url])) == 1


async def test_requests_of_the_load_before_a_soak_are_not_its_own(unused_tcp_port: int) -> None:
    pages = [f'{COUNTERS}nightside_requests_total{{outcome="completed"}} {number}\n' for number in (7, 7, 9)]
    async with answering([(200, page) for page in pages], unused_tcp_port) as url:
        gateway = SimpleNamespace(child=SimpleNamespace(pid=1), admin=url)
        mesh: Any = SimpleNamespace(gateways={"us/gw": gateway})
        scenario: Any = None
        before = SoakPlay(mesh, scenario, lambda _: None)
        await before._read_gateways()
        played = SoakPlay(mesh, scenario, lambda _: None, before=before.lives)
        found = [before.ends]
        for _ in range(2):
            await played._read_gateways()
            found.append(played.ends)
        assert found == [{"us/gw": {"completed": 7}}, {"us/gw": {}}, {"us/gw": {"completed": 2}}]


def test_only_an_installed_tool_is_ready(tmp_path: Path) -> None:
    tools = "loadgen/studies/outside"
    for name in (".ci/setup-outside", f"{tools}/requirements.txt", f"{tools}/npm.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    nothing = "#!/bin/sh\n"
    for name, text in (
        (".ci/setup-tests", nothing), (".ci/setup-engines", nothing), ("python", PYTHON), ("npm", NPM)
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    asked, failing, folder = tmp_path / "asked", tmp_path / "failing", tmp_path / ".venv-outside"

    def install() -> list[str]:
        asked.write_text("")
        found = f"{tmp_path}:/usr/bin:/bin"
        command = ["env", f"PYTHON={tmp_path}/python", f"PATH={found}", "sh", ".ci/setup-outside"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return [Path(line).name for line in asked.read_text().split()]

    failing.write_text("guidellm\ncompatcanary\n")
    assert install() == ["aiperf", "guidellm", "schemathesis", "trustedrouter-provider-check", "compatcanary"]
    assert "ERROR: no guidellm==" in (folder / "unavailable-guidellm").read_text()
    assert "npm ERR! no compatcanary@" in (folder / "unavailable-compatcanary").read_text()
    assert install() == ["guidellm", "compatcanary"]
    failing.write_text("")
    assert install() == ["guidellm", "compatcanary"]
    assert not (folder / "unavailable-guidellm").exists()
    assert install() == []
