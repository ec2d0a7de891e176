"""What a Trainer refuses or passes over of its arguments, and Accelerate of its file: conditions of
configs/rules/huggingface.json and accelerate.json.

Source: transformers 5.23.0 (4.57.1 where it says so) training_args.py, trainer.py,
hf_argparser.py, modeling_layers.py, modeling_utils.py; accelerate 1.15.0 utils/dataclasses.py
FullyShardedDataParallelPlugin and DeepSpeedPlugin, utils/constants.py.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from advisor.base.rule import Match
from advisor.frameworks import key_rows
from advisor.frameworks.huggingface import options
from advisor.frameworks.option import names_in
from advisor.reading import key_rules
from advisor.reading.read_configuration import Keys, as_whole_number, known

_ARGUMENTS: Final = "transformers 5.23.0 training_args.py"
_PARSER: Final = "transformers 5.23.0 hf_argparser.py"
_FSDP_WORDS: Final = (
    *("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"),
    *("offload", "auto_wrap"),
)
POLICIES: Final = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_FILE, *_OF_DEEPSPEED = names_in(options.FILE, options.DEEPSPEED)
_FIRST: Final = "4"
"""The release that knows no keyword of its own."""


def checkpointing(keys: Keys) -> bool | None:
    """Whether it is switched on; None where it is not said or known."""
    said = map(keys.truth, filter(keys.has, options.CHECKPOINTING))
    return next((switch for switch in said if switch is not None), None)


def _fsdp_checkpoints(keys: Keys) -> bool:
    return keys.truth(inside_key(keys, options.CHECKPOINTING[0])) is True


def _twice(keys: Keys, *, in_trainer: bool) -> Match | None:
    has_trainer = keys.about["kind"] != "part" or "trainer" in keys.about
    both = _fsdp_checkpoints(keys) and checkpointing(keys) is True and has_trainer is in_trainer
    by_default = any(keys.values[k].omitted for k in options.CHECKPOINTING if keys.has(k))
    fix = f"{options.CHECKPOINTING[1]} = False" if by_default else ""
    return Match(fix=fix, place=keys.where(*options.CHECKPOINTING, "fsdp")) if both else None


def _is_launched_apart(keys: Keys) -> bool:
    """Whether a Trainer reads fsdp_config, and not Accelerate."""
    return keys.about["kind"] in ("command", "python") and not keys.about.get("launcher")


_ABOUT_IT: Final = tuple(
    name for name in names_in(options.OPTIONS) if name.startswith(("gradient", "activation"))
)


def _unknown_arguments(keys: Keys) -> Iterator[Match]:
    source = _PARSER if keys.about["kind"] == "command" else _ARGUMENTS
    for key, given in keys.values.items():
        name = key.partition(".")[0]
        begins = name.startswith(("gradient_check", "activation_check", "grad_check", "gradient-c"))
        fix = key_rules.did_you_mean(
            name, _ABOUT_IT, 0.5 if begins else 0.85, "drop it" if begins else ""
        )
        if name not in _ABOUT_IT and fix:
            yield Match(fix=fix, source=source, found=given.written, place=keys.where(key))


def _unused(section: str, keys: Keys) -> Match | None:
    """Keywords of checkpoints that nothing makes."""
    given, name = any(keys.under(section)), section.removesuffix("_kwargs")
    off = (given or keys.get(section)) and checkpointing(keys) is False
    omitted = not (checkpointing(keys) or any(map(keys.has, options.CHECKPOINTING)))
    if not (off or (given and omitted and keys.about["kind"] != "part")):
        return None
    if _fsdp_checkpoints(keys):
        return Match(f"{section} is not read: FSDP checkpoints each layer", f"drop {section}")
    drop = "" if omitted else f"drop {section}, or "
    return Match(f"{section} without {name}: nothing is checkpointed", f"{drop}{name} = True")


def _as_text(section: str, keys: Keys) -> Iterator[Match]:
    for name in ("use_reentrant", "offload")[: 1 if keys.release == _FIRST else 2]:
        at = f"{section}.{name}"
        if isinstance(keys.get(at), str):
            yield Match(found=f"{name} = {keys.get(at)!r}", place=keys.where(at))


def _words(keys: Keys) -> list[Any]:
    """Those of `fsdp`."""
    fsdp = keys.get("fsdp")
    return fsdp if isinstance(fsdp, list) else fsdp.split() if isinstance(fsdp, str) else []


def _unknown_words(keys: Keys) -> Iterator[Match]:
    for word in map(str, _words(keys)):
        plain = word.strip(",").lower()
        if known(word) and plain not in (*_FSDP_WORDS, "true", "false", "1", "0"):
            fix = key_rules.did_you_mean(plain, _FSDP_WORDS, 0.5, "full_shard auto_wrap")
            yield Match(fix=fix, found=word)


def inside_key(keys: Keys, name: str) -> str:
    """The key of fsdp_config that is given, of the two that mean a name."""
    return next(
        (key for key in (f"{options.FSDP}.fsdp_{name}", f"{options.FSDP}.{name}") if keys.has(key)),
        "",
    )


def _trains_nothing(keys: Keys) -> bool:
    """Whether a Trainer switches reentrant checkpoints on in a model that has been given an adapter
    before, and nothing makes the embeddings' output require a gradient."""
    by_trainer = keys.about.get("call") == "TrainingArguments" and checkpointing(keys) is True
    given = [keys.values[name].written for name in options.CHECKPOINTING if keys.has(name)]
    enabled = any(written.endswith("enable") for written in given)
    switches = (keys.truth(f"{section}.use_reentrant") for section in options.SECTIONS)
    reentrant = all(switch is not False for switch in switches)
    return (
        "wraps" in keys.about
        and by_trainer
        and reentrant
        and not enabled
        and "inputs" not in keys.about
    )


def _unknown_policy(keys: Keys) -> Match | None:
    at = inside_key(keys, "auto_wrap_policy")
    policy = keys.get(at)
    return None if policy in (None, *POLICIES) else Match(found=str(policy), place=keys.where(at))


def _set_twice(keys: Keys) -> Match | None:
    """Keys that DeepSpeed's own file sets already."""
    both = [name for name in _OF_DEEPSPEED if keys.has(f"{options.DEEPSPEED}.{name}")]
    if not both or not keys.has(f"{options.DEEPSPEED}.{_FILE}"):
        return None
    return Match(found=both, place=keys.where(f"{options.DEEPSPEED}.{both[0]}"))


def _loads_on_one(keys: Keys) -> bool:
    """Whether torchao's layers are loaded as FSDP spares host memory."""
    loads = keys.truth(f"{options.FSDP}.fsdp_cpu_ram_efficient_loading")
    if loads is None:  # the launcher's default is true, a plugin's in Python false
        loads = keys.about["kind"] in ("file", "command")
    is_ao = keys.get("mixed_precision") == "fp8" and keys.get(options.BACKEND) == "AO"
    return is_ao and any(keys.under(options.FSDP)) and loads


_KWARGS: Final = "checkpointing_kwargs"
RULES: Final = tuple(
    key_rows.written(
        "huggingface",
        {
            "first": lambda keys: keys.release == _FIRST,
            "later": lambda keys: keys.release != _FIRST,
            "trainer": _is_launched_apart,
            "unknown_argument": _unknown_arguments,
            "no text": lambda value: not isinstance(value, str),
            f"{_KWARGS}.unused": _unused,
            f"{_KWARGS}.every_n_layers": lambda at, keys: keys.has(f"{at}.every_n_layers"),
            f"{_KWARGS}.offload": lambda at, keys: keys.has(f"{at}.offload"),
            f"{_KWARGS}.text": _as_text,
            "fsdp": _unknown_words,
            "checkpointing_twice": partial(_twice, in_trainer=True),
            "checkpointing_twice.model": partial(_twice, in_trainer=False),
            "peft.input_require_grads": _trains_nothing,
            "fsdp_auto_wrap_policy": _unknown_policy,
            "fsdp_config.unused": lambda keys: (
                any(keys.under(options.FSDP)) and not keys.has("fsdp")
            ),
        },
        options.OPTIONS,
    )
)
"""Everything to be said of the arguments."""
ACCELERATE: Final = tuple(
    key_rows.written(
        "accelerate",
        {
            "file": lambda keys: keys.about["kind"] == "file",
            "fp8": _loads_on_one,
            "short": lambda names: [name.removeprefix("fsdp_") for name in names],
            "version": lambda value: (as_whole_number(value) or 1) in (1, 2),
            "stage": lambda value: as_whole_number(value) in (0, 1, 2, 3),
            "deepspeed_config_file": _set_twice,
        },
        options.FILE,
    )
)
"""Everything to be said of Accelerate's file, or of the same options of its launcher."""
