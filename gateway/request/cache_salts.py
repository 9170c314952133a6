"""Which requests may meet in an engine's prefix cache, and the salt that keeps all others apart there.

The same in every region, so that a prompt is known wherever it was sent before: nothing here may depend on a gateway.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from gateway.config.sections import EngineCacheConfig
from gateway.core.vocabulary import TenantName
from gateway.request.bodies import Body
from gateway.request.legs import CacheSalt

_BYTES = 16
_PERSON = b"nightside-salt"
_TOGETHER = TenantName("\0together")
"""No tenant is called so."""
_NOBODYS = TenantName("")
_REMEMBERED_MAX = 4096


class CacheSalts:
    """What the region file says of tenants and caches. Our own knowledge of prompts is kept apart by `domain`, an
    engine's by `salt`, which says the same: whoever shares one shares the other."""

    def __init__(self, config: EngineCacheConfig, secret: str | None = None) -> None:
        """`secret` has to be the same in all regions. Without one, whoever can reach an engine without a gateway can
        work out any tenant's salt."""
        self._isolates = config.isolate_tenants
        self._shared = frozenset(map(TenantName, config.shared_tenants))
        self._key = b"" if secret is None else blake2b(secret.encode(), person=_PERSON).digest()
        self._salt = lru_cache(_REMEMBERED_MAX)(self._hashed)

    def domain(self, tenant: TenantName) -> TenantName:
        """Stands for all tenants that share with this one."""
        if not self._isolates:
            return _NOBODYS
        return _TOGETHER if tenant in self._shared else tenant

    def salt(self, tenant: TenantName, body: Body) -> CacheSalt | None:
        """For an engine's `cache_salt`, in place of the client's own; None where the body goes out as it came."""
        if not self._isolates or not body.fills_prefix_cache:
            return None
        return CacheSalt(self._salt(self.domain(tenant), body.salt), replaces_own=body.names_cache_salt)

    def _hashed(self, domain: TenantName, own: str | None) -> str:
        """Each field comes after its length, so that no two pairs look alike."""
        fields = (domain,) if own is None else (domain, own)
        raw = [field.encode("utf-8", "surrogatepass") for field in fields]
        framed = b"".join(len(each).to_bytes(4, "big") + each for each in raw)
        return blake2b(framed, digest_size=_BYTES, key=self._key, person=_PERSON).hexdigest()
