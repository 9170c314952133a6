"""Terraform on a copy of terraform/, with stand-ins in place of the clouds' providers."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy.provider_schemas import Schema, read_schema

ROOT: Final = Path(__file__).parents[2]
TERRAFORM: Final = ROOT / "terraform"
TOOLS: Final = ROOT / ".venv-deploy"
PYTHON: Final = TOOLS / "bin/python"
HERE: Final = Path(__file__).parent
_HOST = "registry.terraform.io"
_LIMIT_S = 300
_TYPE = re.compile(r'^\s*(?:resource|data)\s+"(\w+)"', re.MULTILINE)
_WHEELS = {
    "aws": "cdktn_provider_aws-*.whl",
    "google": "cdktn_provider_google-*.whl",
    "azurerm": "cdktn_provider_azurerm-*.whl",
}
_BACKEND = 'terraform {\n  backend "local" {}\n}\n'


@dataclass(frozen=True)
class Ran:
    status: int
    said: str
    """Output on both streams, without colours."""

    def ok(self) -> str:
        assert self.status == 0, self.said
        return self.said


@dataclass(frozen=True)
class Terraform:
    """Terraform in one folder of configuration, and the config that says where providers are found."""

    folder: Path
    command_line_config: Path

    def __call__(self, command: str, *arguments: str, **environment: str) -> Ran:
        done = subprocess.run(
            [PYTHON, HERE / "terraform_command.py", self.folder, command, *arguments],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.command_line_config.parent),
                "CHECKPOINT_DISABLE": "1",
                "TF_CLI_CONFIG_FILE": str(self.command_line_config),
                "TF_IN_AUTOMATION": "1",
                "TF_INPUT": "0",
                "TF_CLI_ARGS": "-no-color",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        return Ran(done.returncode, done.stdout)

    def shown(self, plan: str | None = None) -> dict[str, Any]:
        """The state, or a plan, in Terraform's JSON form."""
        said = self("show", "-json", *([plan] if plan else [])).ok()
        found: dict[str, Any] = json.loads(said[said.index("{") :])
        return found

    def outputs(self) -> dict[str, Any]:
        said = self("output", "-json").ok()
        found: dict[str, dict[str, Any]] = json.loads(said[said.index("{") :])
        return {name: each["value"] for name, each in found.items()}


def types_used(folder: Path) -> set[str]:
    return {name for path in folder.rglob("*.tf") for name in _TYPE.findall(path.read_text())}


def schemas(types: set[str]) -> dict[str, Path]:
    """Files with the schemas of these types, by provider; cached, since reading them takes some ten seconds."""
    found = {}
    for provider, pattern in _WHEELS.items():
        wheel = next(iter(sorted((TOOLS / "schemas").glob(pattern))))
        wanted = sorted(each for each in types if each.startswith(f"{provider}_"))
        which = [wheel.name, *wanted, (HERE / "provider_schemas.py").read_text()]
        path = TOOLS / "schemas" / f"{provider}-{hashlib.sha256(chr(10).join(which).encode()).hexdigest()[:16]}.json.gz"
        if not path.exists():
            schema = read_schema(wheel, wanted)
            assert schema.version, f"{wheel.name} tells no schema"
            schema.write(path)
        found[provider] = path
    return found


def schema_in(path: Path) -> Schema:
    import gzip  # noqa: PLC0415

    return Schema(**json.loads(gzip.decompress(path.read_bytes())))


def mirror_of_stand_ins(folder: Path, found: Mapping[str, Path]) -> Path:
    """Config of Terraform's command line that lets it find the stand-ins only."""
    for provider, path in found.items():
        version = schema_in(path).version
        place = folder / "mirror" / _HOST / "hashicorp" / provider / version / "linux_amd64"
        place.mkdir(parents=True)
        program = place / f"terraform-provider-{provider}_v{version}"
        program.write_text(f'#!/bin/sh\nexec "{PYTHON}" "{HERE / "stand_in_provider.py"}" "{path}"\n')
        program.chmod(0o755)
    return command_line_config(folder)


def command_line_config(folder: Path) -> Path:
    config = folder / "terraform.rc"
    config.write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path    = "{folder / "mirror"}"\n'
        f'    include = ["{_HOST}/*/*"]\n  }}\n}}\n'
    )
    return config


def copied(folder: Path) -> Path:
    """A copy of all of terraform/, with local state files."""
    shutil.copytree(TERRAFORM, folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    for versions in folder.rglob("versions.tf"):
        if 'backend "' in versions.read_text():
            (versions.parent / "backend_override.tf").write_text(_BACKEND)
    return folder
