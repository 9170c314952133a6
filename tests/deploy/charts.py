"""Renders the Helm chart with the real helm, and parses the result."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/nightside"
EXAMPLES = sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))
BIN = ROOT / ".venv-kubernetes/bin"
HELM, KUBECTL, PYTHON = BIN / "helm", BIN / "kubectl", BIN / "python"


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str

    @property
    def manifests(self) -> list[dict[str, Any]]:
        return [each for each in yaml.safe_load_all(self.text) if each]

    def all_of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = (each for each in self.all_of(kind) if each["metadata"]["name"] == name)
        return found


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True)


def of_example(example: Path) -> list[str]:
    """Arguments of helm for an example, as docs/how_to/operations.md gives them."""
    policy = ROOT / "policies" / example.name
    rules = ROOT / "deploy/prometheus/nightside.rules.yaml"
    files = {"policy": policy, "regions": ROOT / "policies/regions.yaml", "prometheusRules": rules}
    return [
        "--values",
        str(example),
        *(part for key, path in files.items() for part in ("--set-file", f"{key}={path}")),
    ]


def render(*arguments: str) -> Rendered:
    done = helm("template", "nightside", CHART, "--namespace", "mesh", *arguments)
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


def refusal(*arguments: str) -> str:
    done = helm("template", "nightside", CHART, "--namespace", "mesh", *arguments)
    assert done.returncode != 0, "it was rendered"
    return done.stderr
