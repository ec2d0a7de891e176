"""What transformers' Trainer refuses or passes over of TrainingArguments.

Source: transformers 5.23.0 (4.57.1 where it says so) training_args.py, trainer.py,
hf_argparser.py, modeling_layers.py, modeling_utils.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.huggingface.accelerate_checks import FSDP
from advisor.reading.document_keys import Keys, finding, known, near
from advisor.reading.read_configuration import Finding, Level

_ARGUMENTS: Final = "transformers 5.23.0 training_args.py"
_TRAINER: Final = "transformers 5.23.0 trainer.py"
_PARSER: Final = "transformers 5.23.0 hf_argparser.py"
_POLICIES: Final = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
CHECKPOINTING: Final = ("activation_checkpointing", "gradient_checkpointing")
_KWARGS: Final = (
    "use_reentrant",
    "preserve_rng_state",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
    "every_n_layers",
    "offload",
)
_FSDP_WORDS: Final = (
    "full_shard",
    "shard_grad_op",
    "no_shard",
    "hybrid_shard",
    "hybrid_shard_zero2",
    "offload",
    "auto_wrap",
)
_BOOLEANS: Final = (*CHECKPOINTING, "bf16", "fp16")
_NUMBERS: Final = ("per_device_train_batch_size", "gradient_accumulation_steps")
_KNOWN: Final = (
    *CHECKPOINTING,
    *(f"{name}_kwargs" for name in CHECKPOINTING),
    "gradient_accumulation_steps",
    "gradient_accumulation_kwargs",
    "activation_offloading",
    "gradient_checkpointing_ratio",
    "gradient_clipping",
)


def findings(keys: Keys, version: str) -> Iterator[Finding]:
    """Everything to be said of the arguments, for transformers 4 or 5."""
    yield from _names(keys)
    yield from _types(keys)
    yield from _kwargs(keys, version)
    yield from _precision(keys)
    yield from _cache(keys)
    yield from _fsdp(keys, version)


def _error(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.ERROR, rule, reason, fix, source, *at)


def _warning(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.WARNING, rule, reason, fix, source, *at)


def checkpointing(keys: Keys) -> bool | None:
    """Whether it is switched on; None where it is not said or not known."""
    for name in CHECKPOINTING:
        if keys.truth(name) is not None:
            return keys.truth(name)
    return None


def _names(keys: Keys) -> Iterator[Finding]:
    for key in keys.values:
        name = key.split(".")[0]
        begins = name.startswith(("gradient_check", "activation_check", "grad_check", "gradient-c"))
        meant = "" if name in _KNOWN else near(name, _KNOWN, 0.85)
        if name not in _KNOWN and (begins or meant):
            meant = meant or near(name, _KNOWN, 0.5)
            yield _error(
                keys,
                "unknown_argument",
                f"{keys.values[key].written}: there is no such argument",
                f"did you mean {meant}?",
                _PARSER if keys.about.get("kind") == "command" else _ARGUMENTS,
                key,
            )


def _types(keys: Keys) -> Iterator[Finding]:
    for name in _BOOLEANS:
        value = keys.get(name)
        if value is not None and keys.truth(name) is None:
            yield _error(
                keys,
                "wrong_type",
                f"{name} = {value!r}: Truthy value expected",
                "True or False",
                f"{_PARSER} string_to_bool",
                name,
            )
    for name in _NUMBERS:
        value = keys.get(name)
        number = keys.number(name)
        if value not in (None, "auto") and (number is None or number < 1):
            yield _error(
                keys,
                "wrong_type",
                f"{name} = {value!r} is no positive whole number",
                "1",
                _ARGUMENTS,
                name,
            )


def _kwargs(keys: Keys, version: str) -> Iterator[Finding]:
    for name in CHECKPOINTING:
        section = f"{name}_kwargs"
        given = list(keys.under(section))
        whole = keys.get(section)
        if isinstance(whole, str):
            yield _error(
                keys,
                "checkpointing_kwargs",
                f"{section} = {whole} is no JSON of a dictionary",
                """'{"use_reentrant": false}'""",
                f"{_ARGUMENTS} __post_init__",
                section,
            )
        if ((given or whole) and checkpointing(keys) is False) or (
            given
            and not any(keys.has(switch) for switch in CHECKPOINTING)
            and keys.about.get("kind") != "part"
        ):
            yield _warning(
                keys,
                "checkpointing_kwargs.unused",
                f"{section} without {name}: nothing is checkpointed",
                f"{name} = True",
                _TRAINER,
                section,
            )
        for key in given:
            yield from _one_kwarg(keys, section, key, version)


def _one_kwarg(keys: Keys, section: str, key: str, version: str) -> Iterator[Finding]:
    path, value = f"{section}.{key}", keys.get(f"{section}.{key}")
    if key not in _KWARGS:
        meant = near(key, _KWARGS, 0.5)
        yield _error(
            keys,
            "checkpointing_kwargs",
            f"{key}: torch's checkpoint has no such keyword",
            f"did you mean {meant}?" if meant else f"one of {', '.join(_KWARGS)}",
            "torch 2.13 utils/checkpoint.py",
            path,
        )
    elif key in ("every_n_layers", "offload") and version == "4":
        yield _error(
            keys,
            f"checkpointing_kwargs.{key}",
            f"{key}: 4.x hands every keyword on to torch, which has none of that name",
            "transformers 5",
            "transformers 4.57.1 modeling_utils.py",
            path,
        )
    elif key == "every_n_layers" and value is not None and (keys.number(path) or 0) < 1:
        yield _error(
            keys,
            "checkpointing_kwargs.every_n_layers",
            f"every_n_layers = {value!r} is no positive whole number",
            "2 checkpoints every second layer",
            "transformers 5.23.0 modeling_utils.py",
            path,
        )
    elif key in ("use_reentrant", "offload") and isinstance(value, str):
        yield _warning(
            keys,
            "wrong_type",
            f"{key} = {value!r} is a text, and any text is true",
            "true or false without quotes",
            "torch 2.13 utils/checkpoint.py",
            path,
        )


def _precision(keys: Keys) -> Iterator[Finding]:
    if keys.truth("fp16") and keys.truth("bf16"):
        yield _error(
            keys,
            "precision",
            "At most one of fp16 and bf16 can be True, but not both",
            "drop fp16",
            _ARGUMENTS,
            "fp16",
        )


def _cache(keys: Keys) -> Iterator[Finding]:
    if keys.truth("use_cache") and checkpointing(keys):
        yield _warning(
            keys,
            "use_cache",
            "use_cache = True with checkpointing is switched off with a warning: a replayed layer "
            "would store its keys and values twice",
            "use_cache = False",
            "transformers 5.23.0 modeling_layers.py",
            "use_cache",
        )


def _fsdp(keys: Keys, version: str) -> Iterator[Finding]:
    fsdp = keys.get("fsdp")
    words = fsdp if isinstance(fsdp, list) else str(fsdp).split() if isinstance(fsdp, str) else []
    on = bool(words) and words[0].lower() not in ("false", "0", "")
    on = on or fsdp is True
    for word in words:
        plain = str(word).strip(",").lower()
        if plain in ("true", "false", "1", "0") or not known(word):
            continue
        if plain not in _FSDP_WORDS:
            meant = near(plain, _FSDP_WORDS, 0.5)
            yield _error(
                keys,
                "fsdp",
                f"Unknown `fsdp` option: {word}",
                f"did you mean {meant}?" if meant else "full_shard auto_wrap",
                _ARGUMENTS,
                "fsdp",
            )
    if on and keys.get("deepspeed"):
        yield _error(
            keys,
            "fsdp_and_deepspeed",
            "Using --fsdp together with --deepspeed is not possible",
            "deactivate one of those flags",
            _TRAINER,
            "fsdp",
        )
    names = {name.removeprefix("fsdp_"): name for name in keys.under(FSDP)}
    inside = [names[n] for n in ("activation_checkpointing",) if n in names]
    if inside and keys.truth(f"{FSDP}.{inside[0]}") and checkpointing(keys):
        yield _error(
            keys,
            "checkpointing_twice",
            "fsdp_config['activation_checkpointing'] and the activation_checkpointing training "
            "argument can't both be set to True",
            "keep FSDP's, drop the argument",
            _TRAINER,
            *CHECKPOINTING,
        )
    if keys.about.get("kind") in ("command", "python") and not keys.about.get("launcher"):
        yield from _policy(keys, names)


def _policy(keys: Keys, names: dict[str, str]) -> Iterator[Finding]:
    name = names.get("auto_wrap_policy", "")
    policy = keys.get(f"{FSDP}.{name}") if name else None
    if policy is not None and policy not in _POLICIES:
        yield _error(
            keys,
            "fsdp_auto_wrap_policy",
            f"`auto_wrap_policy` must be one of {', '.join(_POLICIES)}, got {policy}",
            _POLICIES[0],
            _ARGUMENTS,
            f"{FSDP}.{name}",
        )
    if names and not keys.has("fsdp"):
        yield _warning(
            keys,
            "fsdp_config.unused",
            "fsdp_config is read where fsdp is given, and it is not",
            'fsdp = "full_shard auto_wrap", or fsdp = True from 5.x on',
            _ARGUMENTS,
            FSDP,
        )
