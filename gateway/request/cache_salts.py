"""Cache salts: which tenants may share prefixes in an engine's cache, and the salt that keeps the others apart.

Salts are the same in every region, so that a prefix is found wherever it was sent before: they must not depend on a
gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from gateway.core.vocabulary import TenantName
from gateway.request.bodies import Body
from gateway.request.legs import CacheSalt

_BYTES = 16
_PERSON = b"nightside-salt"
_TOGETHER = TenantName("\0together")
"""Domain of all tenants that share a cache; no tenant can have this name."""
_NO_DOMAIN = TenantName("")
_REMEMBERED_MAX = 4096
_REMEMBERED_LENGTH_MAX = 128
"""Length of a client's own salt up to which its hash is remembered; a longer one would take much memory."""


class CacheSalts:
    """Cache isolation from the region file. This gateway's own prefix index is kept apart by `domain`, an engine's
    cache by `salt`: tenants that share one share the other."""

    def __init__(
        self, secret: str | None = None, *, isolate_tenants: bool = True, shared_tenants: Iterable[str] = ()
    ) -> None:
        """`secret` has to be the same in all regions. Without one, any client with direct access to an engine can
        compute each tenant's salt. `shared_tenants` share one salt."""
        self._isolates = isolate_tenants
        self._shared = frozenset(map(TenantName, shared_tenants))
        self._key = b"" if secret is None else blake2b(secret.encode(), person=_PERSON).digest()
        self._salt = lru_cache(_REMEMBERED_MAX)(self._hashed)

    def domain(self, tenant: TenantName) -> TenantName:
        """Name that stands for all tenants that share prefixes with this one."""
        if not self._isolates:
            return _NO_DOMAIN
        return _TOGETHER if tenant in self._shared else tenant

    def salt(self, domain: TenantName, own: str | None, body: Body) -> CacheSalt | None:
        """Salt for an engine's `cache_salt`, in place of the client's `own`; None if the body is sent unchanged."""
        if not self._isolates or not body.fills_prefix_cache:
            return None
        is_short = own is None or len(own) <= _REMEMBERED_LENGTH_MAX
        salt = self._salt(domain, own) if is_short else self._hashed(domain, own)
        return CacheSalt(salt, replaces_own=body.names_cache_salt)

    def _hashed(self, domain: TenantName, own: str | None) -> str:
        """Hash of the fields, each prefixed by its length, so that no two pairs look alike."""
        fields = (domain,) if own is None else (domain, own)
        raw = [field.encode("utf-8", "surrogatepass") for field in fields]
        framed = b"".join(len(each).to_bytes(4, "big") + each for each in raw)
        return blake2b(framed, digest_size=_BYTES, key=self._key, person=_PERSON).hexdigest()
