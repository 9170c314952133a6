from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.rounds import rounds_of

AREA = "tests/unit/gateway/core"
DIGEST = "tests/simulation/test_decision_digest.py"
FILES = {
    f"{AREA}/kernel/test_slots.py": "",
    f"{AREA}/kernel/test_timers.py": "",
    f"{AREA}/test_gateway_core.py": "from gateway.core.kernel.slots_of_others import Slots",
    "tests/unit/gateway/door/test_call.py": "from gateway.core.kernel.slots import Slots",
    "tests/unit/gateway/door/test_routes.py": "",
    "tests/simulation/test_chaos.py": "import gateway.core.kernel.slots",
    DIGEST: "",
}


@pytest.mark.parametrize(
    ("path", "rounds"),
    [
        (
            "gateway/core/kernel/slots.py",
            [
                [f"{AREA}/kernel/test_slots.py"],
                [f"{AREA}/test_gateway_core.py"],
                ["tests/unit/gateway/door/test_call.py", f"{AREA}/kernel/test_timers.py"],
                [DIGEST, "tests/simulation/test_chaos.py"],
            ],
        ),
        (
            "gateway/core/kernel/legs.py",
            [
                [],
                [f"{AREA}/test_gateway_core.py"],
                [f"{AREA}/kernel/test_timers.py", f"{AREA}/kernel/test_slots.py"],
                [DIGEST],
            ],
        ),
    ],
)
def test_the_nearest_tests_run_first_and_each_once(tmp_path: Path, path: str, rounds: list[list[str]]) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert list(rounds_of(path, tmp_path)) == rounds
