"""The bundle, one file that machines install: made by its own script, though not compiled, and installed as machines
do.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.deploy.terraforming import ROOT


def test_it_holds_all_that_a_machine_installs(tmp_path: Path) -> None:
    file = tmp_path / "nightside.tar.gz"
    environment = {**os.environ, "NIGHTSIDE_COMPILE": ""}  # noqa: TID251 - where packages come from
    done = subprocess.run([ROOT / "deploy/bundle/make", file], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == hashlib.sha256(file.read_bytes()).hexdigest()
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    wheels = {canonicalize_name(path.name.split("-")[0]) for path in (tmp_path / "wheels").iterdir()}
    of_other_systems = {"colorama", "tzdata", "winloop"}
    assert {canonicalize_name(each) for each in pinned} - of_other_systems | {"nightside"} == wheels
    assert {path.name for path in (tmp_path / "systemd").iterdir()} == {
        "nightside-gateway.service",
        "nightside-gateway@.service",
        "nightside-controller.service",
        "nightside-host-watch.service",
        "nightside.sysusers.conf",
    }

    home = tmp_path / "opt"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    install: list[str | Path] = [home / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    install += sorted((tmp_path / "wheels").iterdir())
    subprocess.run(install, check=True)
    checked = subprocess.run(
        [home / "bin/nightside", "gateway", "check", ROOT / "docs/examples/smallest.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
