from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loadgen.bench.decode import child

ROOT = Path(__file__).parents[5]
ASK = """
import sys
from pathlib import Path
from loadgen.bench.decode.child import import_sources_only
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
import_sources_only(folder)
import compiled_thing
import math, _json, numpy  # whatever lies elsewhere is found as ever
print(compiled_thing.IT_IS)
"""


def test_a_compiled_module_is_passed_over_for_its_source(tmp_path: Path) -> None:
    (tmp_path / "compiled_thing.py").write_text("IT_IS = 'plain'\n")
    (tmp_path / "compiled_thing.abi3.so").write_bytes(b"not one at all")
    result = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (result.stdout, result.stderr) == ("plain\n", "")
    assert Path(child.__file__).is_relative_to(ROOT)
