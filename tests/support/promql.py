"""Parses PromQL as far as needed to find the series, labels and label values that an expression names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/nightside.rules.yaml"
DASHBOARD = ROOT / "deploy/grafana/nightside.json"
OF_THE_SCRAPE = frozenset({"job", "instance"})
"""Labels that Prometheus itself adds to every series."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"\b(?P<name>[a-zA-Z_:][\w:]*)\s*(?P<matchers>\{[^}]*\})?(?!\s*\(|[\w:])")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<how>=~|!~|!=|=)\s*"(?P<value>[^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_KEYWORDS = frozenset({"and", "or", "unless", "offset", "bool", "by", "without", "on", "ignoring", "inf", "nan"})


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    how: str
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    matchers: tuple[Matcher, ...]
    text: str


def selectors(expression: str) -> Iterator[Selector]:
    plain = _RANGE.sub("", _GROUPING.sub("", expression))
    for found in _SELECTOR.finditer(plain):
        inside = found["matchers"] or ""
        if found["name"].lower() not in _KEYWORDS and not _is_in_braces_or_quotes(plain, found.start()):
            matchers = tuple(Matcher(m["label"], m["how"], m["value"]) for m in _MATCHER.finditer(inside))
            yield Selector(found["name"], matchers, found.group())


def grouping_labels(expression: str) -> set[str]:
    """Labels by which, or without which, an expression aggregates."""
    return {label.strip() for inside in _GROUPING.findall(expression) for label in inside.split(",") if label.strip()}


def _is_in_braces_or_quotes(text: str, at: int) -> bool:
    before = _STRING.sub(lambda found: "_" * len(found.group()), text)[:at]
    return before.count("{") > before.count("}")


def rules() -> list[dict[str, Any]]:
    document = yaml.load(RULES.read_text(), yaml.CSafeLoader)
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard_queries(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and query of each panel, with all gateways selected and a rate interval of a minute."""
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$gateway", ".*").replace("$__rate_interval", "1m")


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document
