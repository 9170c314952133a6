"""Finds the project's files on which a module depends: its own, those of all modules that it imports, and data files
beside them. It reads them and runs none."""

from __future__ import annotations

import ast
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PARSED_MAX = 1_024
"""Sources whose imports are remembered: most modules of a study are modules of the next one as well."""


def version_of(module: str, root: Path = _ROOT) -> str:
    """Digest of all sources of a module."""
    digest = blake2b(digest_size=20)
    for file in sources_of(module, root):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(file.read_bytes())
    return digest.hexdigest()


def sources_of(module: str, root: Path = _ROOT) -> list[Path]:
    """Files beneath `root` that make up the module, in the order of their names. Imports inside functions, imports for
    types only, and all YAML files in a module's folder count as well: a superset is safe."""
    found: dict[str, Path | None] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = file = _file_of(name, root)
        if file is not None:
            waiting += _imported_by(file.read_bytes())
            waiting += name.rpartition(".")[:1] if "." in name else ()
    modules = {file for file in found.values() if file is not None}
    data = {file for folder in {module.parent for module in modules} for file in folder.glob("*.yaml")}
    return sorted(modules | data)


def _file_of(name: str, root: Path) -> Path | None:
    """File of a module; None for modules of other projects, and for names that are no modules."""
    place = root.joinpath(*name.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@lru_cache(maxsize=_PARSED_MAX)
def _imported_by(source: bytes) -> tuple[str, ...]:
    """Names imported by a source; `from a import b` may mean the module `a.b`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{ast.unparse(node)}: imports are absolute here"
            assert node.level == 0, f"{ast.unparse(node)}: imports are absolute here"
            found.append(node.module)
            found += (f"{node.module}.{each.name}" for each in node.names)
    return tuple(found)
