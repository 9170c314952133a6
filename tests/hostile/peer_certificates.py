"""Certificates shown to a gateway by a caller that claims to be us-1 of us-east-1, or by a server at that gateway's
address, and the expected verdict on each: one case per line. The mesh's own authority has signed them unless the case
says otherwise: authorities make mistakes, and also sign for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

URI = "spiffe://mesh.test/gateway/us-east-1/us-1"
NAME = "us-1.us-east-1.gateway.mesh.test"
CONTROLLER_URI = "spiffe://mesh.test/controller/control-1"
CONTROLLER_NAME = "controller.mesh.test"


class Signer(Enum):
    MESH = "mesh"
    FOREIGN = "foreign"
    """Authority with the same name as the mesh's own."""
    ITSELF = "itself"
    LEAF = "leaf"
    """Gateway's certificate of the mesh, which may not sign."""


class Usage(Enum):
    BOTH = "both"
    SERVER = "server"
    CLIENT = "client"
    MAIL = "mail"
    UNSAID = "unsaid"


@dataclass(frozen=True, slots=True)
class CertificateCase:
    name: str
    may_call: bool
    """True if the certificate is accepted from a caller as us-1 of us-east-1."""
    may_answer: bool
    """True if the certificate is accepted from a server as us-1 of us-east-1."""
    uris: tuple[str, ...] = (URI,)
    names: tuple[str, ...] = (NAME,)
    common_name: str = "us-1"
    usage: Usage = Usage.BOTH
    begins_days: float = -1
    ends_days: float = 1
    signer: Signer = Signer.MESH
    is_authority: bool = False
    extra: bytes = b""
    """DER item at the beginning of the alternative names."""
    is_doubled: bool = False
    """True if a second extension holds alternative names."""


def _uri(name: str, *uris: str, may_answer: bool = True) -> CertificateCase:
    """Certificate with the right host name, by which servers are known, and other URIs."""
    return CertificateCase(name, may_call=False, may_answer=may_answer, uris=uris)


def _named(name: str, *names: str, may_answer: bool = False) -> CertificateCase:
    """Certificate with the right URI, by which callers are known, and other host names."""
    return CertificateCase(name, may_call=True, may_answer=may_answer, names=names)


# fmt: off
CERTIFICATE_CASES = (
    CertificateCase("nothing wrong", True, True),
    # Owners
    CertificateCase("another gateway of the region", False, False, ("spiffe://mesh.test/gateway/us-east-1/us-2",), ("us-2.us-east-1.gateway.mesh.test",)),
    CertificateCase("the right gateway of another region", False, False, ("spiffe://mesh.test/gateway/eu-west-1/us-1",), ("us-1.eu-west-1.gateway.mesh.test",)),
    CertificateCase("region and gateway the other way round", False, False, ("spiffe://mesh.test/gateway/us-1/us-east-1",), ("us-east-1.us-1.gateway.mesh.test",)),
    CertificateCase("the right gateway of another trust domain", False, False, ("spiffe://mesh.evil/gateway/us-east-1/us-1",), ("us-1.us-east-1.gateway.mesh.evil",)),
    CertificateCase("a trust domain that ends like ours", False, False, ("spiffe://evil.mesh.test/gateway/us-east-1/us-1",), ("us-1.us-east-1.gateway.evil.mesh.test",)),
    CertificateCase("a trust domain that begins like ours", False, False, ("spiffe://mesh.test.evil/gateway/us-east-1/us-1",), ("us-1.us-east-1.gateway.mesh.test.evil",)),
    CertificateCase("a controller's", False, False, (CONTROLLER_URI,), (CONTROLLER_NAME,)),
    CertificateCase("a controller's, with a gateway's host name", False, True, (CONTROLLER_URI,), (CONTROLLER_NAME, NAME)),
    CertificateCase("a client's", False, False, (), ("localhost",)),
    CertificateCase("no names at all", False, False, (), ()),
    CertificateCase("no names but its subject's", False, True, (), (), common_name=NAME),
    # URIs, by which callers are known
    _uri("no URI"),
    _uri("two gateways", URI, "spiffe://mesh.test/gateway/us-east-1/us-2"),
    _uri("the right one twice", URI, URI),
    _uri("the right one and a page", URI, "https://us-1.example.net/"),
    _uri("another scheme", "https://mesh.test/gateway/us-east-1/us-1"),
    _uri("a scheme in capitals", "SPIFFE://mesh.test/gateway/us-east-1/us-1"),
    _uri("a trust domain in capitals", "spiffe://MESH.TEST/gateway/us-east-1/us-1"),
    _uri("a path in capitals", "spiffe://mesh.test/gateway/US-EAST-1/US-1"),
    _uri("a slash too many", "spiffe://mesh.test/gateway/us-east-1/us-1/"),
    _uri("two slashes in a row", "spiffe://mesh.test//gateway/us-east-1/us-1"),
    _uri("a path that leads back", "spiffe://mesh.test/gateway/eu-west-1/../us-east-1/us-1"),
    _uri("a query", "spiffe://mesh.test/gateway/us-east-1/us-1?x=1"),
    _uri("a fragment", "spiffe://mesh.test/gateway/us-east-1/us-1#x"),
    _uri("a port", "spiffe://mesh.test:443/gateway/us-east-1/us-1"),
    _uri("a user's name", "spiffe://us-1@mesh.test/gateway/us-east-1/us-1"),
    _uri("escapes", "spiffe://mesh.test/gateway/us-east-1/us%2D1"),
    _uri("a wildcard", "spiffe://mesh.test/gateway/us-east-1/*"),
    _uri("a line break", "spiffe://mesh.test/gateway/us-east-1/us-1\n"),
    _uri("a zero", "spiffe://mesh.test/gateway/us-east-1/us-1\0.evil"),
    _uri("letters from elsewhere, as punycode", "spiffe://mesh.test/gateway/us-east-1/xn--us-1-9ta"),
    _uri("another jurisdiction", f"{URI}/jurisdiction/EU"),
    _uri("half a jurisdiction", f"{URI}/jurisdiction"),
    _uri("an id of 3,000 letters", f"{URI}{'1' * 3000}"),
    # Host names, by which servers are known
    _named("no host name"),
    _named("an empty host name", ""),
    _named("its address", "127.0.0.1"),
    _named("the name and one more", NAME, "localhost", may_answer=True),
    _named("the name in capitals", NAME.upper(), may_answer=True),
    _named("the name with a dot at its end", f"{NAME}.", may_answer=True),
    _named("the name with a zero in it", f"{NAME}\0.evil", may_answer=True),
    _named("the name as a part of another", f"x.{NAME}"),
    _named("a name that begins like it", f"{NAME}.evil"),
    _named("its end alone", "us-east-1.gateway.mesh.test"),
    _named("every name", "*"),
    _named("every gateway of every region", "*.*.gateway.mesh.test"),
    _named("a part of a label", "us-*.us-east-1.gateway.mesh.test"),
    _named("a label in the middle", "us-1.*.gateway.mesh.test"),
    _named("letters from elsewhere", "xn--us-1-9ta.us-east-1.gateway.mesh.test"),
    _named("every gateway of the region", "*.us-east-1.gateway.mesh.test", may_answer=True),
    # Unreadable extensions
    CertificateCase("a name of a kind that nobody reads", False, True, extra=b"\xa3\x02\x30\x00"),
    CertificateCase("names twice", False, False, is_doubled=True),
    # Usage and validity
    CertificateCase("to call alone", True, False, usage=Usage.CLIENT),
    CertificateCase("to answer alone", False, True, usage=Usage.SERVER),
    CertificateCase("for mail", False, False, usage=Usage.MAIL),
    CertificateCase("for whatever it may be", True, True, usage=Usage.UNSAID),
    CertificateCase("an authority's", True, True, is_authority=True),
    CertificateCase("expired a day ago", False, False, begins_days=-3, ends_days=-1),
    CertificateCase("expired a minute ago", False, False, ends_days=-1 / 1440),
    CertificateCase("valid from tomorrow on", False, False, begins_days=1, ends_days=3),
    # Signers
    CertificateCase("a stranger", False, False, signer=Signer.FOREIGN),
    CertificateCase("itself", False, False, signer=Signer.ITSELF),
    CertificateCase("itself, as an authority", False, False, signer=Signer.ITSELF, is_authority=True),
    CertificateCase("a gateway of the mesh", False, False, signer=Signer.LEAF),
)
# fmt: on
"""Cases for both directions. gRPC compares the host names, as a browser would: with a wildcard for one label, by the
subject's name where there is no other, and up to a zero byte. A mesh's authority must sign none of them, as
docs/concepts/security.md says."""
