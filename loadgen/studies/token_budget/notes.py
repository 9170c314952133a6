"""Text of the token-budget page above its figures, written after they were looked at."""

from __future__ import annotations

NOTES: tuple[str, ...] = (
    "**The paper's arithmetic is met**: by formula 364 instances for Azure-derived and 263 for LMSYS-derived"
    " (361, 265), 304 and 162 when split (301, 163), so 16.5 % and 38.4 % saved (16.6 %, 38.5 %); Fig. 6 has its"
    " shapes, but that Azure's highest is at 16K and not at 32K. Table 3's ten seconds come out nearly as"
    " published.",
    "**In the steady state its fleets are too small**: at its sizes the split's TTFT p99 is 30 s, not 1.60 s, and"
    " TPOT 45 ms at the median. As played, within the objectives, Azure-derived takes 412 instances and the split"
    " 400: 2.9 % saved. LMSYS-derived saves 47.4 %.",
    "**What saves is not to reserve whole windows.** Where one pool runs as many sequences as its paged cache is"
    " likely to hold, which is how vLLM allocates, a split saves between -4.9 % and 2.2 % on every load here."
    " Under this timing an iteration costs no more with long contexts; engines where it does would gain more from"
    " a split.",
    "On recorded loads with reserved slots a split saves 26 to 48 % where windows are long (reasoning, Mooncake),"
    " and nothing where they are 16K (Azure 2024). Azure's code takes three times what the formula says: all"
    " prompts of an instance share one prefill budget, which the formula does not know.",
    "**The threshold that tunes itself stays off by default**: within 2 points of the best in 6 of 9 rows and"
    " above it in one, but up to 27.5 points below on ServeGen's reasoning. There its short pool is overloaded"
    " because answers are long, both pools are late, and it begins at 8,192, where a threshold that stands still"
    " does little better.",
    "**Live**, the burst costs chat 7.5 s (p99) behind a plain balancer, 0.7 s behind one gateway that sends an"
    " engine nothing while somebody waits there, and 0.4 s with two pools; the long requests pay for it, with half"
    " as many engines. The machine was busy with other work, so tenths of a second say little.",
    "**Pools and regions together**: 18 instances of one reserving pool in each of three regions become 15 by a"
    " split, 11 by a mesh and 8 by both, 56 % fewer. With paged slots 15 become 12, 8 and 7. Fleets are small: one"
    " instance is several percent.",
)
