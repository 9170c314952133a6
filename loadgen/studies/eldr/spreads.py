"""The generator's spreads as they were fitted (`nightside results eldr --fit`) before anything was routed. Values only.

The recording has 170 windows of 108 documents; the spreads were fitted to the 90 of its calibration half. Total
variation and one coefficient of variation of the recording and of a synthetic model of its shape:

                                        recorded  synthetic
    experts (coefficient of variation)  0.486     0.487
    domains                             0.404     0.403
    answers of one domain               0.283     0.283
    a prompt and its own answer         0.347     0.347

Not fitted, but observed: in batches of 8, 16, 32, 64 and 128, those of one domain have 9.2, 10.9, 7.2, 5.1 and 3.7 %
fewer distinct experts than mixed ones in the recording, and 9.2, 9.8, 8.7, 4.8 and 1.7 % fewer in the synthetic model.
"""

from __future__ import annotations

from loadgen.studies.eldr.generator import Spread

AS_RECORDED = Spread(experts=0.281, domains=0.823, requests=0.297, phases=0.746)
AS_PUBLISHED = Spread(experts=0.281, domains=1.454, requests=0.297, phases=0.746)
"""Spread with domains so far apart that batches of 32 to 128 of one of four have 19 % fewer experts than mixed ones, in
the middle of Fig. 4's 17 to 21 %. As recorded it is 9 %; with languages' shares 6.6 %, where Fig. 4 has 3 to 10."""
PUBLISHED_FEWER = 0.19

TASKS = {"legal": 3600.0, "code": 2779.0, "math": 2744.0, "medical": 2545.0}
"""The paper's prompts by domain."""
LANGUAGES = {
    "en": 0.50,
    "zh": 0.25,
    "ru": 0.07,
    "fr": 0.055,
    "de": 0.04,
    "es": 0.035,
    "ja": 0.03,
    "pt": 0.02,
}
"""English and Chinese are 75 % and the first four 87.5 %, as in WildChat; the division of the 75 %, and of the rest,
was not published."""
