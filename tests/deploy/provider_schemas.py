"""Schemas of Terraform's providers, read out of the packages that cdktn generates from them: each argument of each
resource with its type, and whether it is required, optional or computed.

A package holds JavaScript in one fixed form, which is read by patterns; none of it is run. Checks that a provider makes
by itself (formats, enumerations, arguments that exclude each other) are not in a schema, and not here.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Block = dict[str, Any]
"""Block of a schema: `attributes` and `blocks`, by name."""

_SIMPLE = {
    "getStringAttribute": "string",
    "getNumberAttribute": "number",
    "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"],
    "getNumberListAttribute": ["list", "number"],
    "getStringMapAttribute": ["map", "string"],
    "getNumberMapAttribute": ["map", "number"],
    "getBooleanMapAttribute": ["map", "bool"],
    "getAnyMapAttribute": ["map", "dynamic"],
}
_STORED = {
    "string": "string",
    "boolean": "bool",
    "number": "number",
    "stringList": ["list", "string"],
    "stringMap": ["map", "string"],
}
_TOP = {"TerraformResource": "resource", "TerraformDataSource": "data", "TerraformProvider": "provider"}
_CLASS = re.compile(r"^class (\w+) extends cdkt[fn]\.(\w+) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
_ARGUMENT = re.compile(
    r"^    // (\w+) - computed: (true|false), optional: (true|false), required: (true|false)\n"
    r"(.*?)(?=^    // \w+ - computed:|^    // ===|\Z)",
    re.MULTILINE | re.DOTALL,
)
_WRITTEN = re.compile(
    r"^ {8,12}(\w+): \{\n\s+value: (.*?),\n\s+isBlock: (true|false),\n"
    r"\s+type: \"(\w+)\",\n\s+storageClassType: \"(\w+)\",",
    re.MULTILINE | re.DOTALL,
)
_WRITER = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)


@dataclass
class Schema:
    source: str
    """Source address, as in `required_providers`."""
    version: str
    provider: Block
    resource: dict[str, Block] = field(default_factory=dict)
    data: dict[str, Block] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file atomically: other processes may be reading it."""
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_bytes(gzip.compress(json.dumps(vars(self), separators=(",", ":")).encode(), mtime=0))
        made.replace(path)


def read_schema(wheel: Path, types: Collection[str]) -> Schema:
    """Schema of the provider and of the resources and data sources among `types`; unknown types are left out."""
    archive = zipfile.ZipFile(wheel)
    name = next(each for each in archive.namelist() if each.endswith(".jsii.tgz"))
    found = Schema("", "", {"attributes": {}, "blocks": {}})
    ends = {each.split("_", 1)[1].replace("_", "-") for each in types}
    with tarfile.open(fileobj=io.BytesIO(archive.read(name))) as package:
        for member in package:
            parts = member.name.split("/")
            if member.name == "package/package.json":
                said = json.loads(_text(package, member))
                about = (said.get("cdktn") or said["cdktf"])["provider"]
                found.source, found.version = about["name"], about["version"]
            elif len(parts) == 4 and parts[1] == "lib" and parts[3] == "index.js" and _may_be(parts[2], ends):
                for kind, type_name, block in _types_in(_text(package, member)):
                    if kind == "provider":
                        found.provider = block
                    elif type_name in types:
                        getattr(found, kind)[type_name] = block
    return found


def _may_be(folder: str, ends: Collection[str]) -> bool:
    """True if a folder may hold one of the wanted types; reading all folders takes ten times as long.

    Folders are named after types, except where a type's name would not do as a folder's name.
    """
    plain = folder.removeprefix("data-").split("-", 1)
    return folder == "provider" or folder in ends or plain[-1] in ends or any(folder.endswith(each) for each in ends)


def _text(package: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = package.extractfile(member)
    assert content is not None, member.name
    return content.read().decode()


def _types_in(source: str) -> Iterator[tuple[str, str, Block]]:
    file = _File(source)
    for name, (kind, text) in file.classes.items():
        if kind in _TOP and (found := re.search(r'static tfResourceType = "(\w+)"', text)):
            block = file.block(name)
            if _TOP[kind] == "provider":
                file.complete_provider(block, text)
            yield _TOP[kind], found[1], block


class _File:
    """One generated file: a class for each block, and a function that serialises it."""

    def __init__(self, source: str) -> None:
        self.classes = {each[1]: (each[2], each[3]) for each in _CLASS.finditer(source)}
        self._writers = {each[1].lower(): each[2] for each in _WRITER.finditer(source)}

    def block(self, name: str, path: tuple[str, ...] = ()) -> Block:
        out: Block = {"attributes": {}, "blocks": {}}
        if name in path:  # a recursive type would never end
            return out
        kind, text = self.classes[name]
        writer = text if kind in _TOP else self._writers.get(name.removesuffix("OutputReference").lower(), "")
        is_block = {each[1]: each[3] == "true" for each in _WRITTEN.finditer(writer)}
        for said in _ARGUMENT.finditer(text):
            flags = {
                word: True
                for word, is_so in zip(("computed", "optional", "required"), said.groups()[1:4], strict=True)
                if is_so == "true"
            }
            self._add(out, said[1], flags, said[5], is_block=is_block, path=(*path, name))
        return out

    def _add(
        self,
        out: Block,
        argument: str,
        flags: dict[str, bool],
        text: str,
        *,
        is_block: dict[str, bool],
        path: tuple[str, ...],
    ) -> None:
        inner = re.search(r"new (\w+?)(List|Map|OutputReference)\(this, \"" + argument + r'"(?:, (true|false))?', text)
        if inner is None:
            out["attributes"][argument] = {**flags, "type": _type_of(text, is_written=argument in is_block)}
            return
        nesting = {"List": "set" if inner[3] == "true" else "list", "Map": "map", "OutputReference": "single"}[inner[2]]
        name = f"{inner[1]}OutputReference"
        block = self.block(name if name in self.classes else inner[1] + inner[2], path)
        if argument == "timeouts":
            out["blocks"][argument] = {"nesting": "single", "max": 0, "min": 0, "block": block}
        elif is_block.get(argument):
            is_one = nesting == "single"
            out["blocks"][argument] = {
                "nesting": "list" if is_one else nesting,
                "max": 1 if is_one else 0,
                "min": 1 if "required" in flags else 0,
                "block": block,
            }
        else:
            out["attributes"][argument] = {**flags, "nested": {"nesting": nesting, "block": block}}

    def complete_provider(self, block: Block, text: str) -> None:
        """Add the provider's own arguments, whose class has no getters that tell their types."""
        for written in _WRITTEN.finditer(text):
            argument, _value, is_block, nesting, stored = written.groups()
            if is_block == "true":
                block["attributes"].pop(argument, None)
                block["blocks"][argument] = self._written_block(nesting, stored)
            elif block["attributes"].get(argument, {}).get("type") == "dynamic":
                block["attributes"][argument]["type"] = _STORED.get(stored, "dynamic")
        block["attributes"].pop("alias", None)  # an argument of Terraform itself

    def _written_block(self, nesting: str, stored: str) -> Block:
        inner: Block = {"attributes": {}, "blocks": {}}
        for argument, _, is_block, its_nesting, its_stored in _WRITTEN.findall(
            self._writers.get(stored.removesuffix("List").lower(), "")
        ):
            if is_block == "true":
                inner["blocks"][argument] = self._written_block(its_nesting, its_stored)
            else:
                inner["attributes"][argument] = {"optional": True, "type": _STORED.get(its_stored, "dynamic")}
        return {"nesting": nesting if nesting in {"list", "set"} else "list", "max": 0, "min": 0, "block": inner}


def _type_of(text: str, *, is_written: bool) -> Any:
    if found := re.search(r"cdkt[fn]\.(String|Number|Boolean)Map\(this", text):
        return ["map", {"String": "string", "Number": "number", "Boolean": "bool"}[found[1]]]
    getter = re.search(r"this\.(get\w+Attribute)\(", text)
    if getter is None:
        tells = "Input() {" in text or "Attribute" in text or "interpolation" in text
        return "string" if is_written and not tells else "dynamic"
    found_type = _SIMPLE.get(getter[1], "dynamic")
    if isinstance(found_type, list) and found_type[0] == "list" and "Fn.tolist(" in text:
        return ["set", found_type[1]]
    return found_type
