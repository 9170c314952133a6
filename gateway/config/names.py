"""Syntax of names: models, replicas and engines' addresses. Every reader of such a name checks it here."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer, Strict, ValidatorFunctionWrapHandler, WrapValidator

from gateway.core.vocabulary import IDENTITY_BYTES_MAX, MODEL_NAME_LENGTH_MAX

PROMPT_BLOCKS_MAX = 2**20
AUTO_MODELS: tuple[str, ...] = ()
"""Value of `models: auto`; a list in the file cannot be empty."""
_DNS_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def is_model_name(text: str) -> bool:
    return text.isprintable() and " " not in text and 0 < len(text) <= MODEL_NAME_LENGTH_MAX


def is_model_identity(text: str) -> bool:
    """Return whether the text may be an identity of a model; empty: the identity is not known."""
    return text.isprintable() and len(text.encode(errors="surrogatepass")) <= IDENTITY_BYTES_MAX


def _check_model_identity(text: str) -> str:
    if not text or not is_model_identity(text):
        raise ValueError(f"an identity is 1 to {IDENTITY_BYTES_MAX} bytes of printable text")
    return text


def _check_model_name(text: str) -> str:
    if not is_model_name(text):
        raise ValueError(f"a model name is 1 to {MODEL_NAME_LENGTH_MAX} printable characters without spaces")
    return text


def _check_engine_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{text!r} is not an address such as http://10.0.0.7:8000")
    if url.username or url.password or url.query or url.fragment:
        raise ValueError("should hold no user, password, query or fragment; keys go into api_key_file or api_key_env")
    if url.path.rstrip("/").endswith("/v1"):
        raise ValueError("should end before /v1: the gateway adds the path of each API call")
    return text.rstrip("/")


def _check_dns_name(text: str) -> str:
    labels = text.rstrip(".").split(".")
    if len(text) > 253 or not all(map(_DNS_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not a name that DNS can be asked for")
    return text.rstrip(".").lower()


def _listed_or_auto(value: object, handler: ValidatorFunctionWrapHandler) -> Any:
    return AUTO_MODELS if value == "auto" else handler(value)


def _check_side_channel_host(text: str) -> str:
    if "/" in text:
        ip_network(text)
        return text
    try:
        return str(ip_address(text))
    except ValueError:
        return _check_dns_name(text)


ModelIdentity = Annotated[str, Strict(), AfterValidator(_check_model_identity)]
Model = Annotated[str, Strict(), AfterValidator(_check_model_name)]
Url = Annotated[str, Strict(), AfterValidator(_check_engine_url)]
SideChannelHost = Annotated[str, Strict(), AfterValidator(_check_side_channel_host)]
DnsName = Annotated[str, Strict(), AfterValidator(_check_dns_name)]
Models = Annotated[
    tuple[Model, ...],
    Field(min_length=1),
    WrapValidator(_listed_or_auto),
    PlainSerializer(lambda models: list(models) or "auto"),
]
