"""`nightside controller config-keys`: every key of a controller file. It asks no running controller."""

from __future__ import annotations

from collections.abc import Iterable

from controller.config import ControllerFile, ControllerSections
from mesh.config_keys_cli import config_keys_command
from mesh.settings_reference import Key, keys_of

INTRODUCTION = (
    "# Controller file",
    "",
    "Every key of the file that a controller reads. `nightside controller check FILE` finds faults in a file, and",
    "prints every key with its value. Example: [a file with every key](../examples/every_controller_key.yaml).",
    "This page is made by `make config-pages`, which runs `nightside controller config-keys`.",
)


def controller_file_keys() -> Iterable[Key]:
    return keys_of(ControllerFile, ControllerSections)


config_keys = config_keys_command(INTRODUCTION, controller_file_keys, "controller file")
