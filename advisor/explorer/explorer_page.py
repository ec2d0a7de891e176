"""The page: one HTML file that loads nothing.

Style and script are those of `assets`, put one after another; preact and htm (vendor/README.md)
draw. Before the script has run, and without it, the answer stands there as a plain table, with the
flags of its choice.
"""

from html import escape
from pathlib import Path
from string import Template
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.explorer.explorer_data import document
from advisor.explorer.nearby import grid
from advisor.explorer.step_numbers import packed
from advisor.frameworks.registry import label_of, parts_of
from advisor.report.plain_advice import plain_advice
from advisor.report.setting_flags import all_flags, all_job_flags, environment_words
from advisor.report.wording import chosen
from advisor.request.request import Request
from advisor.search.layout_search import Watch

_HERE: Final = Path(__file__).parent
_SCRIPTS: Final = (
    *("data", "words", "state", "parts", "controls", "table", "pareto", "memory", "time"),
    *("flags", "step", "layer", "app"),
)


def explorer_page(
    answer: Answer, request: Request, request_line: str, watch: Watch | None = None
) -> str:
    """HTML of every row of `answer` to `request`, and of jobs near it; request_line: the command
    that asked. UserError where the answer has no row."""
    if not answer.candidates:
        raise UserError("--format", "html", "has nothing to show: every setting is rejected")
    data = packed(document(answer, grid(answer, request, watch), request, request_line))
    job = answer.job
    return Template(_asset("page.html")).substitute(
        title=escape(f"{job.model.name} on {job.num_gpus} x {job.gpu.name}"),
        style=_asset("page.css"),
        static=_static(answer),
        data=data,
        vendor=(_HERE / "vendor/htm-preact.js").read_text(encoding="utf-8"),
        script="".join(_asset(f"{name}.js") for name in _SCRIPTS),
    )


def _static(answer: Answer) -> str:
    """The table of a notebook, with all flags of its choice: layout and setting."""
    advice, best = plain_advice(answer, top=10), chosen(answer)
    assert best is not None
    evaluation = best.evaluation
    layout, environment = all_job_flags(evaluation), environment_words(evaluation)
    flags = {}
    for name, setting in all_flags(evaluation).items():
        omitted = parts_of(name).spelling.omitted(evaluation.job)
        label = " · ".join(filter(None, [label_of(name), omitted]))
        flags[label] = " ".join(filter(None, [layout[name], setting]))
    if environment:
        flags["Environment"] = f"export {environment}"
    pasted = (
        replace(one, flags=flags) if one.rank == best.rank else one for one in advice.candidates
    )
    return replace(advice, candidates=tuple(pasted))._repr_html_()


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")
