"""Conclusions drawn from the committed figures; each is printed below the table that it was read off.

A run with other figures needs other conclusions.
"""

from __future__ import annotations

NOTES = {
    "aims": """With domains as far apart as the paper's all three aims are met: 24 % fewer experts, a median 14 %
and a p99 5 % below the best balancer. Elsewhere they are not. On the recording, whose model has half as many
experts, batches of 32 or more read nearly all of them whoever is in the batch: 14 % fewer, a median 4 % lower, and
a p99 2 % higher. With tasks only as far apart as recorded the median is that of round robin and the p99 4 % higher:
what is read less is paid for by workers that are fuller than others. Languages at that distance: median 7 % lower,
p99 8 % higher.
""",
    "signatures": """The order of the discrete ones is the paper's, and so is what choosing layers gains. That
weights by rarity gain is true of the recording (+0.08) and not of the generator, whose prompts of some 300 tokens
fire nearly every expert in some layer: what fires for every calibration request weighs nothing, log(1) = 0, and
much is lost with it (0.91 to 0.80) until layers are chosen (0.94). With long prompts, look at ρ of plain counts in
the report before you fit.
""",
    "main": """ELDR does not beat Domain here, as it does in the paper: its median is up to 2 % above, and 7 % on
tasks only as far apart as recorded. Nothing in the generator, and little in the recording, is finer than a domain,
so that being told the label is as good as any signature can be. ELDR needs no label. The p99 of both is that of
their fullest workers (× 1.4 where clusters cut across domains); balancers have none. At 20 requests a second a
batch has five requests, and locality keeps some workers idle for others' sake.
""",
    "clusters": """As in the paper where the mix is skewed: vanilla clusters put two and a half times the mean on
one worker, and the p99 14 % above round robin. Where domains have about equal shares, clusters of one size have to
cut across domains, and vanilla ones are better.
""",
    "bands": """τ = 0.1 is within a hundredth of the best median on both; 0.3 has the better tail on both, for a
little of the median where domains are less far apart. The default was not moved: it is the paper's, and this is
what it is reported on. τ = 1 is fewer experts than join shortest queue, which draws among equals: ties go to the
nearest.
""",
    "pools": """Growing the pool does not help, as it does in the paper: its finer clusters need finer kinds than
there are here.
""",
    "cache": """Locality and cache add up, as in the paper. An engine that counts only what it reads loses four
fifths of it.
""",
    "sharded": """Placement is worth another 2 %: each cluster's busy experts are spread. Gains are small where four
engines read a quarter each, as in the paper.
""",
    "bases": """At t₀ = 12 ms the median is 9 % lower on tasks, at 0.5 ms 23 %: between these lies whatever an
engine has.
""",
    "together": """The band was kept, and is `br_h_local`. Behind a barrier, with experts of each rank its own, it
is the best of all but in TTFT, which a tick adds to: a median 15 % below BR-H and 2 % below ELDR, a p99 11 % and 3
% below. Without a barrier it is ELDR with a wait for a tick, and no better. Where a group shares its experts, ELDR
at once is 2 % better than it: the choice of the group is all there is to win. In the score it is never better, and
with a small λ everything goes to one group, since F compares no groups with each other.
""",
    "drift": """What is new goes to whatever is nearest, and like to like: 24 % fewer experts than round robin are
left without any re-fit, of 27 % before. A re-fit gains little in the six seconds that follow it, in which most of
those that run were sent before. It costs what a fit costs, beside the gateway.
""",
}
