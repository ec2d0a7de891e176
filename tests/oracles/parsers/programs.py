"""python -m tests.oracles.parsers.programs NAME: what a program answers to the questions on stdin,
both as JSON. A question is a line of what the user brings, and below it what we print.

Imports nothing of the advisor. Stand-ins: for Megatron a Blackwell GPU, and Transformer Engine as
present and new enough, its kernels as built; for Bridge and torchtitan, packages that they import
for other things than options, and that are absent; for DeepSpeed the number of GPUs.
"""

import argparse
import ast
import json
import logging
import os
import re
import shlex
import sys
import warnings
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import takewhile
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

ACCEPTED = "accepted"
OTHERS = "--mock-data --tokenizer-type NullTokenizer --train-iters 1 --lr 1e-4"
RECIPE = "--module llama3 --config llama3_8b"
KERNELS = {
    "models.common.embeddings.rope_utils": "apply_rotary_pos_emb apply_rotary_pos_emb_thd",
    "transformer.moe.moe_utils": "permute permute_with_probs unpermute sort_chunks_by_index "
    "sort_chunks_by_index_with_probs",
}
IMPORTING = "/bridge/|/torchtitan/|/llamafactory/|/axolotl/"
UNSAID = {"moe_layer_freq", "window_size", "bias_activation_fusion"}
"""What of a model no override of Bridge can say, or goes with a function that none can."""


class _Anything(ABCMeta):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else cls


class _Absent(ModuleType):
    __path__ = ()
    __getattr__ = _Anything.__getattr__


class _Absentees:
    """Finds what Bridge or torchtitan imports and nobody finds, except to see if it is there."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        asking = sys._getframe(1)
        while asking and "importlib" in asking.f_code.co_filename:
            asking = asking.f_back
        file = asking.f_code.co_filename if asking else ""
        asks = re.search(IMPORTING, file) and "import_utils" not in file
        return ModuleSpec(name, self, is_package=True) if asks else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@cache
def _training() -> ModuleType:
    """megatron.training.arguments with the stand-ins in place."""
    from harness.backends.megatron_core import installed

    installed.use_named()
    import torch

    gpu = SimpleNamespace(name="NVIDIA B200", major=10, minor=0)
    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.get_device_properties = lambda *_: gpu
    with installed.nothing_compiled():
        from megatron.training import argument_utils, arguments, training  # noqa: F401
    argument_utils.ArgumentGroupFactory._get_field_docstrings = lambda *_: {}  # takes a second
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.") and hasattr(module, "is_te_min_version"):
            module.is_te_min_version = lambda *_, **__: True
    for name, kernels in KERNELS.items():
        for kernel in kernels.split():
            setattr(sys.modules[f"megatron.core.{name}"], f"fused_{kernel}", print)
    optimizers = ModuleType("transformer_engine.pytorch.optimizers")
    names = "master_weight_dtype, exp_avg_dtype, exp_avg_sq_dtype, use_decoupled_grad"
    optimizers.FusedAdam = eval(f"lambda {names}: None")  # whose parameters are looked up
    sys.modules[optimizers.__name__] = optimizers
    return arguments


@contextmanager
def _environment(brought: str) -> Iterator[list[str]]:
    """The number of GPUs and the variables that are brought, and the rest."""
    count, *rest = shlex.split(brought)
    given = list(takewhile(lambda word: re.match(r"[A-Z][A-Z0-9_]*=", word), rest))
    variables = dict(word.split("=", 1) for word in given)
    with patch.dict(os.environ, {"WORLD_SIZE": count, **variables}):
        yield rest[len(given) :]


def megatron_lm(brought: str, line: str) -> None:
    """parse_args, validate_args, and the configurations of the layers and the optimizer."""
    program = _training()
    with _environment(brought) as model, redirect_stdout(StringIO()):
        words = [*shlex.split(OTHERS), *model, *shlex.split(line)]
        with patch.object(sys, "argv", ["pretrain_gpt.py", *words]):
            args = program.parse_args()
        program.validate_args(args)
        program.core_transformer_config_from_args(args)
        sys.modules["megatron.training.training"].get_megatron_optimizer_config(args)


def megatron_bridge(brought: str, line: str) -> None:
    """Overrides of a ConfigContainer as recipes have it, with the objects that performance recipes
    set, up to what a run does with it before it starts."""
    _training()
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.recipes.common import _pretrain_common
    from megatron.bridge.training.comm_overlap import CommOverlapConfig
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.mixed_precision import bf16_mixed
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    with _environment(brought) as model:
        latent = "model.multi_latent_attention=true" in model
        provider = MLAModelProvider if latent else GPTModelProvider
        provider = HybridModelProvider if "hybrid_layer_pattern" in brought else provider
        config = _pretrain_common()
        config.model = provider(
            num_layers=2, hidden_size=64, num_attention_heads=8, vocab_size=512, seq_length=4096
        )
        config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
        config.mixed_precision = bf16_mixed()
        names = vars(config.model).keys() - UNSAID
        known = [word for word in model if word[6:].partition("=")[0] in names]
        config = process_config_with_overrides(config, cli_overrides=[*known, *shlex.split(line)])
        runtime_config_update(config)


def torchtitan(_: str, text: str) -> None:
    """ConfigManager, given options or a file; from 0.3 on over the recipe of Llama-3 8B."""
    release = version("torchtitan")
    config = import_module(f"torchtitan.config{'_manager' if release < '0.2' else ''}")
    with _file(text, ".toml") as name:
        words = [f"--job.config_file={name}"] if text.startswith("[") else shlex.split(text)
        recipe = shlex.split(RECIPE) if release >= "0.3" else []
        config.ConfigManager().parse_args([*recipe, *words])


def deepspeed(brought: str, text: str) -> None:
    """DeepSpeedConfig, of what stands before a trainer's own options too."""
    from deepspeed.runtime import config

    gpus = int(brought.split()[0])
    text = shlex.split(text)[1] if text.startswith("--deepspeed ") else text
    with patch.multiple(config.dist, get_rank=lambda: 0, get_world_size=lambda: gpus):
        config.DeepSpeedConfig(json.loads(text))


def huggingface(brought: str, line: str) -> None:
    """HfArgumentParser over TrainingArguments, in one process."""
    from transformers import HfArgumentParser, TrainingArguments

    with _environment(re.sub(r"^\d+", "1", brought)):
        words = shlex.split(f"{line} --output_dir out --use_cpu True")
        HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)


def trl(brought: str, line: str) -> None:
    """HfArgumentParser over a trainer's configuration and ModelConfig."""
    from transformers import HfArgumentParser

    if "completion" in line or "vllm" in line:
        from trl.trainer.grpo_config import GRPOConfig as Config
    else:
        from trl.trainer.sft_config import SFTConfig as Config
    from trl.trainer.model_config import ModelConfig

    with _environment(re.sub(r"^\d+", "1", brought)):
        words = shlex.split(f"{line} --output_dir out --use_cpu True")
        HfArgumentParser((Config, ModelConfig)).parse_args_into_dataclasses(words)


def llama_factory(brought: str, line: str) -> None:
    """Its HfArgumentParser over all of its arguments."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    from llamafactory.hparams import parser

    with _environment(re.sub(r"^\d+", "1", brought)):
        words = shlex.split(f"{line} --output_dir out --use_cpu True --model_name_or_path m")
        parser._parse_train_args(words)


def axolotl(_: str, text: str) -> None:
    """AxolotlInputConfig, which passes over what it does not know, so that names are looked up."""
    import yaml
    from axolotl.integrations.cut_cross_entropy.args import CutCrossEntropyArgs
    from axolotl.integrations.liger.args import LigerArgs
    from axolotl.utils.schemas.config import AxolotlInputConfig

    schemas = (AxolotlInputConfig, LigerArgs, CutCrossEntropyArgs)
    names = set().union(*(one.model_fields for one in schemas))
    brought = {"base_model": "m", "datasets": [{"path": "d", "type": "alpaca"}]}
    given = {**yaml.safe_load(text), "learning_rate": 1e-5}
    if unknown := given.keys() - names:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    AxolotlInputConfig(**brought, **given)


def verl(_: str, line: str) -> None:
    """Hydra over the trainer's own configuration."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    folder = _package("verl") / "trainer" / "config"
    name = "sft_trainer_engine" if "data.max_length=" in line else "ppo_trainer"
    with initialize_config_dir(str(folder), version_base=None):
        OmegaConf.resolve(compose(name, overrides=shlex.split(line)))


def openrlhf(_: str, line: str) -> None:
    """The parser that its program makes, without what it imports for the training."""
    alone = "dpo" if "--ref.offload" in line else "sft"
    program = f"train_{'ppo_ray' if '--actor.' in line else alone}.py"
    tree = ast.parse((_package("openrlhf") / "cli" / program).read_text())
    made = []
    for statement in tree.body[-1].body:  # type: ignore[attr-defined]
        if isinstance(statement, ast.Assign) and ast.unparse(statement).startswith("args ="):
            break
        made.append(statement)
    defined = (one for one in tree.body if isinstance(one, ast.FunctionDef))
    functions = [one for one in defined if one.name != "train"]
    module = ast.Module([*functions, *made], type_ignores=[])
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(module, "openrlhf", "exec"), names)
    names["parser"].parse_args(shlex.split(line))


def _package(name: str) -> Path:
    found = find_spec(name)
    assert found is not None
    assert found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)))


def accelerate(_: str, text: str) -> None:
    """The file and the parser of accelerate launch."""
    from accelerate.commands import launch
    from accelerate.commands.config.config_args import load_config_from_file

    with _file(text, ".yaml") as name:
        load_config_from_file(name)
        args = launch.launch_command_parser().parse_args(["--config_file", name, "train.py"])
        launch._validate_launch_command(args)


@contextmanager
def _file(text: str, suffix: str) -> Iterator[str]:
    with NamedTemporaryFile("w", suffix=suffix) as file:
        file.write(text)
        file.flush()
        yield file.name


def _refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
    raise ValueError(message)


def answer(program: str, question: str) -> str:
    """ACCEPTED, or what was raised and its first line."""
    try:
        globals()[program](*question.split("\n", 1))
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ACCEPTED


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    sys.meta_path.append(_Absentees())
    argparse.ArgumentParser.error = _refuse  # type: ignore[method-assign,assignment]
    print("\n" + json.dumps([answer(sys.argv[1], question) for question in json.load(sys.stdin)]))
