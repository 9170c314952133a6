from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from joserfc.jwk import ECKey, OctKey, OKPKey

from mesh.tokens.key_set import KEYS_MAX, KeySetUnusable, read_key_set
from tests.fakes.issuer import RSA_KEY, ec_key

EC: dict[str, Any] = dict(ec_key("a").as_dict(private=False))


def ids(*keys: object) -> list[str]:
    return read_key_set(json.dumps({"keys": keys}).encode()).ids


def test_public_keys_of_all_kinds_are_taken() -> None:
    ed = OKPKey.generate_key("Ed25519", {"kid": "ed"}).as_dict(private=False)
    assert ids(EC, dict(RSA_KEY.as_dict(private=False)), ed) == ["a", "rsa-1", "ed"]


@pytest.mark.parametrize(
    "other",
    [
        "no key",
        {},
        {"kty": ["RSA"]},
        {"kty": "RSA"},
        {"kty": "XYZ", "kid": "x"},
        {**EC, "use": "enc"},
        {**EC, "key_ops": ["encrypt"]},
        {**EC, "x": "AAAA"},
        {**EC, "crv": "P-999"},
        {**EC, "x": 5},
        dict(OctKey.generate_key(256, {"kid": "shared"}).as_dict()),
    ],
)
def test_what_no_signature_can_be_held_against_is_left_out(other: object) -> None:
    assert ids(other, EC) == ["a"]
    with pytest.raises(KeySetUnusable, match="no key for signatures"):
        ids(other)


def test_short_keys_are_left_out() -> None:
    numbers = generate_private_key(65537, 1024).public_key().public_numbers()
    short = {"kty": "RSA", "kid": "short", "n": _in_base64(numbers.n, 128), "e": "AQAB"}
    long = {**short, "n": _in_base64(3**6000, 1200)}
    assert ids(short, long, {**short, "n": 5}, {**short, "n": "!"}, EC) == ["a"]


def _in_base64(number: int, length: int) -> str:
    return urlsafe_b64encode(number.to_bytes(length, "big")).rstrip(b"=").decode()


def test_a_private_key_that_somebody_published_is_taken_for_a_public_one() -> None:
    published = ECKey.generate_key("P-256", {"kid": "oops"}).as_dict(private=True)
    keys = read_key_set(json.dumps({"keys": [published]}).encode())
    (key,) = keys.that_may_verify("ES256", "oops")
    assert not key.is_private


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"<html>", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no list of keys"),
        (b'{"keys": {}}', "no list of keys"),
        (b'{"keys": []}', "no key for signatures"),
        (json.dumps({"keys": [EC] * (KEYS_MAX + 1)}).encode(), f"more than {KEYS_MAX}"),
    ],
)
def test_a_document_that_is_of_no_use_is_refused_in_words(text: bytes, why: str) -> None:
    with pytest.raises(KeySetUnusable, match=why):
        read_key_set(text)


def test_a_key_is_for_the_algorithm_that_it_names() -> None:
    keys = read_key_set(json.dumps({"keys": [{**EC, "alg": "ES256"}, dict(RSA_KEY.as_dict(private=False))]}).encode())
    assert [key.get("kid") for key in keys.that_may_verify("ES256", "a")] == ["a"]
    for algorithm, kid in (("ES384", "a"), ("RS256", "a"), ("ES256", "rsa-1"), ("EdDSA", "rsa-1")):
        assert keys.that_may_verify(algorithm, kid) == []
    assert len(keys.that_may_verify("PS256", "rsa-1")) == 1
