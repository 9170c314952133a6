"""Scripts that a machine runs at its first boot, run here with a cloud of a few shell scripts and a minimal package.

AWS calls that they make are compared with the permissions of a slot's role, both ways.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.conftest import Stacks
from tests.deploy.terraforming import TERRAFORM

CLOUDS = ["aws", "gcp", "azure"]
DISK_PATH = "/dev/disk/by-id/nightside"
REGION_FILE, POLICY = "gateway: us-east-1a\n", "version: 1\n"
SECRET = {"tls/peers.pem": "certificate one", "tls/peers.key": "key one", "keys.yaml": "keys: []\n"}

_PLAIN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$RECORD"
"""
_AWS = (
    _PLAIN
    + """
case "$1 $2" in
"s3api get-object") cp "$STORAGE/$6" "$7" ;;
"secretsmanager get-secret-value") cat "$STORAGE/secrets/$4" ;;
"ec2 attach-volume") mkdir -p "$NIGHTSIDE_ROOT/dev/disk/by-id" && touch "$NIGHTSIDE_ROOT$DISK_PATH" ;;
"autoscaling complete-lifecycle-action") ;;
*) exit 9 ;;
esac
"""
)
_CURL = (
    _PLAIN
    + """
out=/dev/stdout
for word; do
    [ "${before:-}" = -o ] && out="$word"
    before="$word"
done
url="$(printf %s "$word" | sed 's/%2F/\\//g')"
case "$url" in
*/latest/api/token) echo token ;;
*/meta-data/instance-id) echo i-1 ;;
*/meta-data/autoscaling/target-lifecycle-state) cat "$STORAGE/state" ;;
*/service-accounts/default/token | */identity/oauth2/token*) echo '{"access_token": "token"}' ;;
*/scheduledevents*) cat "$STORAGE/events" ;;
https://storage.googleapis.com/storage/v1/b/store/o/*alt=media) key="${url#*/o/}" && cp "$STORAGE/${key%\\?*}" "$out" ;;
https://store.example/config/*) cp "$STORAGE/${url#*/config/}" "$out" ;;
https://secretmanager.googleapis.com/v1/*) name="${url#*/v1/}" && cat "$STORAGE/secrets/${name%%/versions*}.gcp" ;;
https://vault.example/*) name="${url#*vault.example/}" && cat "$STORAGE/secrets/${name%\\?*}.azure" ;;
*) exit 9 ;;
esac
"""
)
STORE = {"aws": "store", "gcp": "store", "azure": "https://store.example/config"}
SECRETS = {"aws": ["one"], "gcp": ["one"], "azure": ["https://vault.example/one"]}


@dataclass
class Machine:
    """A folder that stands for a machine's root, and the cloud around it."""

    cloud: str
    root: Path
    storage: Path
    programs: Path
    record: Path

    def run(self, program: str, *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.programs}:{os.defpath}",
            "NIGHTSIDE_ROOT": str(self.root),
            "STORAGE": str(self.storage),
            "RECORD": str(self.record),
            "DISK_PATH": DISK_PATH,
            "DISK_TRIES": "1",
            "DISK_PAUSE_S": "0",
            "FAREWELL_PAUSE_S": "0",
            "GROUP": str(os.getgid()),
        }
        return subprocess.run([program], env=environment, input=stdin, capture_output=True, text=True, timeout=120)

    def boot(self) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.root / "usr/local/sbin/nightside-boot"))

    def fetch(self) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.root / "usr/local/sbin/nightside-material"))

    def etc(self, name: str) -> Path:
        return self.root / "etc/nightside" / name

    def calls(self, program: str) -> list[str]:
        return [each for each in self.record.read_text().splitlines() if each.startswith(f"{program} ")]

    def keep_secret(self, files: dict[str, str]) -> None:
        text = json.dumps(files)
        (self.storage / "secrets/one").write_text(text)
        data = base64.b64encode(text.encode()).decode()
        (self.storage / "secrets/one.gcp").write_text(json.dumps({"payload": {"data": data}}))
        (self.storage / "secrets/one.azure").write_text(json.dumps({"value": text}))

    def keep_package(self, says: str, *, pinned: str = "") -> None:
        folder = self.storage / "made" / says
        (folder / "wheels").mkdir(parents=True)
        (folder / "systemd").mkdir()
        (folder / "systemd/nightside-gateway.service").write_text("[Service]\n")
        (folder / "systemd/nightside.sysusers.conf").write_text("u nightside\n")
        with zipfile.ZipFile(folder / "wheels/nightside-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("nightside.py", f"print({says!r})\n")
            wheel.writestr("nightside-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nightside\nVersion: 1\n")
            wheel.writestr(
                "nightside-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr("nightside-1.dist-info/RECORD", "")
        path = self.storage / "packages" / f"{says}.tar.gz"
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, arcname=".")
        digest = pinned or hashlib.sha256(path.read_bytes()).hexdigest()
        (self.storage / "package").write_text(f"{digest} packages/{says}.tar.gz\n")


@pytest.fixture(scope="module")
def scripts(stack: Stacks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Boot scripts by cloud, as Terraform renders them."""
    terraform, found = stack("modules/machine"), {}
    for cloud in CLOUDS:
        given = tmp_path_factory.mktemp(cloud) / "variables.tfvars.json"
        variables = {
            "cloud": cloud,
            "role": "gateway",
            "manifest": "package",
            "objects": {"region.yaml": "gateways/us-east-1a/region.yaml", "policy.yaml": "policy.yaml"},
            "secrets": SECRETS[cloud],
            "has_farewell": cloud != "gcp",
            "environment": {
                "CLOUD_REGION": "us-east-1",
                "STORE": STORE[cloud],
                "DISK": "vol-1",
                "DISK_PATH": DISK_PATH,
                "GROUP_NAME": "nightside-us-east-1a",
                "IDENTITY": "identity",
            },
            "extra_files": {"/etc/collector.json": "{}"},
        }
        given.write_text(json.dumps(variables))
        terraform("apply", "-auto-approve", f"-var-file={given}").ok()
        found[cloud] = terraform.outputs()["script"]
    return found


@pytest.fixture(params=CLOUDS)
def machine(request: pytest.FixtureRequest, tmp_path: Path, scripts: dict[str, str]) -> Machine:
    """Machine whose package is already installed, since installing takes seconds."""
    found = made(request.param, tmp_path, scripts)
    digest = (found.storage / "package").read_text().split()[0]
    (found.root / "opt/nightside").mkdir(parents=True)
    (found.root / "opt/nightside/.package").write_text(f"{digest}\n")
    return found


def made(cloud: str, folder: Path, scripts: dict[str, str]) -> Machine:
    found = Machine(cloud, folder / "root", folder / "storage", folder / "bin", folder / "record")
    for each in (found.root, found.storage / "secrets", found.storage / "gateways/us-east-1a", found.programs):
        each.mkdir(parents=True)
    plain = dict.fromkeys(("systemctl", "systemd-sysusers", "mount", "mkfs.ext4", "chown"), _PLAIN)
    no = _PLAIN + "exit 1\n"
    for name, text in {**plain, "mountpoint": no, "blkid": no, "aws": _AWS, "curl": _CURL}.items():
        (found.programs / name).write_text(text)
        (found.programs / name).chmod(0o755)
    found.record.touch()
    (found.storage / "gateways/us-east-1a/region.yaml").write_text(REGION_FILE)
    (found.storage / "policy.yaml").write_text(POLICY)
    found.keep_secret(SECRET)
    found.keep_package("first")
    if cloud != "aws":  # other clouds' machines do not attach the disk themselves
        (found.root / DISK_PATH[1:]).parent.mkdir(parents=True)
        (found.root / DISK_PATH[1:]).touch()
    done = found.run("bash", stdin=scripts[cloud])
    assert done.returncode == 0, done.stderr
    return found


def says(machine: Machine) -> str:
    command: list[Path | str] = [machine.root / "opt/nightside/bin/python", "-I", "-m", "nightside"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_after_its_first_boot_it_serves(tmp_path: Path, scripts: dict[str, str], cloud: str) -> None:
    machine = made(cloud, tmp_path, scripts)
    assert machine.calls("systemctl")[0] == "systemctl daemon-reload"
    assert "nightside-boot.service nightside-material.timer" in machine.calls("systemctl")[1]
    done = machine.boot()
    assert done.returncode == 0, done.stderr
    assert says(machine) == "first"
    assert machine.etc("region.yaml").read_text() == REGION_FILE
    assert machine.etc("tls/peers.key").read_text() == "key one"
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in machine.etc("tls").iterdir()} == {
        "peers.key": "0o640",
        "peers.pem": "0o640",
    }
    assert (machine.root / "etc/systemd/system/nightside-gateway.service").exists()
    assert (machine.root / "usr/lib/sysusers.d/nightside.sysusers.conf").exists()
    assert (machine.root / "etc/collector.json").read_text() == "{}\n"
    (mounted,) = machine.calls("mount")
    assert mounted.endswith(f"{machine.root}{DISK_PATH} {machine.root}/var/lib/nightside")
    assert machine.calls("systemctl")[-1] == "systemctl enable --now --no-block nightside-gateway.service"


def test_a_disk_that_has_a_file_system_keeps_it(machine: Machine) -> None:
    (machine.programs / "blkid").write_text(_PLAIN)
    assert machine.boot().returncode == 0
    assert machine.calls("mkfs.ext4") == []


def test_what_has_changed_is_taken_in_and_nothing_else_is_touched(machine: Machine) -> None:
    machine.boot()
    before = machine.etc("policy.yaml").stat().st_ino
    machine.keep_secret(SECRET | {"tls/peers.key": "key two"})
    done = machine.fetch()
    assert (done.returncode, machine.etc("tls/peers.key").read_text()) == (0, "key two")
    assert "tls/peers.key is new" in done.stderr
    assert machine.etc("policy.yaml").stat().st_ino == before
    assert list(machine.etc("").rglob("*.new")) == []


def test_what_cannot_be_fetched_stays_as_it_was_and_is_told(machine: Machine) -> None:
    machine.boot()
    (machine.storage / "policy.yaml").unlink()
    machine.keep_secret(SECRET | {"keys.yaml": "new"})
    done = machine.fetch()
    assert (done.returncode, machine.etc("policy.yaml").read_text()) == (1, POLICY)
    assert "stays as it was: policy.yaml" in done.stderr
    assert machine.etc("keys.yaml").read_text() == "new", "the rest is taken in all the same"
    assert machine.boot().returncode == 0, "a machine that starts again lives by what it has"


@pytest.mark.parametrize("name", ["region.yaml", "../passwd", "tls/../../x", "/etc/passwd", "tls/.hidden"])
def test_a_secret_puts_no_file_where_it_does_not_belong(tmp_path: Path, scripts: dict[str, str], name: str) -> None:
    machine = made("gcp", tmp_path, scripts)
    machine.keep_secret({name: "x"})
    done = machine.fetch()
    assert done.returncode == 1
    assert f"may not hold a file called {name!r}" in done.stderr
    assert {path.read_text() for path in machine.root.rglob("*") if path.is_file()} & {"x"} == set()


def test_another_package_is_installed_at_the_next_boot_and_only_if_it_is_the_one(
    tmp_path: Path, scripts: dict[str, str]
) -> None:
    machine = made("aws", tmp_path, scripts)
    machine.boot()
    machine.keep_package("forged", pinned="0" * 64)
    done = machine.boot()
    assert (done.returncode, says(machine)) == (1, "first")
    assert "not the one that is pinned" in done.stderr
    machine.keep_package("second")
    assert (machine.boot().returncode, says(machine)) == (0, "second")


# Permissions of a slot in AWS


def test_before_aws_ends_it_it_drains(tmp_path: Path, scripts: dict[str, str]) -> None:
    machine = made("aws", tmp_path, scripts)
    (machine.storage / "state").write_text("Terminated")
    done = machine.run(str(machine.root / "usr/local/sbin/nightside-farewell"))
    assert done.returncode == 0, done.stderr
    assert [each.split()[:2] for each in machine.record.read_text().splitlines() if not each.startswith("curl")][
        -2:
    ] == [
        ["systemctl", "stop"],
        ["aws", "autoscaling"],
    ]


def test_before_azure_ends_it_it_drains(tmp_path: Path, scripts: dict[str, str]) -> None:
    machine = made("azure", tmp_path, scripts)
    event = {"EventId": "E-1", "EventType": "Terminate"}
    (machine.storage / "events").write_text(json.dumps({"Events": [event]}))
    done = machine.run(str(machine.root / "usr/local/sbin/nightside-farewell"))
    assert done.returncode == 0, done.stderr
    stopped = machine.record.read_text().index("systemctl stop nightside-gateway.service")
    assert machine.record.read_text().index('{"StartRequests": [{"EventId": "E-1"}]}') > stopped


def test_its_role_allows_what_it_asks_of_aws_and_nothing_else(tmp_path: Path, scripts: dict[str, str]) -> None:
    machine = made("aws", tmp_path, scripts)
    machine.boot()
    (machine.storage / "state").write_text("Terminated")
    machine.run(str(machine.root / "usr/local/sbin/nightside-farewell"))
    asked = {tuple(each.split()[1:3]) for each in machine.calls("aws")}
    as_actions = {f"{service.removesuffix('api')}:{command.title().replace('-', '')}" for service, command in asked}
    rights = (TERRAFORM / "modules/slot/aws/rights.tf").read_text()
    given_keys = {"kms:Decrypt"}  # AWS checks it on behalf of a caller that fetches encrypted objects
    allowed = {action for line in re.findall(r"Action\s+= \[(.*)\]", rights) for action in re.findall(r'"(.*?)"', line)}
    assert as_actions == allowed - given_keys
