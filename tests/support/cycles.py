"""Objects that only the collector of cycles can free."""

from __future__ import annotations

import gc
from collections.abc import Callable


def left_in_cycles(run: Callable[[], object], *kinds: type) -> list[str]:
    """Names of the types among `kinds` of which `run` leaves objects in a circle of references. What it returns is kept
    meanwhile.
    """
    gc.collect()
    gc.disable()
    flags = gc.get_debug()
    try:
        kept = run()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert kept is not None, "it returns what lives on"
        return sorted({type(each).__name__ for each in gc.garbage if isinstance(each, kinds)})
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        gc.enable()
