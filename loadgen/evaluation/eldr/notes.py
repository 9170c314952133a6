"""What was concluded from the figures that are committed, in words: each stands below the table that it was read off.

A run that gives other figures wants other words.
"""

from __future__ import annotations

NOTES = {
    "aims": "",
    "signatures": "",
    "main": "",
    "clusters": "",
    "bands": "",
    "pools": "",
    "cache": "",
    "sharded": "",
    "bases": "",
    "together": "",
    "drift": "",
}
