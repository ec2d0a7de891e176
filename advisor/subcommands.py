"""`advise lint | diagnose | models | gpus | rules`: thin wrappers that print what others find."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from advisor.arguments import UsageError, parse_config_dir
from advisor.outcome import Outcome

_VERSION: Final = "--framework-version"
USAGE: Final = {
    "lint": "advise lint [--framework-version V] FILE|FLAGS: checks recompute settings\n"
    "  advise lint train.sh\n"
    "  advise lint --recompute-granularity selective --recompute-modules core_attn mlp\n"
    "Exit codes: 0 clean or notes only; 1 an error (refused, crashes, hangs) or a warning (does\n"
    "not do what it says, or buys nothing); 2 it cannot be read.\n",
    "diagnose": "advise diagnose LOG: known failures in a training log (- is standard input)\n"
    "Exit codes: 0 a cause is named, 1 nothing known is in it, 2 it cannot be read.\n",
    "models": "advise models [--config-dir DIR]: the names that --model takes\n",
    "gpus": "advise gpus [--config-dir DIR]: the types that --gpus takes\n",
    "rules": "advise rules: every rule that a setting is checked against\n",
}


def run(name: str, arguments: Sequence[str]) -> Outcome:
    """Run the subcommand `name`; UserError or UsageError where its arguments are wrong."""
    if arguments and arguments[0] in ("-h", "--help"):
        return Outcome(text=USAGE[name])
    return RUN[name](arguments)


def _lint(arguments: Sequence[str]) -> Outcome:
    if not arguments:
        raise UsageError("lint: needs a FILE or FLAGS, e.g. advise lint train.sh")
    from advisor.frameworks.megatron.lint import lint_target, render

    target, version = _framework_version(arguments)
    report = lint_target(target, version)
    return Outcome(text=_line(render(report)), exit_code=report.exit_code)


def _framework_version(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """`--framework-version V` taken out of the words, wherever it stands: all others are linted."""
    words = list(arguments)
    if _VERSION not in words:
        return words, None
    at = words.index(_VERSION)
    if at + 1 == len(words) or len(words) == 2:
        raise UsageError(f"lint: {_VERSION}: needs a value and something to lint")
    version = words[at + 1]
    return words[:at] + words[at + 2 :], version


def _diagnose(arguments: Sequence[str]) -> Outcome:
    from advisor.diagnose import render, scan

    if len(arguments) != 1 or (arguments[0].startswith("-") and arguments[0] != "-"):
        raise UsageError("diagnose: needs one LOG, e.g. advise diagnose train.log")
    found = scan(Path(arguments[0]))
    text = render(found.findings, found.num_lines)
    return Outcome(text=_line(text), exit_code=int(not found.findings))


def _models(arguments: Sequence[str]) -> Outcome:
    from advisor.models.parameters import parameter_count
    from advisor.models.presets import load_preset, model_names
    from advisor.units import human_count

    folder = parse_config_dir("models", arguments)
    titles = ("parameters", "layers", "hidden", "ffn", "heads", "groups", "vocabulary", "sequence")
    rows = []
    for name in model_names(folder):
        spec = load_preset(name, folder).spec
        sizes = (
            spec.num_layers, spec.hidden_size, spec.ffn_hidden_size, spec.num_attention_heads,
            spec.num_query_groups, spec.vocab_size, spec.max_position_embeddings,
        )  # fmt: skip
        rows.append([name, human_count(parameter_count(spec).total), *map(str, sizes)])
    return _table(("model", *titles), rows, names=("model",))


def _gpus(arguments: Sequence[str]) -> Outcome:
    from advisor.cost.gpus import gpu_names, load_gpu
    from advisor.report.wording import gib

    folder = parse_config_dir("gpus", arguments)
    titles = (
        "memory GiB", "TB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "NVLink GB/s", "NVLink GPUs",
    )  # fmt: skip
    rows = []
    for name in gpu_names(folder):
        gpu = load_gpu(name, folder)
        numbers = [
            gib(gpu.memory_bytes),
            f"{gpu.memory_bandwidth_bytes_per_second / 1e12:.2f}",
            f"{gpu.bf16_flops / 1e12:.0f}",
            f"{gpu.fp8_flops / 1e12:.0f}" if gpu.fp8_flops else "—",
            f"{gpu.nvlink_bytes_per_second / 1e9:.0f}" if gpu.nvlink_domain_size > 1 else "—",
            str(gpu.nvlink_domain_size),
        ]
        rows.append([name, *numbers, gpu.calibration or "none"])
    return _table(("GPU", *titles, "calibration"), rows, names=("GPU", "calibration"))


def _rules(arguments: Sequence[str]) -> Outcome:
    if arguments:
        raise UsageError(f"rules: {arguments[0]}: takes no arguments")
    from rich.console import Group, RenderableType

    from advisor.frameworks.megatron.rules import RULES
    from advisor.report.text import beside, console_on, indented, printed

    parts: list[RenderableType] = []
    for verdict, authority in dict.fromkeys((rule.verdict, rule.authority) for rule in RULES):
        rules = [r for r in RULES if (r.verdict, r.authority) == (verdict, authority)]
        summaries = beside((rule.id, rule.summary) for rule in rules)
        parts += ["", f"{verdict}, by {authority} ({len(rules)})", indented(summaries, 2)]
    return Outcome(text=printed(Group(*parts[1:]), console_on(sys.stdout)))


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, names: Sequence[str]
) -> Outcome:
    """Head and rows; the columns called `names` stand left."""
    from advisor.report.text import Column, table_lines

    columns = [Column(title=title, left=title in names) for title in titles]
    return Outcome(text="\n".join(table_lines(columns, rows, indent=0)) + "\n")


def _line(text: str) -> str:
    """`text` with one final newline."""
    return text.rstrip("\n") + "\n"


RUN: Final[dict[str, Callable[[Sequence[str]], Outcome]]] = {
    "lint": _lint, "diagnose": _diagnose, "models": _models, "gpus": _gpus, "rules": _rules,
}  # fmt: skip
