"""`advise lint`, `models`, `rules` and the like: thin wrappers that print what others find."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError
from advisor.cli.arguments import (
    UsageError,
    choices,
    parse,
    parse_config_dir,
    parse_rules,
    parser_of,
    refuse_more_than_a_request,
    words_alone,
)
from advisor.cli.outcome import FITS, WRONG, Outcome

if TYPE_CHECKING:
    from argparse import Namespace

    from advisor.diagnose.scan import Diagnosis
    from advisor.lint.target import LintReport
    from advisor.report.blocks import Block, Table


def run(name: str, arguments: Sequence[str]) -> Outcome:
    """Run the subcommand `name`; UserError or UsageError where its arguments are wrong."""
    if arguments and arguments[0] in ("-h", "--help"):
        from advisor.cli.help import SUBCOMMANDS
        from advisor.report.command_help import help_page

        return _shown(help_page(SUBCOMMANDS[name], choices))
    return RUN[name](arguments)


def _shown(page: "Block", exit_code: int = FITS, talk: tuple[str, ...] = ()) -> Outcome:
    from advisor.report.text import on_screen

    return Outcome(text=on_screen(page), exit_code=exit_code, talk=talk)


def _lint(arguments: Sequence[str]) -> Outcome:
    asked, words = parser_of("lint").parse_known_args(list(arguments))
    if not words:
        raise UsageError("lint: needs a FILE or FLAGS, e.g. advise lint train.sh")
    no_names = [word for word in words if word[:1] == "-" or "=" in word or not Path(word).suffix]
    are_files = all(Path(word).exists() for word in no_names)
    if (asked.fix or asked.diff) and not are_files:
        raise UsageError(f"lint: --{'fix' if asked.fix else 'diff'}: needs a FILE")
    from advisor.lint.target import NothingToLintError, lint_target

    reports, talk, diffs, unread = [], [], "", False
    files = [file for word in words for file in _files(word)] if are_files else []
    for target in dict.fromkeys(files) if are_files else [words]:
        try:
            if asked.fix or asked.diff:
                report, diff = _fixed(Path(str(target)), asked)
                diffs += diff
            else:
                report = lint_target(target, asked.framework_version)
            reports.append(report)
        except UserError as error:
            unknown = isinstance(error, NothingToLintError)
            passes = asked.skip_unknown or words != files[:1]
            if not (passes and are_files and Path(str(target)).is_file()):
                raise
            unread |= not unknown and not asked.skip_unknown
            talk += [] if unknown and asked.skip_unknown else [f"advise: skipped: {error}"]
    if not reports:
        talk.append(f"advise: nothing was checked: no setting of a known framework in {words[0]}")
    code = max((one.exit_code for one in reports), default=FITS) or int(bool(asked.diff and diffs))
    code = WRONG if unread else code
    if asked.format not in (None, "text"):
        from advisor.report.lint_formats import formatted

        return Outcome(formatted(reports, asked.format), code, (*talk, *diffs.splitlines()))
    from advisor.report.lint_page import lint_page
    from advisor.report.text import on_screen

    pages = (on_screen(lint_page(one, fixed=asked.fix or asked.diff)) for one in reports)
    return Outcome("\n".join(filter(None, (diffs, *pages))), code, tuple(talk))


def _files(word: str) -> list[str]:
    """A file, or those of a folder that may be launch scripts or configurations, none hidden."""
    from glob import glob

    from advisor.base.errors import show_path

    if not Path(word).exists():
        raise UserError("lint", show_path(word), "is neither a file nor flags")
    if not Path(word).is_dir():
        return [word]
    names = sorted(glob("**", root_dir=word, recursive=True))
    below = (Path(word, name) for name in names if name.endswith(_SUFFIXES))
    return [str(path) for path in below if path.is_file()]


_SUFFIXES: Final = (
    *(".sh", ".bash", ".sbatch", ".slurm", ".yaml", ".yml", ".toml", ".json", ".py"),
)


def _fixed(path: Path, asked: "Namespace") -> "tuple[LintReport, str]":
    """What is left to be said of a file, and what changes in it; `--fix` writes that."""
    from advisor.base.output_file import write_over
    from advisor.lint.fix import fixed

    found = fixed(path, asked.framework_version)
    if found.diff and not asked.diff:
        write_over(path, found.before, found.after)
    return found.report, found.diff


def _diagnose(arguments: Sequence[str]) -> Outcome:
    from advisor.diagnose.scan import scan
    from advisor.report.diagnosis_page import diagnosis_page

    if arguments[:1] == ["--symptom"]:
        return _symptom(" ".join(arguments[1:]))
    if len(arguments) != 1 or (arguments[0].startswith("-") and arguments[0] != "-"):
        raise UsageError("diagnose: needs one LOG, e.g. advise diagnose train.log")
    found = scan(Path(arguments[0]))
    page = diagnosis_page(found, advise=_advise_line(found))
    return _shown(page, int(all(one.failure.unlisted for one in found.findings)))


def _symptom(text: str) -> Outcome:
    """The failures without a text that the words describe; all of them where none is near."""
    from advisor.diagnose.symptoms import symptoms, symptoms_of
    from advisor.report.diagnosis_page import symptoms_page

    near = symptoms_of(text)
    known = bool(near) or text in ("", "list")
    talk = () if known else (f"advise: no known symptom is like {text!r}",)
    return _shown(symptoms_page(near or symptoms(), short=not near), int(not known), talk)


def _advise_line(found: "Diagnosis") -> str:
    """The line whose answer fits the job that ran out of memory, or why there is none; empty where
    no other setting is called for."""
    from shlex import join

    from advisor.api.answering import answer_to
    from advisor.diagnose.job_line import job_words
    from advisor.diagnose.out_of_memory import needs_another_setting

    if not any(map(needs_another_setting, found.findings)):
        return ""
    try:
        words, ran = job_words(found.head)
        for line in (words, (*words, "--search", "layout")):
            rows = (one.evaluation for one in answer_to(parse(line).request).candidates)
            if fitting := [one.setting.spec for one in rows if one.fits]:
                doubt = " (it says that what ran fits, too: compare --explain with the log)"
                return join(("advise", *line)) + (doubt if ran in fitting else "")
    except UserError as error:
        return f"{str(error).removeprefix('LOG: ')}: run advise --from your launch script"
    return "no setting and no layout of this job fits on these GPUs: take more, or a smaller model"


def _models(arguments: Sequence[str]) -> Outcome:
    from advisor.base.errors import nearest_names
    from advisor.base.units import human_count
    from advisor.layers.parameters import parameter_count
    from advisor.models.presets import load_preset, model_names

    word, folder = _word("models", arguments)
    titles = ("parameters", "layers", "hidden", "ffn", "heads", "groups", "vocab", "sequence")
    rows = []
    for name in model_names(folder):
        preset = load_preset(name, folder)
        if not any(word.lower() in one.lower() for one in (name, *preset.hub)):
            continue
        sizes = (str(getattr(preset.spec, field)) for field in _MODEL_SIZES)
        rows.append([name, human_count(parameter_count(preset.spec).total), *sizes])
    if not rows:
        near = nearest_names(word.rpartition("/")[2], model_names(folder))
        raise UserError("models", word, "is in no name and no hub id of a model", near)
    spare = ("groups", "vocab", "heads", "ffn", "hidden")
    return _table(("model", *titles), rows, names=("model",), spare=spare)


_MODEL_SIZES: Final = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("vocab_size", "max_position_embeddings"),
)


def _word(command: str, arguments: Sequence[str]) -> tuple[str, Path | None]:
    """The word that a command of names is given, and --config-dir."""
    rest = list(arguments)
    word = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    return word, parse_config_dir(command, rest)


def _gpus(arguments: Sequence[str]) -> Outcome:
    from advisor.base.units import DASH
    from advisor.hardware.calibration import Provenance, load_calibration
    from advisor.hardware.catalogue import gpu_names, load_gpu
    from advisor.report.wording import gib

    folder = parse_config_dir("gpus", arguments)
    titles = "memory GiB", "TB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "link GB/s", "linked GPUs"
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
        found = load_calibration(gpu, folder)
        fitted = found.provenance is not Provenance.DATASHEET
        rows.append([name, *numbers, found.name if fitted else "none"])
    names = ("GPU", "calibration")
    return _table(("GPU", *titles, "calibration"), rows, names=names, spare=titles[::-1])


def _recipes(arguments: Sequence[str]) -> Outcome:
    from advisor.base.errors import nearest_names
    from advisor.models.presets import hub_ids
    from advisor.request.recipes import load_recipes, recipe_models

    model, folder = _word("recipes", arguments)
    model = hub_ids(folder).get(model.lower(), model)
    if not model:
        rows = [[name, str(len(load_recipes(name, folder)))] for name in recipe_models(folder)]
        return _table(("model", "recipes"), rows, names=("model",))
    recipes = load_recipes(model, folder)
    if not recipes:
        near = nearest_names(model, recipe_models(folder))
        raise UserError("MODEL", model, "has no recipes", f"{near} (advise recipes lists all)")
    names = ("recipe", "GPUs", "precision", "layout", "recompute")
    titles = ("recipe", "GPUs", "precision", "sequence", "mbs", "gbs", "layout", "recompute")
    rows = []
    for r in recipes:
        job = (r.values.get(key, "") for key in _OF_JOB)
        gpus = f"{r.num_gpus}x{'/'.join(r.gpu_types)}"
        rows.append([r.name, gpus, r.precision, *job, r.degrees, r.shipped_recompute])
    spare = ("mbs", "precision", "gbs", "sequence")
    return _table(titles, rows, names=names, above="recipe", spare=spare)


_OF_JOB: Final = ("seq_length", "micro_batch_size", "global_batch_size")


def _rules(arguments: Sequence[str]) -> Outcome:
    from advisor.frameworks.registry import known_framework, parts_of
    from advisor.report.lint_page import rules_page

    wanted = parse_rules(arguments)
    name = known_framework(wanted.framework, "--framework") if wanted.framework else ""
    overview = parts_of(name).settings.rules_overview(wanted.framework_version or "")
    return _shown(rules_page(overview, wanted.word))


def _keys(arguments: Sequence[str]) -> Outcome:
    from advisor.frameworks.registry import parts_of
    from advisor.report.lint_page import keys_page

    wanted = parse_rules(arguments, "keys")
    return _shown(keys_page(parts_of(wanted.framework or "").spelling.option_names(), wanted.word))


def _table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: Sequence[str],
    above: str = "",
    spare: Sequence[str] = (),
) -> Outcome:
    """Head and rows; the columns called `names` stand left. On a narrow page the column `above` has
    lines of its own, and those called `spare` are left out, the first of them first."""
    from functools import partial

    from advisor.report.blocks import Column, Fitted, group, spec_cell, table

    found = table(
        Column(
            title=title,
            left=title in names,
            wrap=title == "recompute",
            above=title == above,
            spare=spare.index(title) + 1 if title in spare else 0,
        )
        for title in titles
    )
    for row in rows:
        cells = zip(titles, row, strict=True)
        found.add_row(*(spec_cell(cell) if title == "recompute" else cell for title, cell in cells))
    return _shown(group(found, Fitted(partial(_left_out, found), "dim")))


def _left_out(found: "Table", width: int) -> list[str]:
    """What a narrow page has no room for, and how to see it."""
    from advisor.report.blocks import wrapped

    names, wide = found.left_out(width), found.natural_width(width)
    words = f"columns left out: {', '.join(names)} (COLUMNS={wide} shows all)"
    return wrapped(words, width) if names else []


def _check(arguments: Sequence[str]) -> Outcome:
    from advisor.api.admission import admission

    asked, words = parser_of("check").parse_known_args(list(arguments))
    files = [word for word in words_alone(words) if "=" not in word]
    if len(files) == 1:
        words.remove(files[0])
        words = ["--from", files[0], *words]
    options = parse(words)
    refuse_more_than_a_request(options, "check")
    found = admission(options.request, options.read)
    text = found.to_json() if asked.format == "json" else f"{found}\n"
    return Outcome(text, found.exit_code)


def _diff(arguments: Sequence[str]) -> Outcome:
    from advisor.cli.diff import diff

    return diff(arguments)


def _completion(arguments: Sequence[str]) -> Outcome:
    from advisor.cli.completion import shell_script

    return Outcome(text=shell_script("advise", arguments))


def answer_shell() -> None:
    """Answer the shell that asks what may stand next, and end the process."""
    from advisor.cli.completion import SHELLS, complete
    from advisor.cli.help import RANKING, SUBCOMMANDS
    from advisor.request.recipes import recipe_models

    words = {"": lambda _: SUBCOMMANDS, "recipes": lambda _: recipe_models()}
    complete("advise", {"": RANKING, **SUBCOMMANDS}, {**words, "completion": lambda _: SHELLS})


RUN: Final[dict[str, Callable[[Sequence[str]], Outcome]]] = {
    "completion": _completion,
    "check": _check,
    "diff": _diff,
    "lint": _lint,
    "diagnose": _diagnose,
    "models": _models,
    "gpus": _gpus,
    "recipes": _recipes,
    "rules": _rules,
    "keys": _keys,
}
