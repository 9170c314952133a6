"""An event loop whose only worker thread is occupied, so that work handed to a thread does not begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def threads_taken() -> Iterator[Callable[[], None]]:
    """Occupy the thread; yields a function that frees it. The end of the block frees it as well."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    gate = threading.Event()
    taken = loop.run_in_executor(None, gate.wait)
    try:
        yield gate.set
    finally:
        gate.set()
        taken.cancel()
