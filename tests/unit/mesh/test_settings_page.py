from __future__ import annotations

from mesh.settings_page import markdown
from mesh.settings_reference import Key


def test_sections_have_tables_of_their_own_after_the_keys_of_the_top_level() -> None:
    keys = [
        Key("limits", "section", "", "Bounds."),
        Key("limits.wait_max", "duration", "`5s`", "Longest\nwait. None: no bound, a | b."),
        Key("name", "name", "required", ""),
        Key("items", "list of section", "`[]`", ""),
        Key("items[].id", "name", "required", ""),
    ]
    introduction, *tables = markdown(["# Title"], keys).split("\n## ")
    assert introduction.startswith("# Title\n\nA duration is")
    head = "\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
    assert tables == [
        f"Top level{head}| `name` | name | required |  |\n",
        f"`limits`{head}| `limits` | section |  | Bounds. |\n"
        "| `limits.wait_max` | duration | `5s` | Longest wait. `null`: no bound, a \\| b. |\n",
        f"`items`{head}| `items` | list of section | `[]` |  |\n| `items[].id` | name | required |  |\n",
    ]
