"""Tables at the end of each module's README: its variables and outputs, generated from the module's files.

`python -m tests.deploy.readme_tables` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.deploy.terraforming import TERRAFORM

MARK = "<!-- inputs and outputs -->"
_BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}$', re.MULTILINE | re.DOTALL)
_DESCRIPTION = re.compile(r'^  description\s*=\s*(?:"([^\n]*)"|<<-END\n(.*?)^  END)$', re.MULTILINE | re.DOTALL)


def readmes() -> Iterator[Path]:
    yield from sorted(path for path in TERRAFORM.rglob("README.md") if (path.parent / "variables.tf").exists())


def with_tables(readme: Path) -> str:
    text = readme.read_text()
    head = text.partition(MARK)[0]
    folder = readme.parent
    inputs = "".join(_inputs((folder / "variables.tf").read_text()))
    outputs = "".join(
        f"| `{name}` | {_said(body)} |\n" for _, name, body in _BLOCK.findall((folder / "outputs.tf").read_text())
    )
    return (
        f"{head}{MARK}\n\n| variable | type | without it | what it is |\n|---|---|---|---|\n{inputs}"
        f"\n| output | what it is |\n|---|---|\n{outputs}"
    )


def _inputs(text: str) -> Iterator[str]:
    for _, name, body in _BLOCK.findall(text):
        yield f"| `{name}` | `{_type(body)}` | {_default(body)} | {_said(body)} |\n"


def _type(body: str) -> str:
    found = re.search(r"^  type\s*=\s*(.*?)(?=^  \w+\s*=|^  validation|\Z)", body, re.MULTILINE | re.DOTALL)
    assert found, body
    words = re.sub(r"\s*\n\s*", ", ", found[1].strip())
    return re.sub(r"\s+", " ", words.replace("{, ", "{ ").replace(", }", " }")).replace("|", "\\|")


def _default(body: str) -> str:
    found = re.search(r"^  default\s*=\s*(.*?)(?=^  \w+\s*=|^  validation|\Z)", body, re.MULTILINE | re.DOTALL)
    return f"`{' '.join(found[1].split())}`" if found else "required"


def _said(body: str) -> str:
    found = _DESCRIPTION.search(body)
    assert found, f"nothing is said of it: {body}"
    text = found[1] if found[1] is not None else " ".join(found[2].split())
    return text.replace('\\"', '"').replace("|", "\\|")


if __name__ == "__main__":
    for each in readmes():
        each.write_text(with_tables(each))
