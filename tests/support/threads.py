"""A loop whose threads are taken, so that whatever is handed to one has yet to begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def threads_taken() -> Iterator[Callable[[], None]]:
    """Gives what frees the one thread; the end frees it too."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    taken = loop.run_in_executor(None, gate.wait)
    try:
        yield gate.set
    finally:
        gate.set()
        taken.cancel()
