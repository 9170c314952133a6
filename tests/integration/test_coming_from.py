"""The page for users of other gateways: each of its Nightside files is read, served and queried, and each command is
run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from gateway.config.reading import read_region_file
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServerConfig, serve_engines
from tests.support.gateways import serving_file, until
from tests.support.programs import nightside
from tests.support.served import HELLO

PAGE = Path(__file__).parents[2] / "docs/how_to/coming_from.md"
_ENGINE_URL = re.compile(r"http://10\.0\.0\.\d+:8000")


@dataclass(frozen=True)
class Section:
    title: str
    theirs: str
    ours: str
    commands: tuple[str, ...]
    named_here: str
    """Text of the right column of the section's table."""


def sections() -> Iterator[Section]:
    for text in PAGE.read_text().partition("\n## Limits\n")[0].split("\n## ")[1:]:
        title = text.partition("\n")[0]
        theirs, ours = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        shell = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        commands = tuple(line for line in shell.splitlines() if line.startswith("nightside "))
        rows = [line.rsplit(" | ", 1)[-1] for line in text.splitlines() if line.startswith("| ")]
        yield Section(title, theirs, ours, commands, "\n".join(rows))


SECTIONS = list(sections())
each_section = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)


def test_there_are_four() -> None:
    assert [section.title for section in SECTIONS] == [
        "LiteLLM's proxy",
        "vLLM's production stack",
        "llm-d",
        "Envoy's AI gateway",
    ]


@each_section
def test_their_file_is_yaml_and_names_what_is_mapped(section: Section) -> None:
    documents = list(yaml.safe_load_all(section.theirs))
    assert all(isinstance(document, dict) for document in documents)


def models_of(document: dict[str, Any]) -> list[str]:
    """One model for each engine that the file names, in order."""
    replicas = document.get("replicas") or document["dns_replicas"]
    return ["Qwen/Qwen3-32B" if each["models"] == "auto" else each["models"][0] for each in replicas]


@each_section
async def test_our_file_is_served_and_answers(section: Section, tmp_path: Path) -> None:
    document = yaml.safe_load(section.ours)
    models = models_of(document)
    configs = [EngineServerConfig(model=model, engine=TINY, time_scale=0.05, ignore_eos=True) for model in models]
    async with serve_engines(configs) as engines:
        if "dns_replicas" in document:  # no name server has a cluster's names here: an address instead
            template = document.pop("dns_replicas")[0]
            document["replicas"] = [{"id": template["id"], "models": template["models"], "url": engines[0].url}]
        for replica, engine in zip(document["replicas"], engines, strict=True):
            replica["url"] = engine.url
        document["listen"] = dict.fromkeys(("http", "admin", "peers"), "127.0.0.1:0")
        path = tmp_path / "us.yaml"
        path.write_text(yaml.safe_dump(document))
        key = await key_made_by(section.commands, tmp_path)
        async with serving_file(path) as gateway:
            await until(lambda: gateway.core.replicas.reachable.bit_count() == len(engines))
            await until(lambda: set(models) <= set(gateway.core.replicas.groups.models))
            async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key=key, max_retries=0) as client:
                asked = next(iter(document.get("models", models)))
                told = await client.chat.completions.create(model=asked, messages=HELLO, max_tokens=2)
    assert told.model == asked


async def key_made_by(commands: tuple[str, ...], folder: Path) -> str:
    """Key made by the commands that an operator types in the folder of the region file."""
    key = "unused"
    for command in commands:
        words = [str(folder / word) if word == "keys.yaml" else word for word in shlex.split(command)[1:]]
        status, told, said = await nightside(*words)
        assert status == 0, said
        key = told.strip()
    return key


@each_section
def test_our_file_is_one_that_an_operator_could_keep(section: Section, tmp_path: Path) -> None:
    """The file is checked as it stands on the page, with every address and name."""
    path = tmp_path / "us.yaml"
    path.write_text(section.ours)
    read_region_file(path)


def test_keys_that_are_named_are_ours() -> None:
    """Each `section.key` in a right column is a key of the region file."""
    reference = yaml.load((PAGE.parents[1] / "examples/every_key.yaml").read_text(), yaml.BaseLoader)
    columns = "".join(section.named_here for section in SECTIONS)
    named = re.findall(r"`([a-z_]+)\.([a-z_]+)(?:: [^`]+)?`", columns)
    assert len(named) > 8
    assert [(name, key) for name, key in named if key not in reference[name]] == []
