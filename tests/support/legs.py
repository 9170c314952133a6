"""Common parts of test legs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

from gateway.request.answers import TokenUsage


class Pouring(ABC):
    """A leg that hands on its chunks one after the other."""

    counted: TokenUsage | None = None

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]: ...

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        async for data in self.chunks():
            if not take(data):
                return False
        return True
