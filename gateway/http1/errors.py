"""Errors of connections."""

from __future__ import annotations


class EngineGone(ConnectionError):
    """The connection broke off, or what came over it is not HTTP."""
