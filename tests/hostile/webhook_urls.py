"""URLs of a scaling webhook, and the expected verdict on each in a region file without `insecure`: one case per line.
Reports may leave this machine by TLS alone, to the host that an operator reads in the URL.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_URL = "is not a URL"
NO_TLS = "is beyond this machine, without TLS"
FINE = ""


@dataclass(frozen=True, slots=True)
class UrlCase:
    name: str
    url: str
    fault: str
    """Text that the error must contain; empty where the URL is allowed."""


# fmt: off
URL_CASES = (
    UrlCase("TLS", "https://scaler.example.net/hook", FINE),
    UrlCase("TLS at a port", "https://scaler.example.net:8443/hook?pool=a", FINE),
    UrlCase("TLS at an address", "https://192.0.2.1/hook", FINE),
    UrlCase("TLS at an address of IPv6", "https://[2001:db8::1]:8443/hook", FINE),
    UrlCase("this machine", "http://127.0.0.1:9000/hook", FINE),
    UrlCase("another of this machine's addresses", "http://127.1.2.3/hook", FINE),
    UrlCase("this machine by name", "http://localhost/hook", FINE),
    UrlCase("this machine by name, at the root", "http://localhost", FINE),
    UrlCase("this machine in IPv6", "http://[::1]:9000/hook", FINE),
    UrlCase("no TLS", "http://scaler.example.net/hook", NO_TLS),
    UrlCase("no TLS, on every address", "http://0.0.0.0:9000/hook", NO_TLS),
    UrlCase("no TLS, at a cloud's metadata", "http://169.254.169.254/latest/", NO_TLS),
    UrlCase("a name that begins like this machine's address", "http://127.0.0.1.evil.example.net/hook", NO_TLS),
    UrlCase("a name that begins with 127", "http://127.evil.example.net/hook", NO_TLS),
    UrlCase("a name that begins with localhost", "http://localhost.evil.example.net/hook", NO_TLS),
    UrlCase("a number that some take for this machine", "http://2130706433/hook", NO_TLS),
    UrlCase("an address with a part too few", "http://127.1/hook", NO_TLS),
    UrlCase("this machine mapped into IPv6", "http://[::ffff:192.0.2.1]/hook", NO_TLS),
    UrlCase("an address that begins like this machine's in IPv6", "http://[::1:2]/hook", NO_TLS),
    UrlCase("this machine as a user's name", "http://localhost:9000@evil.example.net/hook", NO_URL),
    UrlCase("this machine's address as a user's name", "http://127.0.0.1@evil.example.net/hook", NO_URL),
    UrlCase("a password", "https://user:secret@scaler.example.net/hook", NO_URL),
    UrlCase("a backslash", "http://localhost\\\\@evil.example.net/hook", NO_URL),
    UrlCase("brackets that do not close", "http://[::1/hook", NO_URL),
    UrlCase("brackets around a name", "http://[evil.example.net]/hook", NO_URL),
    UrlCase("no host", "https:///hook", NO_URL),
    UrlCase("no host but a port", "https://:443/hook", NO_URL),
    UrlCase("a port that is none", "https://scaler.example.net:http/hook", NO_URL),
    UrlCase("port 0", "https://scaler.example.net:0/hook", NO_URL),
    UrlCase("a port beyond all", "https://scaler.example.net:65536/hook", NO_URL),
    UrlCase("a port left out", "https://scaler.example.net:/hook", NO_URL),
    UrlCase("a space", "https://scaler.example.net /hook", NO_URL),
    UrlCase("letters that look alike", "https://sc\u0430ler.example.net/hook", NO_URL),
    UrlCase("another scheme", "ftp://scaler.example.net/hook", NO_URL),
    UrlCase("an older protocol", "gopher://scaler.example.net/hook", NO_URL),
    UrlCase("a scheme in capitals", "HTTPS://scaler.example.net/hook", NO_URL),
    UrlCase("without a scheme", "//scaler.example.net/hook", NO_URL),
    UrlCase("one that is too long", "https://scaler.example.net/" + "a" * 2048, NO_URL),
    UrlCase("nothing", "", NO_URL),
)
# fmt: on
