from __future__ import annotations

import yaml

from mesh.settings_samples import SAMPLES


def test_samples_are_one_line_of_yaml_in_order() -> None:
    assert list(SAMPLES) == sorted(SAMPLES)
    for text in SAMPLES.values():
        assert yaml.safe_load(text) not in (None, "", [], {})
        assert "\n" not in text
