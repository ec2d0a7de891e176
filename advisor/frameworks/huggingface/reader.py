"""Hugging Face: TrainingArguments on a command line, in Python or YAML, and Accelerate's file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.deepspeed.options import SHARDINGS
from advisor.frameworks.dialect import DialectReader, put_words
from advisor.frameworks.huggingface.checks import ACCELERATE, RULES, checkpointing, inside_key
from advisor.frameworks.huggingface.options import (
    ACCELERATOR,
    ATTENTION_ALONE,
    BACKEND,
    BACKENDS,
    BLOCKS,
    CHECKPOINTING,
    CP_SIZE,
    DEEPSPEED,
    FP8,
    FSDP,
    FSDP1,
    INSIDE_OFFLOAD,
    KERNELS,
    MICRO_BATCH,
    OPTIM,
    OPTIONS,
    PARALLELISM,
    PARTIAL_TRAINING,
    SAVES,
    SECTIONS,
    SP_SIZE,
    STEPS,
    TO_HOST,
)
from advisor.frameworks.huggingface.python_arguments import in_python
from advisor.frameworks.names import Framework
from advisor.job.layout import DataParallelSharding
from advisor.models.options import TransformerImpl
from advisor.reading import document_tree, key_rules, python_source, words
from advisor.reading.command_options import CommandOption, options, program_at, unread_words
from advisor.reading.read_configuration import (
    Document,
    Keys,
    ReadConfiguration,
    ReadValue,
    UnknownValue,
    Untaken,
    known,
    put_mapping,
    put_tree,
)
from advisor.reading.shell import Note, ShellCommand

_WRAPPED: Final = "fsdp_transformer_layer_cls_to_wrap"
_OWN: Final = (*CHECKPOINTING, *SECTIONS, MICRO_BATCH, "fsdp", FSDP, _WRAPPED)
_NAMES: Final = frozenset(row.name for row in OPTIONS)
_REENTRANT: Final = "4"
"""The release whose checkpoints are reentrant by default."""
_OTHERS: Final = ("output_dir", "model_name_or_path", "model_id", "model_name")
_PRECISIONS: Final = ("bf16", "fp16", "mixed_precision")
_ACCELERATE: Final = (FSDP, DEEPSPEED, "distributed_type", "compute_environment")
_ON_HOST: Final = {
    "offload_optimizer_device": "job.optimizer_cpu_offload",
    "offload_param_device": "job.param_cpu_offload",
}
_HYBRID: Final = frozenset(("HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5"))
"""A machine has all shards (torch 2.13 distributed/fsdp/_init_utils.py)."""
_SHARDINGS: Final = {
    "shard_grad_op": DataParallelSharding.GRADIENTS,
    "full_shard": DataParallelSharding.FULL,
    "hybrid_shard_zero2": DataParallelSharding.GRADIENTS,
    "hybrid_shard": DataParallelSharding.FULL,
}


class HuggingFaceReader(DialectReader):
    """TrainingArguments and Accelerate."""

    framework = Framework.HUGGINGFACE
    label = "transformers"
    options = OPTIONS

    own: ClassVar[bool] = False
    """Whether what it is asked for is known to be its own (a dialect's)."""

    def find(self, document: Document) -> Iterator[Keys]:
        """The configurations in a document that a Trainer or Accelerate reads."""
        if isinstance(document, python_source.PythonSource):
            yield from in_python(document)
        elif isinstance(document, ShellCommand):
            yield from _in_command(document, self.own)
        elif document.format != "toml":
            yield from _in_tree(document, self.own)

    def called(self, keys: Keys) -> str:
        """Accelerate's file is no Trainer's."""
        return "Accelerate" if keys.about["kind"] == "file" else super().called(keys)

    def rules_of(self, keys: Keys) -> Sequence[key_rules.KeyRule]:
        """The Trainer's, and Accelerate's where it reads them."""
        launched = keys.about["kind"] == "file" or keys.about.get("launcher")
        return (*RULES, *ACCELERATE) if launched else RULES

    def model_named(self, keys: Keys) -> str:
        """The checkpoint."""
        return str(keys.get("model_name_or_path") or "")

    def num_gpus(self, keys: Keys) -> int | None:
        """One a process."""
        return keys.number("num_processes") or keys.num_gpus

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """The sharding is a word of `fsdp`, Adam's kernels one of `optim`, the global batch a
        product. A Trainer's precision goes before Accelerate's except fp8, whose layers stay."""
        found = super().values(keys)
        for name in ("bf16", "fp16"):
            if keys.truth(name):
                found["job.precision"] = keys.means(name, name)
        if keys.get("mixed_precision") == "fp8" and keys.get(BACKEND):
            its = str(keys.get(BACKEND)).upper()
            precision = BACKENDS.get(its, f"fp8 by {its}")
            if its == "TE" and keys.truth(BLOCKS):
                precision = Precision.MXFP8
            found["job.precision"] = keys.means(BACKEND, precision)
        fsdp = str(keys.get("fsdp") or "")
        sharding = next((value for word, value in _SHARDINGS.items() if word in fsdp), None)
        if sharding is not None and not keys.has(f"{FSDP}.reshard_after_forward"):
            found["layout.data_parallel_sharding"] = keys.means("fsdp", sharding)
        of = f"{FSDP}.fsdp_sharding_strategy"
        strategy = FSDP1.get(str(keys.values[of].value)) if keys.has(of) else None
        if strategy is not None:
            found["layout.data_parallel_sharding"] = keys.means(of, strategy)
            if str(keys.values[of].value) in _HYBRID:
                machines = keys.number("num_machines") or 1
                found["layout.data_parallel_replicate_size"] = keys.means(of, machines)
        kernels = KERNELS.get(str(keys.get(OPTIM)))
        if kernels is not None:
            found["job.optimizer_implementation"] = keys.means(OPTIM, kernels)
        ranks = {key: keys.number(key) or 1 for key in (CP_SIZE, SP_SIZE)}
        key = max(ranks, key=lambda key: ranks[key])
        if ranks[key] > 1:
            found["layout.context_parallel_size"] = keys.means(key, ranks[key])
        micro, steps, num_gpus = map(keys.number, (MICRO_BATCH, STEPS, "num_processes"))
        if micro and num_gpus:
            batch = micro * (steps or 1) * num_gpus // ranks[key]
            found["job.global_batch_size"] = keys.means(MICRO_BATCH, batch)
        return found

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """A Trainer's layers and batch, and the FSDP of Accelerate."""
        found = super().omitted(keys)
        found["model.transformer_impl"] = str(TransformerImpl.TRANSFORMERS)
        if _is_a_trainers(keys):
            found["job.micro_batch_size"] = 8
        if _launches_fsdp(keys):
            found["job.flat_parameters"] = True  # fsdp_version 1, where a Trainer has 2
        return found

    def num_microbatches(self, keys: Keys) -> int | None:
        """Those that gradients are accumulated over."""
        given = keys.values.get(STEPS)
        return keys.number(STEPS) if given is not None else 1 if _is_a_trainers(keys) else None

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """FSDP's offload is a word of `fsdp`."""
        yield from super().untaken(keys)
        if "offload" in str(keys.get("fsdp")):
            yield Untaken.of(keys.values["fsdp"], "weights and gradients in host memory")

    def unknown(self, keys: Keys) -> Iterator[UnknownValue]:
        """A Trainer with neither type trains in fp32, and one that shards nothing keeps all on
        every GPU: neither is modelled. DeepSpeed's file may not be there."""
        yield from super().unknown(keys)
        precisions = [name for name in _PRECISIONS if keys.has(name)]
        if _is_a_trainers(keys) and all(keys.truth(name) is False for name in precisions):
            yield UnknownValue(
                written="neither bf16 nor fp16", text="", place=keys.place, path="job.precision"
            )
        mixed = keys.get("mixed_precision")
        misspelt = isinstance(mixed, str) and mixed not in ("bf16", "fp16", "fp8", "no")
        if misspelt or (mixed == "fp8" and not keys.get(BACKEND)):
            place, path = keys.where("mixed_precision"), "job.precision"
            written = f"mixed_precision {mixed}" if misspelt else "fp8 without a backend"
            yield UnknownValue(written=written, text="", place=place, path=path)
        shards = any(keys.has(name) or any(keys.under(name)) for name in ("fsdp", FSDP))
        words = keys.values.get("fsdp")
        if words is not None and "hybrid_shard" in str(words.value):
            yield UnknownValue(
                written=words.written,
                text="the number of machines",
                place=words.place,
                path="layout.data_parallel_replicate_size",
            )
        path = "layout.data_parallel_sharding"
        files = (_deepspeed_file(keys), keys.values.get("config_file"))
        for file in filter(None, files if "file" not in keys.about else files[:1]):
            yield UnknownValue(
                written=file.written, text=str(file.value), place=file.place, path=path
            )
        if _is_a_trainers(keys) and not shards and "launcher" not in keys.about and not any(files):
            yield UnknownValue(written="no fsdp", text="", place=keys.place, path=path)

    def _configuration(self, keys: Keys) -> ReadConfiguration:
        """A Trainer is handed DeepSpeed's file; Accelerate's may hold what that one has."""
        read = super()._configuration(keys)
        file = _deepspeed_file(keys)
        if file is not None and not isinstance(file.value, python_source.Unknown):
            read = replace(read, hands_to=Framework.DEEPSPEED)
        adapters = (one for one in self.untaken(keys) if one.note == PARTIAL_TRAINING)
        read = replace(read, partial_training=tuple(adapters))
        at = f"{DEEPSPEED}.zero_stage"
        sharding = SHARDINGS.get(keys.number(at))
        if sharding is None:
            return read
        own = {"layout.data_parallel_sharding": keys.means(at, sharding)}
        for name, path in _ON_HOST.items():
            if keys.get(f"{DEEPSPEED}.{name}") == "cpu":
                own[path] = keys.means(f"{DEEPSPEED}.{name}", True)
        return replace(
            read,
            framework=Framework.DEEPSPEED,
            takes_over=(Framework.HUGGINGFACE,),
            values={**read.values, **own},
            num_microbatches=keys.number(f"{DEEPSPEED}.{STEPS}") or read.num_microbatches,
        )

    def recompute(self, keys: Keys) -> str | None:
        """What is checkpointed, in the spelling of --recompute."""
        inside, on = keys.truth(inside_key(keys, CHECKPOINTING[0])), checkpointing(keys)
        away = keys.get(TO_HOST) not in (None, False)
        if on is None and inside is None:
            return None
        # axolotl: with an adapter, all but "hidden_states" is in place of checkpoints
        if away and keys.has("adapter") and keys.get(TO_HOST) != "hidden_states":
            return "none+offload"
        if not on and not inside:
            return "none+offload" if away and not keys.has("base_model") else "none"
        if keys.truth(SAVES) or keys.get(f"{SAVES}.save") in ATTENTION_ALONE:
            return "op:save_attention"
        every = max(keys.number(f"{s}.every_n_layers") or 1 for s in SECTIONS)
        text = f"selective:{every}" if every > 1 else "full"
        if away or any(map(keys.truth, (*(f"{s}.offload" for s in SECTIONS), INSIDE_OFFLOAD))):
            text += "+offload"
        if inside and not on and keys.release == _REENTRANT:
            return f"{text}+no_reentrant"  # Accelerate's checkpoint_wrapper
        said = (f"{s}.use_reentrant" for s in SECTIONS if keys.has(f"{s}.use_reentrant"))
        reentrant = keys.truth(next(said, ""))
        if reentrant is not None and reentrant != self.is_reentrant(keys):
            text += "+use_reentrant" if reentrant else "+no_reentrant"
        return text

    def is_reentrant(self, keys: Keys) -> bool:
        """Whether a checkpoint is reentrant unless the keys say otherwise."""
        return keys.release == _REENTRANT

    def understood(self, keys: Keys) -> str:
        """What is checkpointed."""
        setting = self.recompute(keys)
        if setting is None:
            return "checkpointing not stated"
        return "no checkpointing" if setting == "none" else f"checkpointing {setting}"


def _deepspeed_file(keys: Keys) -> ReadValue | None:
    """The file of DeepSpeed that a Trainer or Accelerate is given, or what stands in its place."""
    for key in ("deepspeed", f"{DEEPSPEED}.deepspeed_config_file"):
        given = keys.values.get(key)
        if given is not None and given.value:
            return given
    return None


def _launches_fsdp(keys: Keys) -> bool:
    """Whether Accelerate is to shard, by its file or the options of its launcher."""
    launched = keys.about["kind"] == "file" or "launcher" in keys.about
    says = keys.get("distributed_type") == "FSDP" or keys.truth("use_fsdp")
    return launched and bool(says) and not keys.has(f"{FSDP}.fsdp_version")


def _is_a_trainers(keys: Keys) -> bool:
    """Whether all arguments of a Trainer are there, so that what is not said is its default."""
    return keys.has("output_dir")


def _in_tree(tree: document_tree.Tree, own: bool) -> Iterator[Keys]:
    """Arguments of a Trainer, or Accelerate's file; `own`: the former."""
    accelerate = any(name in tree.values for name in _ACCELERATE)
    arguments = own or any(name in tree.values for name in (MICRO_BATCH, *CHECKPOINTING))
    if own or accelerate or any(_is_argument(tree, name) for name in _OWN):
        kind = "file" if accelerate and not arguments else "arguments"
        keys = Keys(place=tree.place, about={"kind": kind})
        if accelerate:
            keys.about["file"] = "Accelerate's"
        put_tree(keys, tree)
        yield keys


def _is_argument(tree: document_tree.Tree, name: str) -> bool:
    """DeepSpeed has a section with the name of an argument."""
    held = tree.get(name)
    return held is not None and not (name in CHECKPOINTING and isinstance(held, Mapping))


def _in_command(command: ShellCommand, own: bool) -> Iterator[Keys]:
    """Options of the training program; before it, those of `accelerate launch`. own: whatever they
    are."""
    keys = Keys(place=command.place, about={"kind": "command"})
    at = program_at(command.words)
    before = command.words[: at or len(command.words)]
    if any(word.text == "accelerate" for word in before):
        keys.about["launcher"] = "accelerate"
        keys.unread += tuple(Note(word.text, word.place) for word in unread_words(before))
        for option in options(before):
            name = option.name.lstrip("-").replace("-", "_")
            if not option.name.startswith("--"):
                continue
            if name.startswith("fsdp_"):
                keys.put(f"{FSDP}.{name}", option.text or True, option.place, option.name)
            elif name.startswith(f"{PARALLELISM}_"):
                keys.put(f"{PARALLELISM}.{name}", option.text, option.place, option.name)
            elif name.startswith("fp8_"):
                keys.put(f"{FP8}.{name[4:]}", option.text, option.place, option.name)
            elif f"{DEEPSPEED}.{name}" in _NAMES:
                keys.put(f"{DEEPSPEED}.{name}", option.text, option.place, option.name)
            else:
                keys.put(name, option.text or True, option.place, option.name)
    for variable, word in command.environment.items():
        name = variable.lower()
        if name.startswith(f"{PARALLELISM}_"):
            keys.put(f"{PARALLELISM}.{name}", word.text, word.place, variable)
        elif name == "accelerate_mixed_precision" or name.startswith("accelerate_fp8_"):
            keys.put(name[11:].replace("fp8_", f"{FP8}.", 1), word.text, word.place, variable)
    if own:
        put_words(keys, command)
    for option in options(command.words[at:]):
        _put(keys, option)
    own = own or any(name in _OWN for name in keys.under(""))
    others = any(key in _OTHERS for key in keys.values)
    misspelt = any(key.startswith(("gradient_check", "activation_check")) for key in keys.values)
    launched = "launcher" in keys.about and any(keys.has(name) for name in _PRECISIONS)
    if own or launched or (misspelt and others):
        yield keys


def _put(keys: Keys, option: CommandOption) -> None:
    if not option.name.startswith("--"):
        return
    name = option.name.removeprefix("--").replace("-", "_")
    if "." in name:
        return
    if name.startswith("no_") and not option.values and name[3:] in _NAMES:
        keys.put(name[3:], False, option.place, option.name)  # of what is on by default
        return
    if name in (FSDP, ACCELERATOR, *SECTIONS) and option.values:
        _put_json(keys, name, option.values[0], option)
        return
    value: Any = " ".join(word.text for word in option.values) if option.values else True
    keys.put(name, value, option.place, option.name)


def _put_json(keys: Keys, name: str, word: words.Word, option: CommandOption) -> None:
    """A dictionary written as JSON, or the name of a file that holds one."""
    try:
        held = json.loads(word.text)
    except json.JSONDecodeError:
        held = None
    if isinstance(held, Mapping):
        put_mapping(keys, held, option.place, name)
    elif word.text.endswith(".json") or not known(word.text):
        keys.put(f"{name}_file", word.text, option.place, option.name)
    else:
        keys.put(name, word.text, option.place, option.name)
