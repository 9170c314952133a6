from __future__ import annotations

from mesh.settings_page import markdown, meaning_in_yaml
from mesh.settings_reference import Key


def test_sections_have_tables_of_their_own_after_the_keys_of_the_top_level() -> None:
    keys = [
        Key("limits", "section", "", "", "", "", "Bounds."),
        Key("limits.wait_max", "duration", "time", "> 0", "`5s`", "5s", "Longest\nwait. None: no bound, a | b."),
        Key("name", "name", "", "", "required", "name-1", ""),
        Key("items", "list of section", "", "", "`[]`", "", ""),
        Key("items[].id", "name", "", "", "required", "name-1", ""),
    ]
    introduction, *tables = markdown(["# Title"], keys, {"name": "own"}).split("\n## ")
    assert introduction.startswith("# Title\n\nA duration is")
    head = (
        "\n\n| key | type | unit | range | default | example | meaning |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    assert tables == [
        f"Top level{head}| `name` | name |  |  | required | `own` |  |\n",
        f"`limits`{head}| `limits` | section |  |  |  |  | Bounds. |\n"
        "| `limits.wait_max` | duration | time | > 0 | `5s` | `5s` | Longest wait. `null`: no bound, a \\| b. |\n",
        f"`items`{head}| `items` | list of section |  |  | `[]` |  |  |\n"
        "| `items[].id` | name |  |  | required | `name-1` |  |\n",
    ]


def test_a_meaning_is_one_line_with_the_constants_of_yaml() -> None:
    meaning = meaning_in_yaml("Time. None: no\n  time. True: yes. False: None but this.")
    assert meaning == "Time. `null`: no time. `true`: yes. `false`: None but this."
