"""*One region* of the README, followed to the letter on a machine without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.support.walk import ROOT, Block, is_as_shown, run

SECTION = (ROOT / "README.md").read_text().partition("## One region")[2].partition("\n## ")[0]
ASK = """curl --silent --fail-with-body --header 'content-type: application/json' \\
  --data '{"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}' \\
  %s/v1/chat/completions | grep -o '"finish_reason":"length"'
"""


async def test_one_region_can_be_followed_without_a_gpu(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    (file,) = re.findall(r"^```yaml\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^```sh\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)[0]
    engine, http, peers, admin = (unused_tcp_port_factory() for _ in range(4))
    listen = f"listen: {{http: '127.0.0.1:{http}', peers: '127.0.0.1:{peers}', admin: '127.0.0.1:{admin}'}}\n"
    (tmp_path / "us.yaml").write_text(file.replace(":8000", f":{engine}") + listen)
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    here = commands.replace("8000", str(engine)).replace("status", f"status --admin http://127.0.0.1:{admin}")
    _, answered = await run([Block(here, None), Block(ASK % f"http://127.0.0.1:{http}", None)], tmp_path)
    assert is_as_shown(answered, '…\n"finish_reason":"length"\n…\n')
