"""Real containers without a daemon: buildah builds the image, podman and crun run it. Needs root.

The base image is made here by mmdebstrap, since no registry is available: it holds Debian's own Python 3.11, and stands
in for the image that docs/how_to/operations.md names.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose/compose.yaml"
IMAGE = "localhost/nightside:local"
_BASE = "localhost/python-base"
_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_TRIES = 3
_RETRIES = 'Acquire::Retries "5"'
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_UNIFIED = "/sys/fs/cgroup/unified"
_UNDERSTOOD = {
    *("build", "cap_drop", "command", "depends_on", "entrypoint", "healthcheck", "image", "init", "ports", "read_only"),
    *("restart", "security_opt", "stop_grace_period", "ulimits", "volumes"),
}


class Containers:
    """Container tools whose state lies in one folder, run in a mount namespace of their own: on a machine with both
    versions of cgroups, crun may see only one of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holder: subprocess.Popen[bytes] | None = None

    @contextmanager
    def open(self) -> Iterator[Containers]:
        script = f"if [ -d {_UNIFIED} ]; then umount {_UNIFIED}; fi; echo; exec sleep infinity"
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        self._holder = holder
        try:
            self._everything_gone()  # removes the remains of a killed run: their addresses would count as in use
            yield self
        finally:
            self._everything_gone()
            holder.kill()
            holder.communicate()

    def _everything_gone(self) -> None:
        self.podman("rm", "--all", "--force", "--time", "0", check=False)
        self.podman("network", "rm", "--force", "mesh", check=False)
        with suppress(OSError):
            shutil.rmtree(self.folder / "run")
        self.buildah("rm", "--all", check=False)

    def podman(self, *arguments: str, check: bool = True, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        places = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        how = [
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "file",
            "--runtime",
            "crun",
            "--storage-driver",
            "overlay",
        ]
        networks = ["--network-config-dir", str(self.folder / "networks")]
        return self._inside(["podman", *places, *how, *networks, *arguments], check, timeout_s)

    def buildah(self, *arguments: str, check: bool = True, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        places = [
            "--root",
            str(self.folder / "store"),
            "--runroot",
            str(self.folder / "run"),
            "--storage-driver",
            "overlay",
        ]
        return self._inside(["buildah", *places, *arguments], check, timeout_s)

    def _inside(self, command: Sequence[str], check: bool, timeout_s: float) -> subprocess.CompletedProcess[str]:
        assert self._holder is not None, "open it first"
        entered = ["nsenter", "--mount", "--target", str(self._holder.pid), *command]
        done = subprocess.run(
            entered, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, stdin=subprocess.DEVNULL
        )
        assert not check or done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done

    # The image

    def base(self) -> str:
        """Name of an image with Python 3.11, by its digest. Made once per folder."""
        if self.podman("image", "exists", _BASE, check=False).returncode != 0:
            tree = self._tree_of_debian()
            (working,) = self.buildah("from", "scratch").stdout.split()
            self.buildah("add", "--quiet", working, str(tree), "/")
            self.buildah("commit", "--quiet", "--rm", working, _BASE)
        (digest,) = self.buildah("images", "--format", "{{.Digest}}", _BASE).stdout.split()
        return f"{_BASE}@{digest}"

    def _tree_of_debian(self) -> Path:
        """Folder with a Debian tree. Downloads fail at times, and a failed try leaves nothing that the next one can
        use.
        """
        asked = ["--variant=minbase", "--mode=root", f"--include={_PACKAGES}", f"--aptopt={_RETRIES}"]
        for number in range(_TRIES):
            tree = self.folder / f"base-{number}"
            shutil.rmtree(tree, ignore_errors=True)
            is_last = number == _TRIES - 1
            done = self._inside(["mmdebstrap", "--quiet", *asked, _SUITE, str(tree)], is_last, 300)
            if done.returncode == 0:
                return tree
        raise AssertionError("the last try was checked")

    def build(self, **arguments: str) -> subprocess.CompletedProcess[str]:
        """Build the whole Dockerfile with the given build arguments.

        The machine's certificate authorities and pip settings are mounted for the build, and are no part of the image.
        """
        pip = self.folder / "pip.conf"
        pip.write_text(f"[global]\ncert = {_AUTHORITIES}\n")
        shown = [f"{_AUTHORITIES}:{_AUTHORITIES}:ro", f"{pip}:/etc/pip.conf:ro"]
        told = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        volumes = [f"--volume={each}" for each in shown]
        how = ["--isolation", "chroot", "--format", "docker", "--layers=false", "--quiet"]
        return self.buildah(
            "bud",
            *how,
            *volumes,
            *told,
            "--file",
            str(ROOT / "deploy/image/Dockerfile"),
            "--tag",
            IMAGE,
            str(ROOT),
            check=False,
        )

    def inspect_image(self) -> dict[str, Any]:
        (found,) = json.loads(self.podman("image", "inspect", IMAGE).stdout)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True, slots=True)
class Service:
    """Service of compose.yaml, and podman's options for its keys."""

    name: str
    told: dict[str, Any]

    @property
    def grace_s(self) -> int:
        text = self.told["stop_grace_period"]
        assert text.endswith("s")
        return int(text[:-1])

    def arguments(self, address: str, hosts: dict[str, str]) -> list[str]:
        """Arguments of podman for this service. Names are resolved by a hosts file rather than DNS, and limits of open
        files are this machine's; docs/how_to/operations.md states both.
        """
        assert set(self.told) <= _UNDERSTOOD, f"{self.name}: {set(self.told) - _UNDERSTOOD} is not understood here"
        made = ["--name", self.name, "--network", "mesh", "--ip", address, "--cgroups", "disabled"]
        made += [f"--add-host={name}:{at}" for name, at in hosts.items()]
        made += ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
        if self.told.get("read_only"):
            made += ["--read-only", "--read-only-tmpfs=false"]
        made += [f"--cap-drop={each}" for each in self.told.get("cap_drop", [])]
        made += [f"--security-opt={each.replace(':true', '')}" for each in self.told.get("security_opt", [])]
        for volume in self.told.get("volumes", []):
            source, _, rest = volume.partition(":")
            place = str((COMPOSE.parent / source).resolve()) if source.startswith(".") else source
            made.append(f"--volume={place}:{rest}")
        if "entrypoint" in self.told:
            made.append(f"--entrypoint={json.dumps(self.told['entrypoint'])}")
        return [*made, IMAGE, *self.told.get("command", [])]


def services() -> dict[str, Service]:
    document = yaml.safe_load(COMPOSE.read_text())
    return {name: Service(name, told) for name, told in document["services"].items()}


def why_not_here() -> str:
    """Reason why containers cannot be run on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "containers without a daemon need root"
    missing = [each for each in ("buildah", "podman", "crun", "mmdebstrap") if shutil.which(each) is None]
    return f"there is no {', '.join(missing)} here" if missing else ""
