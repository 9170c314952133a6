"""The commands of README, followed to the letter on a machine without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.walk import ROOT, Block, blocks_of, is_as_shown, run

PAGE = (ROOT / "README.md").read_text()
ASK = """curl --silent --fail-with-body --header 'content-type: application/json' \\
  --data '{"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}' \\
  %s/v1/chat/completions | grep -o '"finish_reason":"length"'
"""


@pytest.mark.slow
async def test_every_command_runs_as_it_is_printed(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    (file,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    engine, http, peers, admin, grpc, orders = (str(unused_tcp_port_factory()) for _ in range(6))
    listen = f"listen: {{http: '127.0.0.1:{http}', peers: '127.0.0.1:{peers}', admin: '127.0.0.1:{admin}'}}\n"
    (tmp_path / "us.yaml").write_text(file.replace(":8000", f":{engine}") + listen)
    elsewhere = {  # the page's ports may be taken on this machine, and default ports are not printed
        "8000": engine,
        "127.0.0.1:8080": f"127.0.0.1:{http}",
        "gateway status": f"gateway status --admin http://127.0.0.1:{admin}",
        "ctl status": f"ctl status --admin http://127.0.0.1:{orders}",
        "controller.db}": f"controller.db}}\\nlisten: {{grpc: 127.0.0.1:{grpc}, admin: 127.0.0.1:{orders}}}",
    }
    blocks = [Block(moved(block.commands, elsewhere), None) for block in blocks_of(PAGE)]
    assert len(blocks) == 4
    *_, tried, asked = await run([*blocks, Block(ASK % f"http://127.0.0.1:{http}", None)], tmp_path)
    assert "Lowest TTFT, p90: nightside" in tried
    assert (tmp_path / "out/sim/report.html").exists()
    assert (tmp_path / "out/load/report.html").exists()
    assert is_as_shown(asked, '…\n"finish_reason":"length"\n…\n')


def moved(commands: str, elsewhere: dict[str, str]) -> str:
    for printed, here in elsewhere.items():
        commands = commands.replace(printed, here)
    return commands
