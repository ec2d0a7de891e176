"""Our flags, through Megatron-LM's option definitions, into the installed TransformerConfig."""

import shlex
from dataclasses import fields
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.candidates import enumerate_settings
from advisor.frameworks.megatron.flags import layout_flags, megatron_lm_flags
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import Granularity, parse_setting
from advisor.frameworks.names import Framework
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.models.spec import ModelSpec
from advisor.plan.split import split_evenly
from tests.advisor.frameworks.megatron.megatron_arguments import parser
from tests.advisor.jobs import job_config
from tests.advisor.toys import H100, toy_model

pytest.importorskip("megatron.core")

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.16")
GPU = replace(H100, compute_capability=10.0)
MODEL = toy_model(12, 64, 256, 8, 8, vocab_size=512, max_position_embeddings=4096)


def _job(
    layout: ParallelLayout, precision: Precision = Precision.BF16, model: ModelSpec = MODEL
) -> Job:
    config = job_config(4096, 1, 32, precision=precision)
    return Job(model=model, layout=layout, config=config, gpu=GPU, num_gpus=layout.world_size)


RENAMED = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
"""Options by another name than their field (training/arguments.py core_transformer_config_...)."""


def construct(flags: str, model: ModelSpec = MODEL) -> Any:
    """TransformerConfig from parsed flags, as Megatron-LM makes it: fields of the same name."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    args = vars(parser("0.16").parse_args(shlex.split(flags)))
    known = {field.name for field in fields(TransformerConfig)} - {"attention_backend"}
    args = {RENAMED.get(name, name): value for name, value in args.items()}
    values = {name: value for name, value in args.items() if name in known and value is not None}
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=MODEL.hidden_size,
        num_attention_heads=8,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        **values,
    )


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(),
        ParallelLayout(tensor_model_parallel_size=2),
        ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=True),
        ParallelLayout(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=3),
    ],
    ids=("one", "tp", "sp", "vpp"),
)
def test_every_candidate_arrives_in_the_configuration(layout) -> None:
    job = _job(layout)
    for setting in enumerate_settings(job, REVISION):
        flags = f"{layout_flags(job, REVISION)} {megatron_lm_flags(setting, job, REVISION)}"
        config = construct(flags)
        none = setting.granularity is Granularity.NONE
        assert config.recompute_granularity == (None if none else str(setting.granularity))
        assert config.recompute_num_layers == setting.num_layers
        assert config.recompute_method == (setting.method and str(setting.method))
        assert config.distribute_saved_activations == setting.distribute_saved_activations
        if setting.granularity is Granularity.SELECTIVE:
            assert tuple(config.recompute_modules) == setting.modules
        assert config.sequence_parallel == layout.sequence_parallel
        assert config.tensor_model_parallel_size == layout.tensor_model_parallel_size
        assert config.pipeline_model_parallel_size == layout.pipeline_model_parallel_size


@pytest.mark.parametrize(
    ("layers", "mtp", "pp", "vpp"),
    [(61, None, 16, 1), (61, 1, 8, 4), (61, 1, 16, 1), (46, None, 8, 3), (94, None, 4, 24)],
)
def test_an_uneven_split_arrives_in_the_configuration(layers, mtp, pp, vpp) -> None:
    """Every chunk holds the layers that we think: checked and counted by Megatron."""
    from megatron.core.transformer.enums import LayerType

    model = replace(MODEL, num_layers=layers, mtp_num_layers=mtp)
    layout = split_evenly(
        model,
        ParallelLayout(pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp),
    )
    config = construct(layout_flags(_job(layout, model=model), REVISION), model)
    assert (config.virtual_pipeline_model_parallel_size or 1) == vpp
    counted = [
        [(chunk.count(LayerType.decoder), chunk.count(LayerType.mtp)) for chunk in stage]
        for stage in config.pipeline_model_parallel_layout.layout
    ]
    assert counted == [
        [(chunk.num_layers, (mtp or 0) * chunk.predicts) for chunk in stage]
        for stage in pipeline_stages(model, layout)
    ]


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(61, 16, 1), (46, 8, 1), (62, 4, 2)])
def test_numbers_of_layers_of_the_ends_are_accepted(layers, pp, vpp) -> None:
    model = replace(MODEL, num_layers=layers)
    layout = split_evenly(
        model,
        ParallelLayout(pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp),
        as_text=False,
    )
    config = construct(layout_flags(_job(layout, model=model), REVISION), model)
    first = [sum(chunk.num_layers for chunk in stage) for stage in pipeline_stages(model, layout)]
    ends = config.num_layers_in_first_pipeline_stage, config.num_layers_in_last_pipeline_stage
    assert ends == (first[0], first[-1])
    assert max(first) == -(-layers // pp)


@pytest.mark.parametrize("precision", list(Precision))
def test_precision_arrives_in_the_configuration(precision) -> None:
    config = construct(layout_flags(_job(ParallelLayout(), precision), REVISION))
    assert config.fp16 == (precision is Precision.FP16)
    assert config.bf16 == (precision is not Precision.FP16)
    assert (config.fp8 == "hybrid") == precision.is_fp8
    recipes = {"fp8_current": "tensorwise", "fp8_blockwise": "blockwise", "mxfp8": "mxfp8"}
    assert config.fp8_recipe == recipes.get(str(precision), "delayed")


def test_offload_arrives_in_the_configuration() -> None:
    setting = parse_setting("none+offload=core_attn,attn_proj")
    config = construct(megatron_lm_flags(setting, _job(ParallelLayout()), REVISION))
    assert config.fine_grained_activation_offloading
    assert config.offload_modules == ["core_attn", "attn_proj"]


@pytest.mark.parametrize(
    "field", ["recompute_granularity", "recompute_method", "fp8_recipe", "transformer_impl"]
)
def test_the_choices_of_our_copy_are_those_of_the_installed_field(field) -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig

    annotation = next(f.type for f in fields(TransformerConfig) if f.name == field)
    literals = {choice for part in (annotation, *get_args(annotation)) for choice in get_args(part)}
    installed = {choice for choice in literals if isinstance(choice, str)}
    copied = next(a for a in parser("0.16")._actions if a.dest == field).choices
    assert installed == set(copied)
