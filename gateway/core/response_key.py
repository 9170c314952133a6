"""Keys of responses that engines store, under which the core and other gateways know them."""

from __future__ import annotations

from hashlib import blake2b

from gateway.core.vocabulary import TenantName

_KEY_BYTES = 16


def response_key(tenant: TenantName, response_id: str) -> str:
    """Key of a stored response, as edges put it into `follows` and `ResponseStored`. A tenant cannot guess another's
    key: the hash is cryptographic, and the tenant's name is framed by its length."""
    fields = (tenant.encode("utf-8", "surrogatepass"), response_id.encode("utf-8", "surrogatepass"))
    return blake2b(len(fields[0]).to_bytes(4, "big") + b"".join(fields), digest_size=_KEY_BYTES).hexdigest()
