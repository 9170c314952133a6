"""Classifiers, which tell a prompt's category: the built-in one, or one that another package provides under the entry
point group `nightside.classifier`. Only those that a config names are loaded.
"""

from __future__ import annotations

from functools import cache

from gateway.config.plug_ins import load_plug_in
from gateway.core.vocabulary import Category, Classifier

GROUP = "nightside.classifier"
SAMPLED = "sampled"
"""Name of the built-in classifier."""


@cache
def find_classifier(name: str) -> Classifier:
    """Import a classifier, once per process. Raises PlugInUnusable."""
    found = load_plug_in(GROUP, name, (SAMPLED,))
    if not callable(found.brought):
        raise found.unusable("cannot be called")
    if not isinstance(answer := found.brought(b"a word"), Category):
        raise found.unusable(f"answers {type(answer).__name__}, which is no gateway.core.vocabulary.Category")
    return found.brought


def plug_in_of(name: str) -> Classifier | None:
    """Classifier of a plug-in; None: the config names the built-in one. Raises PlugInUnusable."""
    return None if name == SAMPLED else find_classifier(name)
