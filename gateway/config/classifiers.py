"""What says which kind of text a prompt is: ours, or one that another package brings under the entry point group
`nightside.classifier`. It loads only what a config names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gateway.config.plug_ins import load_plug_in
from gateway.core.vocabulary import Category

GROUP = "nightside.classifier"
SAMPLED = "sampled"
"""Ours."""

Classifier = Callable[[bytes], Category]
"""Told some windows of a text in UTF-8, half a kilobyte together at most, never none. It is called for each request
that is estimated, on the loop: it has microseconds. What it raises is an error of ours, and of that request alone."""


@cache
def find_classifier(name: str) -> Classifier:
    """Import it, once in the life of the process. Raises PlugInUnusable."""
    found = load_plug_in(GROUP, name, (SAMPLED,))
    if not callable(found.brought):
        raise found.unusable("cannot be called")
    if not isinstance(answer := found.brought(b"a word"), Category):
        raise found.unusable(f"answers {type(answer).__name__}, which is no gateway.core.vocabulary.Category")
    return found.brought
