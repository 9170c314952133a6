"""Page `docs/reference/controller_file.md`: every key of a controller's file, from the models that check it."""

from __future__ import annotations

from controller.config import ControllerFile, Sections
from mesh.settings_page import markdown
from mesh.settings_reference import keys_of

_INTRODUCTION = (
    "# Controller file",
    "",
    "Every key of the file that a controller reads, with its type, default and meaning. The meaning is empty where the",
    "code has no more to say than the name. `nightside controller check FILE` finds faults in a file, and prints every",
    "key with its value. Example: [a file with every key](../examples/every_controller_key.yaml). This page is made by",
    "`make config-pages`, which runs `nightside controller config-keys`.",
)


def controller_file_page() -> str:
    """Return the page."""
    return markdown(_INTRODUCTION, keys_of(ControllerFile, Sections))
