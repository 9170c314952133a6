"""Plays settings without a cached result of the same code and the same files, and caches each as soon as it is done, so
that a run can be stopped and continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

from loadgen.figures import Figures
from loadgen.simulator.sweep import all_done
from loadgen.studies.balanceroute import world
from loadgen.studies.balanceroute.loads import LOADS, asked, find_file, present
from loadgen.studies.balanceroute.world import Setting
from loadgen.studies.cache import CellCache
from loadgen.studies.sources import version_of

Results = dict[Setting, Figures]


def play_settings(
    settings: Sequence[Setting],
    cache_folder: Path,
    traces: Path | None,
    *,
    processes: int,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Results:
    """Figures of the settings. Raises TraceError, before anything is played, where a file is missing."""
    code = _code_version()
    kept = CellCache(cache_folder, code)
    keys = {setting: _key_of(setting, code, traces) for setting in dict.fromkeys(settings)}
    found = {setting: figures for setting, key in keys.items() if (figures := kept.find(key)) is not None}
    missing = [setting for setting in keys if setting not in found]
    on_progress(len(found), len(keys))
    for setting, figures in all_done(partial(_played, traces), missing, processes=processes):
        kept.keep(keys[setting], figures)
        found[setting] = figures
        on_progress(len(found), len(keys))
    return found


def remembered(name: str, module: str, cache_folder: Path, traces: Path | None, made: Callable[[], str]) -> str:
    """Text cached for the same code and the same files, or made by calling `made`."""
    kept = CellCache(cache_folder, "")
    files = [_files_of(load, traces) for load in present(traces)]
    key = blake2b(json.dumps([name, version_of(module), files]).encode(), digest_size=20).hexdigest()
    found = kept.find(key)
    if found is None:
        found = {"text": made()}
        kept.keep(key, found)
    return str(found["text"])


def _played(traces: Path | None, setting: Setting) -> Figures:
    return world.play(setting, asked(LOADS[setting.load], traces))


@cache
def _code_version() -> str:
    """Version of all code that figures depend on."""
    return f"{sys.implementation.cache_tag} {version_of(world.__name__)}"


def _key_of(setting: Setting, code: str, traces: Path | None) -> str:
    text = json.dumps([code, asdict(setting), _files_of(setting.load, traces)], sort_keys=True)
    return blake2b(text.encode(), digest_size=20).hexdigest()


@cache
def _files_of(load: str, traces: Path | None) -> list[str]:
    return [
        blake2b(find_file(traces, pattern).read_bytes(), digest_size=20).hexdigest() for pattern in LOADS[load].patterns
    ]
