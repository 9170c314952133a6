"""Two loads held out while defaults are chosen, with the result expected of them, committed before they were played.
`--look` plays them, once."""

from __future__ import annotations

EXPECTED = """Mooncake's conversations bring 12,000 tokens with a prompt and few with an answer, and the agents alike:
nearly all that a request holds is known when it is placed. So BalanceRoute has more to balance with than on ServeGen's
reasoning, and the gains lie nearer to the paper's: in a standing backlog at 8 workers BR-0 divides JSQ's max − min by 3
to 5 and oracle BR-H by 4 to 7, with 10 to 25 % more tokens a second; near saturation by 2 to 3. Oracle BR-H is worth
more on Mooncake, whose answers are short beside its horizon. Survival gains little over BR-0 on either."""
"""Expectation, written before the loads are played."""

FOUND = """What is known when a request is placed decides, as expected, and by more: in the standing backlog BR-0
divides by 5.7 and 5.6, above what was said, and oracle BR-H by 6.9 and 7.0, at its upper end; on Mooncake tokens a
second rise by 35 to 38 % over the strongest baseline, far more than was said, and by 14 to 19 % with the agents. Near
saturation Mooncake is within what was said, and the agents lie just below it. Wrong was that the oracle is worth more
on Mooncake: over BR-0 it is the same on both. Survival gains little, as expected. Nothing was changed after the
look."""
"""Findings of that one look."""
