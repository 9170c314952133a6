"""Types of values in configuration files, in their written form and in use: durations, sizes, addresses, paths,
secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, Strict, ValidationInfo

from mesh.faults import FileFault, KeyFaults
from mesh.whole_files import read_whole

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MEBIBYTE = 2**20

DURATION_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": 86_400 * SECOND_NS,
}
SIZE_UNITS_BYTES = {"B": 1, "KiB": 2**10, "MiB": MEBIBYTE, "GiB": 2**30}


class Address(Struct, frozen=True):
    """TCP address to listen on or to connect to; port 0 lets the system choose one to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_numeric(self) -> bool:
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_duration_ns(text: object) -> int:
    """Parse `100ms`, `2s` or `1.5m` as nanoseconds. Raises ValueError with a reason."""
    return _parse_quantity(text, DURATION_UNITS_NS, "a duration such as 100ms or 2s")


def parse_size_bytes(text: object) -> int:
    """Parse `64MiB` or `1GiB` as bytes. Raises ValueError with a reason."""
    return _parse_quantity(text, SIZE_UNITS_BYTES, "a size such as 64MiB or 4KiB")


def format_duration(duration_ns: int) -> str:
    return _format_quantity(duration_ns, DURATION_UNITS_NS)


def format_size(size_bytes: int) -> str:
    return _format_quantity(size_bytes, SIZE_UNITS_BYTES)


def parse_address(text: object) -> Address:
    """Parse `127.0.0.1:8080`, `[::1]:8080` or `gw.example.net:7000`. Raises ValueError with a reason."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host and not bracketed) or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address such as 127.0.0.1:8080 or [::1]:8080")
    return Address(host, int(port))


def read_secret(file: Path, key: str) -> str:
    """Read a secret from the file that a key names. Raises KeyFaults, which quote nothing of it."""
    try:
        return checked_secret(read_whole(file).decode("utf-8"), key, str(file))
    except OSError as error:
        raise KeyFaults(FileFault(key, f"{file} cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError:
        raise KeyFaults(FileFault(key, f"{file} cannot be read: it is not UTF-8 text")) from None


def checked_secret(text: str, key: str, source: str) -> str:
    """Check a secret. Raises KeyFaults, which quote nothing of it."""
    secret = text.strip()
    if not secret or not secret.isascii() or not secret.isprintable():
        raise KeyFaults(FileFault(key, f"{source} holds no usable key"))
    return secret


def _parse_quantity(text: object, units: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {expected}")
    whole, _, fraction = match[1].partition(".")
    scaled, rest = divmod(int(whole + fraction) * units[match[2]], int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError(f"{text!r} is finer than 1{next(iter(units))}")
    return scaled


def _format_quantity(amount: int, units: Mapping[str, int]) -> str:
    """Text in the largest unit that divides the amount, so that it parses back to the same number."""
    divisors = [name for name, factor in units.items() if amount % factor == 0]
    unit = divisors[-1] if amount else divisors[0]
    return f"{amount // units[unit]}{unit}"


# Types of keys, for models of files


class FileContext(Struct, frozen=True):
    """Context in which a file's model is validated: the meaning of a file depends on it besides its text."""

    folder: Path
    """Folder where relative paths start."""
    environ: Mapping[str, str]

    @classmethod
    def of(cls, info: ValidationInfo) -> FileContext:
        assert isinstance(info.context, FileContext), "a file is validated by its reader"
        return info.context


def _resolve_path(text: object, info: ValidationInfo) -> object:
    if isinstance(text, str):
        _check_path(text)
    return FileContext.of(info).folder / text if isinstance(text, str) and text else text


def _check_path(text: str) -> None:
    """Refuse what the system cannot take for a path, which would fail only where the file is read."""
    if "\0" in text:
        raise ValueError("should be a path, and it has a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("should be a path, and it has a character that no path can have") from None


def _check_id(text: str) -> str:
    if ID_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} should be 1 to 64 letters, digits, dots, dashes or underscores")
    return text


ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Ids appear in logs, metrics and on the wire, so they are short and plain."""
REPLICA_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,95}")
"""Ids also of replicas that were found: a template's id, an address, a port and a rank."""
POOL_NAME_PATTERN = re.compile(rf"{ID_PATTERN.pattern}(@{ID_PATTERN.pattern})?")
"""Names of pools; that of an adopted one ends with its home gateway."""
CERTIFICATE_NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Name that a certificate can hold: one label of a host name."""


def _check_host_name(text: str) -> str:
    if HOST_NAME_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not the name of a host such as gateway.example.net")
    return text


HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


_THIS_NETWORK = ip_network("0.0.0.0/8")


def host_address(text: str) -> str:
    """Check the IP address of one host, to which a client elsewhere could connect. Raises ValueError."""
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError(f"{text[:100]!r} is not an IP address") from error
    if isinstance(address, IPv4Address):
        is_one_host = not (address.is_reserved or address in _THIS_NETWORK)
    else:
        is_one_host = address.ipv4_mapped is None and address.scope_id is None and not address.is_unspecified
    if not is_one_host or address.is_multicast or address.is_link_local:
        raise ValueError(f"{text!r} is not an address of one host that clients can connect to")
    return str(address)


def _check_origin(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or text != f"{url.scheme}://{url.netloc}".lower():
        raise ValueError(
            f"{text!r} is not an origin such as https://chat.example.net, in small letters and without a path"
        )
    if "@" in url.netloc or "*" in url.netloc:
        raise ValueError(f"{text!r} should name one host, without user and wildcard")
    return text


def _check_web_url(text: str) -> str:
    if not _is_web_url(text):
        raise ValueError(f"{text!r} is not a URL such as https://gateway.example.net:8080/health")
    return text


def _is_web_url(text: str) -> bool:
    """Return whether the text is a URL that every reader takes for the same host: user names, backslashes and spaces
    are refused."""
    if not text.startswith(("http://", "https://")) or len(text) > URL_LENGTH_MAX:
        return False
    if not text.isprintable() or not text.isascii() or " " in text or "\\" in text:
        return False
    try:
        url = urlsplit(text)
        port, host = url.port, url.hostname or ""
    except ValueError:
        return False
    is_host = HOST_NAME_PATTERN.fullmatch(host) is not None or ":" in host
    return is_host and port != 0 and not url.netloc.endswith(":") and "@" not in url.netloc


def is_this_machine_s(url: str) -> bool:
    """Return whether the host of a URL, such as a file may hold, is this machine."""
    return Address(urlsplit(url).hostname or "", 0).is_loopback


URL_LENGTH_MAX = 2048

Id = Annotated[str, Strict(), AfterValidator(_check_id)]
HostAddress = Annotated[str, Strict(), AfterValidator(host_address)]
HostName = Annotated[str, Strict(), AfterValidator(_check_host_name)]
Origin = Annotated[str, Strict(), AfterValidator(_check_origin)]
WebUrl = Annotated[str, Strict(), AfterValidator(_check_web_url)]
Latitude = Annotated[float, Strict(), Field(ge=-90, le=90, allow_inf_nan=False)]
Longitude = Annotated[float, Strict(), Field(ge=-180, le=180, allow_inf_nan=False)]
FilePath = Annotated[Path, BeforeValidator(_resolve_path), PlainSerializer(str)]
AddressText = Annotated[Address, PlainValidator(parse_address), PlainSerializer(str)]
Duration = Annotated[int, BeforeValidator(parse_duration_ns), Field(gt=0), PlainSerializer(format_duration)]
Size = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0), PlainSerializer(format_size)]
Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Factor = Annotated[float, Strict(), Field(ge=0, le=1000, allow_inf_nan=False)]
"""Upper bound: a factor as large as this already leaves nothing of what it is compared with."""
Count = Annotated[int, Strict(), Field(ge=1)]
CountFromZero = Annotated[int, Strict(), Field(ge=0)]
