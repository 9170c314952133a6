from __future__ import annotations

import sys

import pytest

from gateway.state.processes import ProcessFailed, run_process


async def test_what_it_said_last_is_told_when_it_fails() -> None:
    await run_process([sys.executable, "-c", "print('fine')"], 60)
    told = "import sys; sys.stderr.write('x' * 9000 + 'why'); sys.exit(3)"
    with pytest.raises(ProcessFailed, match=r"^exit status 3: x{1,1997}why$"):
        await run_process([sys.executable, "-c", told], 60)


async def test_it_ends_with_its_time() -> None:
    with pytest.raises(ProcessFailed, match=r"longer than 0\.05 s"):
        await run_process([sys.executable, "-c", "import time; time.sleep(600)"], 0.05)
