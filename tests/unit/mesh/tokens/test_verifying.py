from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry
from msgspec.structs import replace

from gateway.security.keys import mint
from mesh.tokens.claims import scopes_of
from mesh.tokens.config import Algorithm, IssuerConfig
from mesh.tokens.key_set import PublicKeys, read_key_set
from mesh.tokens.verifying import (
    TOKEN_BYTES_MAX,
    expires_ns,
    read_token,
    verify,
)
from mesh.tokens.words import TokenFault, TokenRefused, looks_like_token
from tests.fakes.issuer import AUDIENCE, RSA_KEY, FakeIssuer, SigningKey, ec_key, sign, unsigned

NOW_S = 1_800_000_000
NOW_NS = NOW_S * 1_000_000_000
ISSUER = FakeIssuer("https://login.example.net", now_s=NOW_S)
CONFIG = IssuerConfig(name="corp", issuer=ISSUER.url, audiences=("other", AUDIENCE))
OTHER_KEY = ec_key("key-1")
"""Another party's key under the same id."""


def keys_of(*keys: SigningKey) -> PublicKeys:
    return read_key_set(FakeIssuer(keys=list(keys)).key_set())


KEYS = keys_of(*ISSUER.keys)


def reason(token: str, config: IssuerConfig = CONFIG, keys: PublicKeys = KEYS) -> TokenFault:
    with pytest.raises(TokenRefused) as refused:
        verify(read_token(token), config, keys, NOW_NS)
    return refused.value.reason


def accepts(token: str, config: IssuerConfig = CONFIG, keys: PublicKeys = KEYS) -> bool:
    return bool(verify(read_token(token), config, keys, NOW_NS)["sub"] == "alice")


def test_a_good_token_says_what_its_issuer_said() -> None:
    claims = verify(read_token(ISSUER.token(org={"id": "acme"})), CONFIG, KEYS, NOW_NS)
    assert (claims["sub"], claims["org"]) == ("alice", {"id": "acme"})
    assert expires_ns(claims, CONFIG) == claims["exp"] * 10**9 + CONFIG.leeway_ns


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": None}, TokenFault.CLAIM),
        ({"exp": NOW_S - 31}, TokenFault.EXPIRED),
        ({"exp": "tomorrow"}, TokenFault.CLAIM),
        ({"exp": True}, TokenFault.CLAIM),
        ({"nbf": NOW_S + 60}, TokenFault.NOT_YET),
        ({"iat": NOW_S + 60}, TokenFault.NOT_YET),
        ({"aud": None}, TokenFault.CLAIM),
        ({"aud": "nightside2"}, TokenFault.AUDIENCE),
        ({"aud": []}, TokenFault.AUDIENCE),
        ({"aud": {AUDIENCE: 1}}, TokenFault.AUDIENCE),
        ({"sub": None}, TokenFault.CLAIM),
        ({"sub": 7}, TokenFault.CLAIM),
        ({"sub": ""}, TokenFault.CLAIM),
        ({"sub": "a" * 256}, TokenFault.CLAIM),
    ],
)
def test_every_claim_that_is_needed_has_to_hold(changes: dict[str, Any], why: TokenFault) -> None:
    assert reason(ISSUER.token(**changes)) is why


@pytest.mark.parametrize(
    "changes",
    [{"exp": NOW_S - 20}, {"nbf": NOW_S + 20}, {"aud": ["x", AUDIENCE]}, {"exp": NOW_S + 0.5}, {"exp": 1e300}],
)
def test_clocks_may_differ_a_little_and_a_token_may_be_for_several(changes: dict[str, Any]) -> None:
    assert accepts(ISSUER.token(**changes))


def test_an_expiry_without_end_is_bounded() -> None:
    assert expires_ns({"exp": 1e300}, CONFIG) < 2**41 * 10**9


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (ISSUER.token(key=OTHER_KEY), TokenFault.SIGNATURE),
        (ISSUER.token()[:-4] + "AAAA", TokenFault.SIGNATURE),
        (ISSUER.token(header={"kid": "key-2"}), TokenFault.KEY),
        (unsigned({"alg": "ES256", "kid": 5}, ISSUER.claims()), TokenFault.MALFORMED),
        (unsigned({"alg": "ES256", "kid": ["key-1"]}, ISSUER.claims()), TokenFault.MALFORMED),
        (unsigned({"alg": "none"}, ISSUER.claims()), TokenFault.ALGORITHM),
        (unsigned({"alg": "None", "kid": "key-1"}, ISSUER.claims()), TokenFault.ALGORITHM),
        (unsigned({"alg": "HS256", "kid": "key-1"}, ISSUER.claims(), b"x" * 32), TokenFault.ALGORITHM),
        (unsigned({"kid": "key-1"}, ISSUER.claims()), TokenFault.ALGORITHM),
        (unsigned({"alg": ["ES256"], "kid": "key-1"}, ISSUER.claims()), TokenFault.ALGORITHM),
        (unsigned({"alg": "ES256", "kid": "key-1"}, ISSUER.claims()), TokenFault.SIGNATURE),
        (unsigned({"alg": "ES256", "kid": "key-1"}, ISSUER.claims(), b"x" * 64), TokenFault.SIGNATURE),
        (unsigned({"alg": "RS256", "kid": "key-1"}, ISSUER.claims(), b"x" * 256), TokenFault.KEY),
        (unsigned({"alg": "ES256", "kid": "key-1", "crit": ["x"], "x": 1}, ISSUER.claims()), TokenFault.MALFORMED),
        (unsigned({"alg": "ES256", "kid": "key-1", "b64": False}, ISSUER.claims()), TokenFault.MALFORMED),
    ],
)
def test_only_a_key_of_the_issuer_signs_for_it(token: str, why: TokenFault) -> None:
    assert reason(token) is why


def test_a_public_key_is_no_shared_secret() -> None:
    """The classic confusion: the published key as the secret of an HMAC."""
    forged = unsigned({"alg": "HS256", "kid": "rsa-1"}, ISSUER.claims()).rpartition(".")[0]
    mac = hmac.digest(RSA_KEY.as_pem(private=False), forged.encode(), "sha256")
    forged = f"{forged}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert reason(forged, keys=keys_of(RSA_KEY)) is TokenFault.ALGORITHM


def test_algorithms_are_those_of_the_file() -> None:
    only_rsa = replace(CONFIG, algorithms=(Algorithm.RS256,))
    assert reason(ISSUER.token(), only_rsa) is TokenFault.ALGORITHM
    rsa = FakeIssuer(ISSUER.url, [RSA_KEY], NOW_S)
    assert accepts(rsa.token(), only_rsa, keys_of(RSA_KEY))
    pss = sign(ISSUER.claims(), RSA_KEY, alg="PS256")
    assert reason(pss, only_rsa, keys_of(RSA_KEY)) is TokenFault.ALGORITHM
    assert accepts(pss, CONFIG, keys_of(RSA_KEY))


def test_a_key_may_be_of_any_kind_under_the_name_that_its_issuer_gives_it() -> None:
    """EdDSA was one name for two curves, and issuers still use it."""
    ed = OKPKey.generate_key("Ed25519", {"kid": "ed"})
    claims, keys = ISSUER.claims(), keys_of(ed)
    assert accepts(sign(claims, ed), replace(CONFIG, algorithms=(Algorithm.ED25519,)), keys)
    text = unsigned({"alg": "EdDSA", "kid": "ed"}, claims).rpartition(".")[0]
    signed = JWSRegistry.algorithms["EdDSA"].sign(text.encode(), ed)
    assert accepts(f"{text}.{urlsafe_b64encode(signed).rstrip(b'=').decode()}", keys=keys), "without a warning"


def test_a_header_may_be_long() -> None:
    assert accepts(ISSUER.token(header={"x5c": ["A" * 3000]}))


def test_without_an_id_it_is_by_the_only_key_that_fits() -> None:
    nameless = ISSUER.token(header={"kid": None})
    assert accepts(nameless)
    assert accepts(nameless, keys=keys_of(*ISSUER.keys, RSA_KEY))
    assert reason(nameless, keys=keys_of(*ISSUER.keys, ec_key("key-2"))) is TokenFault.KEY


def test_of_keys_with_one_id_either_may_have_signed() -> None:
    assert accepts(ISSUER.token(), keys=keys_of(OTHER_KEY, *ISSUER.keys))


def test_headers_that_mean_nothing_here_do_no_harm() -> None:
    assert accepts(ISSUER.token(header={"x5t": "abc", "nonce": "1", "typ": None}))


@pytest.mark.parametrize(
    ("typ", "is_taken"), [("at+jwt", True), ("application/AT+JWT", True), ("JWT", False), (None, False)]
)
def test_where_access_tokens_are_marked_nothing_else_opens(typ: str | None, is_taken: bool) -> None:
    strict = replace(CONFIG, access_tokens_only=True)
    token = ISSUER.token(header={"typ": typ})
    assert accepts(token)
    if is_taken:
        assert accepts(token, strict)
    else:
        assert reason(token, strict) is TokenFault.TYPE


def test_all_scopes_are_needed() -> None:
    scoped = replace(CONFIG, scopes=("a", "b"))
    for enough in ({"scope": "b a c"}, {"scp": ["a", "b"]}, {"scp": "a b"}):
        assert accepts(ISSUER.token(**enough), scoped)
    for too_few in ({}, {"scope": "a"}, {"scope": "ab"}, {"scope": 5}, {"scp": ["a b"]}):
        assert reason(ISSUER.token(**too_few), scoped) is TokenFault.SCOPE


def test_scopes_are_words_or_a_list() -> None:
    assert scopes_of({"scope": " a  b "}) == scopes_of({"scp": ["a", "b", 5]}) == {"a", "b"}


DEEP = "[" * 3000
NO_TOKENS: list[Callable[[], str]] = [
    lambda: "ey.ey.ey",
    lambda: "ey..",
    lambda: "ey!!.%%.x",
    lambda: "eyé.e30.x",
    lambda: unsigned([], {}),
    lambda: unsigned({}, "x"),
    lambda: unsigned({"alg": "ES256"}, 5),
    lambda: "ey" + "W" * 3001 + ".e30.x",
    lambda: f"eyJ4Ijo{'W1tb' * 1000}.e30.x",
]


@pytest.mark.parametrize("number", range(len(NO_TOKENS)))
def test_what_is_no_token_is_read_as_none(number: int) -> None:
    token = NO_TOKENS[number]()
    with pytest.raises(TokenRefused) as refused:
        read_token(token)
    assert refused.value.reason is TokenFault.MALFORMED


def test_a_number_that_is_none_does_not_last_for_ever() -> None:
    for absurd in ("NaN", "Infinity", "1e999", "9" * 5000):
        claims = json.dumps(ISSUER.claims(exp="E")).replace('"E"', absurd)
        body = ISSUER.token().split(".")
        body[1] = urlsafe_b64encode(claims.encode()).rstrip(b"=").decode()
        with pytest.raises(TokenRefused):
            verify(read_token(".".join(body)), CONFIG, KEYS, NOW_NS)


def test_a_large_one_is_not_looked_at() -> None:
    with pytest.raises(TokenRefused) as refused:
        read_token(ISSUER.token(pad="x" * TOKEN_BYTES_MAX))
    assert refused.value.reason is TokenFault.TOO_LARGE


def test_keys_do_not_look_like_tokens() -> None:
    assert not looks_like_token(mint("ey.a.b")[0])
    assert not looks_like_token("")
    assert not looks_like_token("ns-a.b.c-0")
    assert looks_like_token(ISSUER.token())


def test_no_words_quote_the_token() -> None:
    token = ISSUER.token(sub=5)
    with pytest.raises(TokenRefused) as refused:
        verify(read_token(token), CONFIG, KEYS, NOW_NS)
    assert refused.value.words == "the access token lacks a required claim: sub"
    assert refused.value.issuer == "corp"
