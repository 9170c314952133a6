from __future__ import annotations

import pytest
import yaml

from mesh.settings_example import commented, entries_in, examples_in

LONG = "Longest wait, in words enough to need a line of their own above the key, since both are too long."
MEANINGS = {
    "gateway": "Name of the gateway.",
    "seed": "",
    "tenants": "Tenants by name.",
    "tenants.NAME.weight": "Weight.",
    "items": "Items.",
    "items[].id": "Name of the item.",
    "items[].models": "Models.",
    "items[].inner": "Inner section.",
    "items[].inner.wait": LONG,
    "roles": "Values of each role.",
}
TEXT = """\
## Kept.
# Dropped.

gateway: "a # b" # old
seed: null
tenants:
  acme: # old
    weight: 2.0
  default: {weight: 1.0}
items:
  - id: first # old
    # old
    models: [a, b]
    inner:
      wait: 1000000ns
  - id: second
    models: []
roles:
  look: [viewers]
unknown: 1
"""


def test_an_example_gives_each_key_its_first_value() -> None:
    assert examples_in(TEXT, MEANINGS) == {
        "gateway": '"a # b"',
        "tenants.NAME.weight": "2.0",
        "items[].id": "first",
        "items[].models": "[a, b]",
        "items[].inner.wait": "1000000ns",
        "roles": "{look: [viewers]}",
    }


def test_entries_have_their_lines() -> None:
    lines = TEXT.splitlines()
    entries = list(entries_in(TEXT, MEANINGS))
    assert [each.path for each in entries].count("items[].id") == 2
    assert all(each.path.rpartition(".")[2].replace("NAME", "") in lines[each.line] for each in entries)
    assert [each.line for each in entries if each.in_flow] == [lines.index("  default: {weight: 1.0}")]


COMMENTED = """\
## Kept.

gateway: "a # b" # Name of the gateway.
seed: null
tenants: # Tenants by name.
  acme:
    weight: 2.0 # Weight.
  default: {weight: 1.0}
items: # Items.
  - id: first # Name of the item.
    models: [a, b] # Models.
    inner: # Inner section.
      # Longest wait, in words enough to need a line of their own above the key, since both are too long.
      wait: 1000000ns
  - id: second
    models: []
roles: # Values of each role.
  look: [viewers]
unknown: 1
"""


def test_comments_are_the_meanings_and_replace_others() -> None:
    assert commented(TEXT, MEANINGS) == COMMENTED
    assert commented(COMMENTED, MEANINGS) == COMMENTED
    assert yaml.safe_load(COMMENTED) == yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    "scalar",
    [
        ">-\n  us-east-1\n  and more",
        "|\n  one # no comment\n  two",
        "'long\n  text'",
        '"long\n  text"',
        "plain\n  text",
    ],
)
def test_a_value_of_several_lines_is_kept(scalar: str) -> None:
    text = f"first: {scalar}\nseconds: 1 # an earlier comment\n"
    for each in (text, f"seconds: 1\nfirst: {scalar}\n"):
        made = commented(each, MEANINGS | {"first": "First.", "seconds": "Seconds."})
        assert yaml.safe_load(made) == yaml.safe_load(each)
        assert "earlier" not in made


def test_text_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(yaml.YAMLError):
        commented("a: [", MEANINGS)
