"""Reads options of Megatron-LM and of Megatron Bridge's performance scripts, and overrides of
Bridge, out of the words of a command.

The scripts (Megatron Bridge 0.3 to main 067f987 scripts/performance/argument_parser.py and
utils/overrides.py) lay their options over a recipe that only the script knows, so what is not given
here is not known; version 0.2 sets the modules without the granularity, and so without effect.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import nearest_names
from advisor.base.rule import Verdict
from advisor.base.units import whole_number
from advisor.frameworks.megatron.lint import yaml_config
from advisor.frameworks.megatron.lint.settings import KINDS, RENAMED, ReadSettings, field_of
from advisor.frameworks.megatron.options.table import known_spellings, option_of_flag
from advisor.frameworks.megatron.options.values import MIXED_PRECISION as PRECISION_NAMES
from advisor.frameworks.names import Framework
from advisor.reading.command_options import CommandOption, beyond, options, program_at, unread_words
from advisor.reading.read_configuration import ReadValue, Untaken, near, truth
from advisor.reading.shell import ShellCommand
from advisor.reading.words import Word

_OVERRIDE: Final = re.compile(
    r"\+{0,2}(?:recipe\.|training\.|cfg\.|config\.)?"
    r"(model\.config|model|trainer\.strategy|mixed_precision)(?:\.(\w+))?=(.*)",
    re.DOTALL,
)
_OF_MEGATRON: Final = re.compile(r"(pretrain|train|finetune|post_?train)\w*\.py")
_OF_MEGATRON_ALONE: Final = re.compile(
    r"--(?:recompute|num-layers|num-attention-heads|micro-batch-size|train-iters|transformer-impl"
    r"|use-distributed-optimizer|[a-z-]+-parallel)"
)
_OF_A_TRAINER: Final = re.compile(
    r"--(?:gradient|activation|per[_-]device)[_-](?:checkpointing|accumulation[_-]steps"
    r"|train[_-]batch[_-]size)"
)
_FORK: Final = ("--deepspeed", "--deepspeed-activation-checkpointing", "--zero-stage")
_WITH_HYPHEN: Final = re.compile(r"--[a-z0-9]+-")
_RECOMPUTE: Final = re.compile(r"--(?:recompute|offload|checkpoint-act)")


def read_command(command: ShellCommand) -> ReadSettings | None:
    """The settings of a command; None where it is none of Megatron's."""
    texts = command.texts
    read = ReadSettings(place=command.place)
    read.environment = {name: (w.text, w.place) for name, w in command.environment.items()}
    if any(text in _FORK for text in texts):  # DeepSpeed's fork has options of its own
        return None
    put = _put_script_option if _is_performance_script(texts) else _put
    for option in options(command.words):
        put(read, option)
    for option in options(command.words):
        row, words = option_of_flag(option.name), option.values[:1]
        more = words and words[0].unknown and row is not None and row.kind is bool
        value: object = True if more or not words else option.text
        read.put_loose(option.name, value, option.name, option.place)
    for word in command.words:
        path, equals, value = word.text.partition("=")
        if equals and "." in path:
            read.put_loose(path.rpartition(".")[2], _bare(value), path, word.place)
        override = _OVERRIDE.fullmatch(word.text)
        if override:
            _put_override(read, override, word)
    if read.given.framework == Framework.MEGATRON_BRIDGE:
        for one in read.loose.values():
            if name := yaml_config.field_in_section(one.written):
                read.put(name, one.value, one.written, one.place)
    if not (read and _is_megatrons(command, read)):
        return None
    if read.given.framework != Framework.MEGATRON_LM:
        read.texts = texts
    _check_spellings(command, read)
    _put_unknown(command, read)
    return read


def _is_megatrons(command: ShellCommand, read: ReadSettings) -> bool:
    """Names as `--bf16` or `--optimizer` alone are anybody's."""
    if read.given.framework != Framework.MEGATRON_LM:
        return True
    named = any(_OF_MEGATRON.search(text) for text in command.texts)
    own = [text for text in read.given.spellings if _WITH_HYPHEN.match(text)]
    launchers = ("accelerate", "deepspeed")
    if any(text in launchers or _OF_A_TRAINER.match(text) for text in command.texts):
        return any(_OF_MEGATRON_ALONE.match(text) for text in own)
    return bool(own) or named or command.words[0].text.startswith("-")


def _put(read: ReadSettings, option: CommandOption) -> None:
    if option.name == "--num-layers-per-virtual-pipeline-stage":
        read.given.layers_per_virtual_stage = whole_number(option.text)
        read.given.spellings.add(option.name)
        read.places["layers_per_virtual_stage"] = option.place
    name = field_of(option.name)
    if name is None:
        return
    read.given.spellings.add(option.name)
    kind, given = KINDS[name], [w for w in option.values if not w.unknown] or option.values
    texts = [word.text for word in given]
    if kind is bool:
        read.put(name, True, option.name, option.place)
        shorthand = option.name.startswith("--recompute-activations")
        if given and not given[0].unknown and (shorthand or truth(given[0].text) is not None):
            # which the program takes for an unknown argument
            reason = f"{option.name} {option.text}: the option takes no value"
            read.refuse("stray_word", reason, f"drop {option.text}", given[0].place)
    elif kind is tuple:
        value: object = " ".join(texts) if any(word.unknown for word in given) else texts
        read.put(name, value, option.name, option.place)
        read.item_places |= {(name, word.text): word.place for word in given}
    elif texts:
        read.put(name, texts[0], option.name, option.place)


def _put_override(read: ReadSettings, override: re.Match[str], word: Word) -> None:
    """``model.FIELD=VALUE`` or ``mixed_precision=NAME`` of Megatron Bridge, ``model.config.FIELD``
    of NeMo 2, ``model.activations_checkpoint_…`` of NeMo 1."""
    section, name, value = override.groups()
    given = read.given
    if section in ("model.config", "trainer.strategy"):
        given.framework, given.version = Framework.NEMO, "2"
    elif (name or "").startswith(yaml_config.NEMO_KEYS):
        given.framework, given.version = Framework.NEMO, "1"
    elif given.framework != Framework.NEMO:
        given.framework = Framework.MEGATRON_BRIDGE
    if section == yaml_config.MIXED_PRECISION and name is None:
        read.put_loose(section, value, section, word.place)
        yaml_config.put_mixed_precision(read, value, word.place)
        in_fp32 = not value.startswith("fp16")  # of the named forms
        read.put("grad_reduce_in_fp32", in_fp32, section, word.place)
        return
    name = RENAMED.get(name or "", name or "")
    if name in KINDS:
        read.put(name, _bare(value), f"{section}.{name}", word.place)


def _bare(value: str) -> str:
    """A text without the quotes in which Hydra takes its own signs."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _check_spellings(command: ShellCommand, read: ReadSettings) -> None:
    """Options that argparse does not know: it takes no underscore for a hyphen and no beginning
    for the whole (allow_abbrev=False). What is like none of Megatron's may be the script's own."""
    if read.given.framework != Framework.MEGATRON_LM:
        return
    words = command.words[program_at(command.words) :]
    unknown = [one for one in options(words) if option_of_flag(one.name) is None]
    if not any(_WITH_HYPHEN.match(text) for text in read.given.spellings):
        # perhaps another program, which shares a name as --bf16
        unknown = [one for one in unknown if _RECOMPUTE.match(one.name)]
    its_own = _ENTRY.search(words[0].text)
    for option in [one for one in unknown if one.name not in _OF_FORKS][:_MOST_UNKNOWN]:
        if meant := _meant(option.name):
            reason = f"{option.name}: Megatron-LM has no such option"
            read.refuse("unknown_option", reason, meant, option.place)
            if not its_own:
                read.faults[-1] = replace(read.faults[-1], verdict=Verdict.NOTE)
        elif its_own:
            said = ReadValue(value=option.text, written=option.name, place=option.place)
            read.untaken.append(Untaken.foreign(said))


def _meant(name: str) -> str | None:
    """What to write for an option that is misspelt; None for one that nobody knows."""
    hyphened = name.replace("_", "-")
    if option_of_flag(hyphened) is not None:
        return f"did you mean {hyphened}?" if _WITH_HYPHEN.match(hyphened) else None
    begun = [flag for flag in known_spellings() if flag.startswith(hyphened)]
    if begun and _WITH_HYPHEN.match(hyphened):
        return f"did you mean {' or '.join(sorted(begun, key=len)[:3])}?"
    if meant := near(hyphened, known_spellings(), _CLOSE):
        return f"did you mean {meant}?"
    return nearest_names(hyphened, known_spellings()) if _RECOMPUTE.match(name) else None


_OF_FORKS: Final = (
    "--recompute-modules-list",
    "--offload-optimizer-states",
    "--recompute-mtp-num-layers",
)
"""Options that begin like those of recompute and are none of Megatron's."""
_ENTRY: Final = re.compile(r"\bpretrain_(?:gpt|bert|t5|mamba|hybrid|ict|vlm)\.py$|(?<!\.py)$")
"""Megatron-LM's own programs, or none that is named; others add options."""
_MOST_UNKNOWN: Final = 50
"""Options of a command that are compared with all of Megatron's."""
_CLOSE: Final = 0.88
"""Likeness (difflib) from which an option is taken for a misspelt one: a letter or two differ."""


def _put_unknown(command: ShellCommand, read: ReadSettings) -> None:
    """Words that nobody knows and that are not the value of an option, and files of options."""
    unread = unread_words(command.words[program_at(command.words) :], _beyond)
    elsewhere = ("xargs", "--use-checkpoint-args", "--yaml-cfg")
    unread += (word for word in command.words if word.text in elsewhere)
    read.unknown += ((word.text, word.place) for word in unread)


def _beyond(option: CommandOption) -> tuple[Word, ...]:
    """Words after an option that need not be its values."""
    row, values = option_of_flag(option.name), option.values
    if row is not None and row.kind is bool:
        return values
    return values[1:] if row is not None and row.name in KINDS else beyond(option)


_SCRIPTS: Final = ("run_script.py", "run_recipe.py", "bootstrap.py", "setup_experiment.py")
_DEGREES: Final = {
    "-tp": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-et": "expert_tensor_parallel_size",
}
_SIZES: Final = {"-mb": "micro_batch_size", "-gb": "global_batch_size", "-sl": "seq_length"}
_SHORT: Final = _DEGREES | _SIZES
_NUMBERS: Final = _SHORT | {f"--{name}": name for name in _SHORT.values()}
_PLAIN: Final = {
    "--cuda_graph_impl": "cuda_graph_impl",
    "--cuda_graph_scope": "cuda_graph_modules",
    "--moe_a2a_overlap": "overlap_moe_expert_parallel_comm",
}
_WORDS: Final = {
    "bf16": Precision.BF16,
    "fp8_ds": Precision.FP8_DELAYED,
    "fp8_cs": Precision.FP8_CURRENT,
    "fp8_sc": Precision.FP8_BLOCKWISE,
    "fp8_mx": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
}
"""Precisions by the script's word."""
_MODULES: Final = "--recompute_modules"


def _is_performance_script(words: Sequence[str]) -> bool:
    """Whether a command runs one of the scripts; without a program, whether it has an option that
    only they have."""
    bare = words[0].startswith("-")
    return any(word.endswith(_SCRIPTS) or (bare and word == _MODULES) for word in words)


def _put_script_option(read: ReadSettings, option: CommandOption) -> None:
    """Store one option; those of no interest are skipped.

    The modules win the granularity over the number of layers, whose method and number stay.
    """
    read.given.framework = Framework.MEGATRON_BRIDGE
    name, value, place = option.name, option.text, option.place
    if name == _MODULES:
        read.put("recompute_modules", value.split(","), name, place)
        read.put("recompute_granularity", "selective", name, place)
    elif name in ("-rl", "--recompute_num_layers"):
        if "recompute_granularity" not in read.given.values:
            read.put("recompute_granularity", "full", name, place)
        read.put("recompute_method", "block", name, place)
        read.put("recompute_num_layers", value, name, place)
    elif name in ("-ol", "--activation_offload_layers"):
        read.put("cpu_offloading", True, name, place)
        read.put("cpu_offloading_num_layers", value, name, place)
    elif name in _PLAIN:
        field = _PLAIN[name]
        kind = KINDS[field]
        plain = truth(value or True) if kind is bool else value
        read.put(field, value.split(",") if kind is tuple else plain, name, place)
    elif name in ("-c", "--compute_dtype") and value in _WORDS:
        mixed = PRECISION_NAMES[_WORDS[value]]
        read.put_loose(yaml_config.MIXED_PRECISION, mixed, name, place)
        yaml_config.put_mixed_precision(read, mixed, place)
    elif name in _NUMBERS:
        field = _NUMBERS[name]
        read.put_loose(field, value, name, place)
        if whole_number(value) is not None and field not in _SIZES.values():
            read.put(field, value, name, place)
