"""`advise lint`, `models`, `rules` and the like: thin wrappers that print what others find."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.cli.arguments import UsageError, parse_config_dir
from advisor.cli.outcome import Outcome

if TYPE_CHECKING:
    from advisor.report.blocks import Block


_VERSION: Final = "--framework-version"
USAGE: Final = {
    "lint": "advise lint [--framework-version V] FILE|FLAGS: checks recompute settings\n"
    "FILE: a shell script, Megatron-LM or NeMo YAML, a Python recipe of Megatron Bridge or NeMo,\n"
    "torchtitan's TOML, DeepSpeed's JSON, Accelerate's YAML, or code with TrainingArguments.\n"
    "  advise lint train.sh\n"
    "  advise lint --recompute-granularity selective --recompute-modules core_attn mlp\n"
    "Exit codes: 0 clean or notes only; 1 an error (refused, crashes, hangs) or a warning (does\n"
    "not do what it says, or saves nothing); 2 it cannot be read.\n",
    "diagnose": "advise diagnose LOG: known failures in a training log, plain or gzip\n"
    "(- is standard input)\n"
    "Exit codes: 0 a cause is named, 1 nothing known is in it, 2 it cannot be read.\n",
    "models": "advise models [--config-dir DIR]: the names that --model takes\n",
    "gpus": "advise gpus [--config-dir DIR]: the types that --gpus takes\n",
    "recipes": "advise recipes [MODEL] [--config-dir DIR]: the recipes that Megatron Bridge, NeMo\n"
    "and Megatron-LM publish, and the setting that they ship\n",
    "rules": "advise rules [--framework F] [--framework-version V] [WORD]: what a release\n"
    "accepts, promotes and refuses; with a WORD only the rules that have it\n",
    "keys": "advise keys [--framework F] [WORD]: every KEY of KEY=VALUE, what it takes and its\n"
    "default, with the options of the framework that mean it; with a WORD those that have it\n",
}


def run(name: str, arguments: Sequence[str]) -> Outcome:
    """Run the subcommand `name`; UserError or UsageError where its arguments are wrong."""
    if arguments and arguments[0] in ("-h", "--help"):
        return Outcome(text=USAGE[name])
    return RUN[name](arguments)


def _lint(arguments: Sequence[str]) -> Outcome:
    if not arguments:
        raise UsageError("lint: needs a FILE or FLAGS, e.g. advise lint train.sh")
    from advisor.lint.target import lint_target
    from advisor.report.lint_page import lint_page

    target, version = _framework_version(arguments)
    report = lint_target(target, version)
    return Outcome(text=_printed(lint_page(report)), exit_code=report.exit_code)


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
    from advisor.diagnose import scan
    from advisor.report.diagnosis_page import diagnosis_page

    if len(arguments) != 1 or (arguments[0].startswith("-") and arguments[0] != "-"):
        raise UsageError("diagnose: needs one LOG, e.g. advise diagnose train.log")
    found = scan(Path(arguments[0]))
    page = diagnosis_page(found.findings, found.num_lines, damaged=found.damaged)
    return Outcome(text=_printed(page), exit_code=int(not found.findings))


def _models(arguments: Sequence[str]) -> Outcome:
    from advisor.base.units import human_count
    from advisor.layers.parameters import parameter_count
    from advisor.models.presets import load_preset, model_names

    folder = parse_config_dir("models", arguments)
    titles = ("parameters", "layers", "hidden", "ffn", "heads", "groups", "vocab", "sequence")
    rows = []
    for name in model_names(folder):
        spec = load_preset(name, folder).spec
        sizes = (
            spec.num_layers,
            spec.hidden_size,
            spec.ffn_hidden_size,
            spec.num_attention_heads,
            spec.num_query_groups,
            spec.vocab_size,
            spec.max_position_embeddings,
        )
        rows.append([name, human_count(parameter_count(spec).total), *map(str, sizes)])
    return _table(("model", *titles), rows, names=("model",))


def _gpus(arguments: Sequence[str]) -> Outcome:
    from advisor.base.units import DASH
    from advisor.hardware.catalogue import gpu_names, load_gpu
    from advisor.report.wording import gib

    folder = parse_config_dir("gpus", arguments)
    titles = (
        "memory GiB",
        "TB/s",
        "bf16 TFLOP/s",
        "fp8 TFLOP/s",
        "NVLink GB/s",
        "NVLink GPUs",
    )
    rows = []
    for name in gpu_names(folder):
        gpu = load_gpu(name, folder)
        numbers = [
            gib(gpu.memory_bytes),
            f"{gpu.memory_bandwidth_bytes_per_second / 1e12:.2f}",
            f"{gpu.bf16_flops / 1e12:.0f}",
            f"{gpu.fp8_flops / 1e12:.0f}" if gpu.fp8_flops else DASH,
            f"{gpu.nvlink_bytes_per_second / 1e9:.0f}" if gpu.nvlink_domain_size > 1 else DASH,
            str(gpu.nvlink_domain_size),
        ]
        rows.append([name, *numbers, gpu.calibration or "none"])
    return _table(("GPU", *titles, "calibration"), rows, names=("GPU", "calibration"))


def _recipes(arguments: Sequence[str]) -> Outcome:
    from advisor.base.errors import UserError
    from advisor.base.units import nearest_names
    from advisor.request.recipes import load_recipes, recipe_models

    model, rest = "", list(arguments)
    if rest and not rest[0].startswith("-"):
        model = rest.pop(0)
    folder = parse_config_dir("recipes", rest)
    if not model:
        rows = [[name, str(len(load_recipes(name, folder)))] for name in recipe_models(folder)]
        return _table(("model", "recipes"), rows, names=("model",))
    recipes = load_recipes(model, folder)
    if not recipes:
        near = nearest_names(model, recipe_models(folder))
        raise UserError("recipes", model, "has no recipes", near)
    titles = ("recipe", "GPUs", "precision", "sequence", "mbs", "gbs", "layout", "recompute")
    rows = [
        [
            r.name,
            f"{r.num_gpus}x{'/'.join(r.gpu_types)}",
            r.precision,
            r.values["seq_length"],
            r.values.get("micro_batch_size", ""),
            r.values["global_batch_size"],
            r.degrees,
            r.shipped_recompute,
        ]
        for r in recipes
    ]
    return _table(titles, rows, names=("recipe", "GPUs", "precision", "layout", "recompute"))


def _rules(arguments: Sequence[str]) -> Outcome:
    from advisor.cli.arguments import parse_rules
    from advisor.frameworks.registry import adapter_of, known_framework
    from advisor.report.rules_page import rules_page

    wanted = parse_rules(arguments)
    name = known_framework(wanted.framework, "--framework") if wanted.framework else ""
    overview = adapter_of(name).rules_overview(wanted.framework_version or "")
    return Outcome(text=_printed(rules_page(overview, wanted.word)))


def _keys(arguments: Sequence[str]) -> Outcome:
    from advisor.cli.arguments import parse_rules
    from advisor.frameworks.registry import adapter_of
    from advisor.report.keys_page import keys_page

    wanted = parse_rules(arguments, "keys", released=False)
    options = adapter_of(wanted.framework or "").option_names()
    return Outcome(text=_printed(keys_page(options, wanted.word)))


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, names: Sequence[str]
) -> Outcome:
    """Head and rows; the columns called `names` stand left."""
    from advisor.report.blocks import Column
    from advisor.report.text import table_lines

    columns = [Column(title=title, left=title in names) for title in titles]
    return Outcome(text="\n".join(table_lines(columns, rows, indent=0)) + "\n")


def _printed(page: "Block") -> str:
    """A page as standard output shows it."""
    from advisor.report.text import printed, screen_of

    return printed(page, screen_of(sys.stdout))


RUN: Final[dict[str, Callable[[Sequence[str]], Outcome]]] = {
    "lint": _lint,
    "diagnose": _diagnose,
    "models": _models,
    "gpus": _gpus,
    "recipes": _recipes,
    "rules": _rules,
    "keys": _keys,
}
