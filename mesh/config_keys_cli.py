"""`config-keys` of the gateway's and the controller's command: the page of a file's keys, and comments of its example.
It asks no running process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import yaml

from mesh.settings_example import commented, examples_in
from mesh.settings_page import markdown, meaning_in_yaml
from mesh.settings_reference import Key

_FILE = click.Path(dir_okay=False, path_type=Path)


def config_keys_command(introduction: Sequence[str], keys: Callable[[], Iterable[Key]], file: str) -> click.Command:
    """Make the command for the kind of file that `file` names, such as `region file`."""

    @click.command("config-keys", help=f"List every key of a {file}: type, unit, range, default, example and meaning.")
    @click.option("-o", "--output", type=_FILE, help="Write the page to this file.")
    @click.option(
        "--example",
        type=_FILE,
        help="Show values of this file, and write meanings into it in place of comments; ## stays.",
    )
    def config_keys(output: Path | None, example: Path | None) -> None:
        try:
            text = "" if example is None else example.read_text(encoding="utf-8")
            page = page_of(introduction, keys(), text)
            if example is not None:
                example.write_text(with_meanings(text, keys()), encoding="utf-8")
            if output is None:
                click.echo(page, nl=False)
            else:
                output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise click.ClickException(f"{example}: {error}") from error

    return config_keys


def page_of(introduction: Sequence[str], keys: Iterable[Key], example: str) -> str:
    """Page of the keys, with the values of an example file's text."""
    listed = list(keys)
    return markdown(introduction, listed, examples_in(example, [key.path for key in listed]))


def with_meanings(example: str, keys: Iterable[Key]) -> str:
    """Text of an example file, with the keys' meanings as its comments."""
    return commented(example, {key.path: meaning_in_yaml(key.meaning) for key in keys})
