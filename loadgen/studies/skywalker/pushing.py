"""Section of Fig. 9: blind, outstanding and pending-request pushing, on four selections, with the in-band credit on and
off."""

from __future__ import annotations

from loadgen.pages.drawing import Bars, rows
from loadgen.pages.markdown import bullets, table
from loadgen.pages.templates import picture_file
from loadgen.studies import numbers as of
from loadgen.studies.numbers import measured, median_of, number, percent, ratio, seconds_of, spread_times
from loadgen.studies.skywalker.plan import PENDING, PUSHING, SELECTIONS, WITH_CREDIT
from loadgen.studies.skywalker.reader import Reader, Section

_HEAD = ("selection, pushing", "requests/s", "SP-P over it", "TTFT p90, s", "it over SP-P", "whole p50, s", "hits",
         "busiest / mean")  # fmt: skip
_PLOT = "skywalker-fig9.svg"


def pushing(reader: Reader) -> Section:
    cases = [(selection, name) for selection, _ in SELECTIONS for name, _ in PUSHING]
    throughput, waits_s = (
        [median_of(reader.pushing(*case), measure) for case in cases] for measure in (of.THROUGHPUT, of.TTFT_P90)
    )
    panels = (Bars("Requests a second", throughput), Bars("P90 of TTFT, s", waits_s, is_log=True))
    plot = rows("Pushing: throughput and first tokens", [", ".join(case) for case in cases], panels)
    text = "\n".join(
        [
            "## Fig. 9: when to push\n",
            "One region, 4 replicas, 30 clients, ToT with two branches. Paper: SP-P over BP × 1.27 in throughput and"
            " × 18.47 in P90 of TTFT, over SP-O × 1.4 in throughput. The length of ToT's answers, 340 tokens in the"
            " median, was chosen, after 160, 300 and 420, such that BP falls behind SP-P as far as in the paper: that"
            " ratio is partly calibrated, and no independent finding. The paper changed SGLang's router to push so: its"
            " figures are held against ours with that router's selection.\n",
            table(_HEAD, [_row(reader, selection, name) for selection, name in cases]),
            _credit(reader),
            f"![Throughput and P90 of TTFT]({_PLOT})\n",
        ]
    )
    return Section(text, {_PLOT: picture_file(plot)})


def _row(reader: Reader, selection: str, name: str) -> tuple[str, ...]:
    runs, pending = reader.pushing(selection, name), reader.pushing(selection, PENDING)
    return (
        f"{selection}, {name}",
        number(measured(runs, of.THROUGHPUT)),
        spread_times(ratio(pending, runs, of.THROUGHPUT)),
        seconds_of(measured(runs, of.TTFT_P90)),
        spread_times(ratio(runs, pending, of.TTFT_P90), 1),
        seconds_of(measured(runs, of.ANSWER_P50)),
        percent(measured(runs, of.HITS)),
        number(measured(runs, of.BUSIEST)),
    )


def _credit(reader: Reader) -> str:
    said = []
    for selection, _ in SELECTIONS:
        with_credit, without = reader.pushing(selection, WITH_CREDIT), reader.pushing(selection, PENDING)
        throughput = spread_times(ratio(with_credit, without, of.THROUGHPUT))
        waits = spread_times(ratio(with_credit, without, of.TTFT_P90))
        said.append(f"{selection}: throughput {throughput}, P90 of TTFT {waits}")
    return f"The in-band credit, on against off:\n\n{bullets(said)}"
