"""Classifiers, which tell a prompt's category: the built-in one, or one that another package provides under the entry
point group `nightside.classifier`. Only those that a config names are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gateway.config.plug_ins import load_plug_in
from gateway.core.vocabulary import Category

GROUP = "nightside.classifier"
SAMPLED = "sampled"
"""Name of the built-in classifier."""

Classifier = Callable[[bytes], Category]
"""Function from excerpts of a text in UTF-8, together at most half a kilobyte and never empty, to its category. It runs
on the event loop for each request that is estimated, so it has microseconds. An exception of it counts as the gateway's
own error, and affects that request alone."""


@cache
def find_classifier(name: str) -> Classifier:
    """Import a classifier, once per process. Raises PlugInUnusable."""
    found = load_plug_in(GROUP, name, (SAMPLED,))
    if not callable(found.brought):
        raise found.unusable("cannot be called")
    if not isinstance(answer := found.brought(b"a word"), Category):
        raise found.unusable(f"answers {type(answer).__name__}, which is no gateway.core.vocabulary.Category")
    return found.brought
