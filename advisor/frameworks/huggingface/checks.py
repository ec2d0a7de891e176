"""What transformers' Trainer refuses or passes over of TrainingArguments.

Source: transformers 5.23.0 (4.57.1 where it says so) training_args.py, trainer.py,
hf_argparser.py, modeling_layers.py, modeling_utils.py.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from advisor.base.rule import Match, Verdict
from advisor.base.units import either
from advisor.frameworks.huggingface import options
from advisor.frameworks.huggingface.accelerate_checks import POLICIES
from advisor.frameworks.option import names_in
from advisor.reading import key_rules
from advisor.reading.document_keys import Keys, known

_ARGUMENTS: Final = "transformers 5.23.0 training_args.py"
_TRAINER: Final = "transformers 5.23.0 trainer.py"
_PARSER: Final = "transformers 5.23.0 hf_argparser.py"
_CHECKPOINT: Final = "torch 2.13 utils/checkpoint.py"
_FSDP_WORDS: Final = (
    *("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"),
    *("offload", "auto_wrap"),
)
_NO_COUNT: Final = "{name} = {value!r} must be a positive whole number"
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


_argument = partial(key_rules.key_rule, source=_ARGUMENTS)


def _of_kwargs(name: str, section: str) -> Iterator[key_rules.KeyRule]:
    """What goes on to torch's checkpoint; transformers itself reads two of the keywords from 5
    on."""
    fault, inside = "checkpointing_kwargs", "transformers {} modeling_utils.py"
    switches = (f"{section}.use_reentrant", f"{section}.offload")

    def unused(keys: Keys) -> Match | None:
        given = any(keys.under(section))
        off = (given or keys.get(section)) and checkpointing(keys) is False
        omitted = not (checkpointing(keys) or any(map(keys.has, options.CHECKPOINTING)))
        if not (off or (given and omitted and keys.about["kind"] != "part")):
            return None
        if _fsdp_checkpoints(keys):
            return Match(f"{section} is not read: FSDP checkpoints each layer", f"drop {section}")
        drop = "" if omitted else f"drop {section}, or "
        return Match(f"{section} without {name}: nothing is checkpointed", f"{drop}{name} = True")

    def as_text(keys: Keys) -> Iterator[Match]:
        for at in switches if keys.release != _FIRST else switches[:1]:
            if isinstance(keys.get(at), str):
                what = f"{at.rpartition('.')[2]} = {keys.get(at)!r}"
                yield Match(found=what, place=keys.where(at))

    yield key_rules.illegal_values(
        section,
        lambda value: not isinstance(value, str),
        "{key} = {value} must be a JSON dictionary",
        """'{{"use_reentrant": false}}'""",
        fault=fault,
        source=f"{_ARGUMENTS} __post_init__",
    )
    yield key_rules.key_rule(
        section,
        unused,
        fault=f"{fault}.unused",
        verdict=Verdict.NO_EFFECT,
        source=_TRAINER,
    )
    names, reason = names_in(options.OPTIONS, section), "torch's checkpoint has no such keyword"
    hint = f"use {either(names)}"
    yield key_rules.unknown_names(
        section, names, reason, cutoff=0.5, otherwise=hint, fault=fault, source=_CHECKPOINT
    )
    for keyword in ("every_n_layers", "offload"):
        yield key_rules.key_rule(
            f"{section}.{keyword}",
            partial(Keys.has, key=f"{section}.{keyword}"),
            f"{keyword}: transformers 4.x passes every keyword to torch, which does not know this "
            "one",
            "transformers 5",
            given=lambda keys: keys.release == _FIRST,
            fault=f"{fault}.{keyword}",
            source=inside.format("4.57.1"),
        )
    yield key_rules.illegal_values(
        f"{section}.every_n_layers",
        key_rules.is_count,
        _NO_COUNT,
        "write e.g. 2, which checkpoints every second layer",
        given=lambda keys: keys.release != _FIRST,
        fault=f"{fault}.every_n_layers",
        source=inside.format("5.23.0"),
    )
    yield key_rules.key_rule(
        section,
        as_text,
        "{found} is text, and any text counts as true",
        "true or false without quotes",
        fault="wrong_type",
        verdict=Verdict.NO_EFFECT,
        source=_CHECKPOINT,
    )


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


RULES: Final = (
    _argument("unknown_argument", _unknown_arguments, "{found}: there is no such argument"),
    key_rules.illegal_values(
        (*options.CHECKPOINTING, "bf16", "fp16"),
        key_rules.is_boolean,
        "{name} = {value!r}: Truthy value expected",
        "True or False",
        source=f"{_PARSER} string_to_bool",
    ),
    key_rules.illegal_values(
        (options.MICRO_BATCH, options.STEPS),
        key_rules.or_auto(key_rules.is_count),
        _NO_COUNT,
        "1",
        source=_ARGUMENTS,
    ),
    *chain.from_iterable(map(_of_kwargs, options.CHECKPOINTING, options.SECTIONS)),
    *key_rules.written("huggingface"),
    _argument("fsdp", _unknown_words, "Unknown `fsdp` option: {found}"),
    key_rules.key_rule(
        options.CHECKPOINTING,
        partial(_twice, in_trainer=True),
        "fsdp_config['activation_checkpointing'] and the activation_checkpointing training "
        "argument can't both be set to True",
        "keep the one in fsdp_config, drop the argument",
        fault="checkpointing_twice",
        source=_TRAINER,
    ),
    key_rules.key_rule(
        options.CHECKPOINTING,
        partial(_twice, in_trainer=False),
        "each layer is checkpointed twice: by FSDP's activation_checkpointing and by the model",
        "drop gradient_checkpointing_enable",
        fault="checkpointing_twice",
        verdict=Verdict.REPLACED,
        source="accelerate 1.15.0 accelerator.py",
    ),
    key_rules.key_rule(
        "peft_config",
        _trains_nothing,
        "no input of a reentrant checkpoint requires a gradient where the embedding is frozen: "
        "adapters inside get none",
        "gradient_checkpointing_kwargs = {{'use_reentrant': False}}, or call "
        "model.enable_input_require_grads()",
        given=lambda keys: keys.release == _FIRST,
        fault="peft.input_require_grads",
        verdict=Verdict.CRASHES,
        source="transformers 4.57.1 modeling_utils.py gradient_checkpointing_enable; from 5 on "
        "every language model's embeddings do",
    ),
    _argument(
        "fsdp_auto_wrap_policy",
        _unknown_policy,
        f"`auto_wrap_policy` must be {either(POLICIES)}, got {{found}}",
        POLICIES[0],
        given=_is_launched_apart,
    ),
    _argument(
        options.FSDP,
        lambda keys: any(keys.under(options.FSDP)) and not keys.has("fsdp"),
        "fsdp_config is used only with fsdp, which is not given",
        'fsdp = "full_shard auto_wrap", or fsdp = True from 5.x on',
        given=_is_launched_apart,
        fault="fsdp_config.unused",
        verdict=Verdict.NO_EFFECT,
    ),
)
"""Everything to be said of the arguments."""
