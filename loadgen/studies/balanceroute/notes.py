"""Conclusions drawn from the committed figures; each is printed below the table that it was read off.

A run with other figures needs other conclusions.
"""

from __future__ import annotations

CHOSEN = """No default was changed. What three seeds differ by is more than what most values do, so that the best of a
column is no finding. Only a β below G is clearly worse: it lets a worker pass the fullest too lightly, and costs more
than half of what is gained. H from 8 to 96, γ from 0.9 on, C from 4 to 64 and any bound of stage 1 are within a tenth
of each other, as the paper found of β and γ. C = 32 has no lead over C = 4, since a slot or two are free at a time.
The highest, β = 32 (four times G), leads by a tenth, and was not taken for that.
"""

LEFT = """Oracle BR-H is several times to dozens of times above the bound: either there is much left, or the bound is
weak; it does not tell which. It is nearest where heavy requests wait in plenty (the overload, made-up prompts), which
is where a gap can be filled at once: there little can be left.
"""

SENDING = """Which wins when: at 400 Gbit/s nothing is gained by sending early, and balance is lost, since who is sent
early was chosen for what the worker held then. On prompts that are long beside the answers, at 10 Gbit/s, hiding the
transfer is worth more than choosing well: BR-0 past the pool has the most tokens a second, and BR-H with two early
has more than BR-H from the pool, by 3 %. On ServeGen's reasoning an answer takes half a minute and its transfer a few
milliseconds: what differs there is hardly more than what seeds differ by. So: from the pool on a fast network; past
the pool, with BR-0, where a transfer takes a hundredth of an answer or more; BR-H with two early in between.
"""

MATTERS = """- **The lease.** With 30 s, who has waited for 15 s goes first, and on ServeGen's reasoning, a few of
  which come in a second, that is two in five of all who are sent: age decides then, and no policy. Where an engine
  keeps a prompt's blocks for longer (Mooncake's 480 s, vLLM's `kv_lease_duration` with NIXL), `decode.pool_ttl` may
  follow it.
- **A step's fixed part** takes most of what balance is worth: throughput is won from reading KV alone.
- **Larger batches** mean more free slots in the same time, and so more choices: the gaps close far better on prompts.
- **A larger pool** is no sure help: gaps are smaller with it on ServeGen's reasoning, and wider on made-up prompts,
  since of those who wait the heavy ones have left already. Neither has more tokens a second.
"""
