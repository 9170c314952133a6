"""Map stored responses to the targets that made them, so that requests that refer to a response reach its target.
Bounded; the least recently used entry is dropped first."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from gateway.core.vocabulary import Target, TenantName

_KEY_BYTES = 16


def stored_response_key(tenant: TenantName, response_id: str) -> str:
    """Key of a stored response, as edges put it into `follows` and `ResponseStored`. A tenant cannot guess another's
    key: the hash is cryptographic, and the tenant's name is framed by its length."""
    fields = (tenant.encode("utf-8", "surrogatepass"), response_id.encode("utf-8", "surrogatepass"))
    return blake2b(len(fields[0]).to_bytes(4, "big") + b"".join(fields), digest_size=_KEY_BYTES).hexdigest()


class StoredResponses:
    """Target of each stored response. Keys are hashes of tenant and response id, so one tenant cannot reach
    another's."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._target_of: OrderedDict[str, Target] = OrderedDict()

    def __len__(self) -> int:
        return len(self._target_of)

    def configure(self, count_max: int) -> None:
        self._count_max = count_max
        self._forget_oldest()

    def put(self, key: str, target: Target) -> None:
        self._target_of[key] = target
        self._target_of.move_to_end(key)
        self._forget_oldest()

    def get(self, key: str) -> Target | None:
        target = self._target_of.get(key)
        if target is not None:
            self._target_of.move_to_end(key)
        return target

    def _forget_oldest(self) -> None:
        while len(self._target_of) > self._count_max:
            self._target_of.popitem(last=False)
