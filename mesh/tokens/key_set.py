"""Reads an issuer's public keys from its JSON Web Key Set (RFC 7517). It fetches nothing, drops private parts of keys,
and accepts no shared key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

PublicKey: TypeAlias = "RSAKey | ECKey | OKPKey"

KEYS_MAX = 100
KEY_SET_BYTES_MAX = 256 * 1024
_RSA_BITS_MIN, _RSA_BITS_MAX = 2048, 8192
_PUBLIC_MEMBERS = frozenset({"kty", "kid", "use", "key_ops", "alg", "n", "e", "crv", "x", "y"})
_KINDS: dict[str, str] = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class KeySetUnusable(Exception):
    """Document with no usable key for verifying signatures; the message says why."""


class PublicKeys:
    """Keys that an issuer published at one time. The set never changes."""

    def __init__(self, keys: Iterator[PublicKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def that_may_verify(self, algorithm: str, kid: str | None) -> list[PublicKey]:
        """Keys of this id that may have signed with this algorithm. For a token that names no key, the only fitting
        key; none where there are several."""
        fitting = [each for each in self._keys if _fits(each, algorithm)]
        if kid is None:
            return fitting if len(fitting) == 1 else []
        return [each for each in fitting if each.get("kid") == kid]

    @property
    def ids(self) -> list[str]:
        return [str(each.get("kid", "")) for each in self._keys]


NO_KEYS = PublicKeys(iter(()))


def read_key_set(text: bytes) -> PublicKeys:
    """Read a key set; keys of no use here are left out. Raises KeySetUnusable."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise KeySetUnusable("it is no JSON") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeySetUnusable("it has no list of keys")
    if len(listed) > KEYS_MAX:
        raise KeySetUnusable(f"it has more than {KEYS_MAX} keys")
    keys = PublicKeys(_usable(listed))
    if not len(keys):
        raise KeySetUnusable("it has no key for signatures that could be used")
    return keys


def _usable(listed: list[Any]) -> Iterator[PublicKey]:
    for each in listed:
        if isinstance(each, dict) and each.get("kty") in _KINDS.values() and _may_verify(each):
            key = _imported({name: told for name, told in each.items() if name in _PUBLIC_MEMBERS})
            if key is not None:
                yield key


def _may_verify(document: dict[str, Any]) -> bool:
    operations = document.get("key_ops")
    return document.get("use", "sig") == "sig" and (not isinstance(operations, list) or "verify" in operations)


def _imported(document: dict[str, Any]) -> PublicKey | None:
    if document["kty"] == "RSA" and not _RSA_BITS_MIN <= _bits_in(document.get("n")) <= _RSA_BITS_MAX:
        return None
    from joserfc.errors import JoseError  # noqa: PLC0415 - loaded with the first key
    from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey  # noqa: PLC0415 - as above

    try:
        key = JWKRegistry.import_key(document)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _bits_in(number: object) -> int:
    """Approximate size in bits of a base64 number, so that a key which is too short or too long never reaches the
    library."""
    return len(number.rstrip("=")) * 6 // 8 * 8 if isinstance(number, str) else 0


def _fits(key: PublicKey, algorithm: str) -> bool:
    if key.key_type != _KINDS[algorithm[:2]] or key.get("alg") not in (None, algorithm):
        return False
    curve = _CURVES.get(algorithm)
    return curve is None or key.get("crv") == curve
