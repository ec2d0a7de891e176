"""The rows of Megatron's options: against our fields; tests/oracles has Megatron's own classes."""

import ast
import csv
import re
from inspect import get_annotations
from pathlib import Path
from typing import Any

import pytest

from advisor.frameworks.megatron import bridge, flags
from advisor.frameworks.megatron.options import table
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import find
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Status
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from scripts.write_docs.options_page import PAGE, options_page

INSTALLED = resolve_revision(Framework.MEGATRON_LM, "0.16")


def test_raw_settings_have_a_field_for_each_row() -> None:
    assert RawSettings.option_names == table.SETTINGS.keys()
    assert all(getattr(RawSettings(), row.name) == row.default for row in table.SETTINGS.values())
    assert RawSettings(num_layers=2) == RawSettings(num_layers=2) != RawSettings()
    with pytest.raises(TypeError, match="recompute_granularty: no option of Megatron"):
        RawSettings(recompute_granularty="full")


def test_declared_types_are_those_of_the_rows() -> None:
    declared = get_annotations(RawSettings)
    for name in declared.keys() & table.SETTINGS.keys():
        row, kinds = table.SETTINGS[name], re.findall(r"[a-zA-Z]+", str(declared[name]))
        assert row.kind.__name__ in kinds, name
        assert (row.default is None) <= ("None" in kinds), name


OF_OURS = {"model": ModelSpec, "layout": ParallelLayout, "job": JobConfig}


def test_what_is_modelled_names_a_field_of_ours_and_the_rest_says_why_not() -> None:
    for row in table.options().values():
        part, _, field = row.ours.partition(".")
        if row.status is Status.MODELLED:
            assert (
                part == "recompute"
                or field in OF_OURS[part].__struct_fields__
                or (row.ours == "model.activation")
            ), row.name
        else:
            assert not row.ours, row.name
            assert row.note or row.status is Status.HARMLESS, row.name


def test_no_name_and_no_flag_stands_for_two_options() -> None:
    for row in table.options().values():
        assert table.option_of_field(row.name) is row
        for flag in filter(None, (row.flag, row.off)):
            assert table.option_of_flag(flag) is row, flag
        assert table.switches_off(row.off) == bool(row.off)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--tensor-model-parallel-size", "tensor_model_parallel_size"),
        ("--fp8-param-gather", "fp8_param"),
        ("--num-experts", "num_moe_experts"),
        ("--cuda-graph-scope", "cuda_graph_modules"),
        ("--hybrid-override-pattern", "hybrid_layer_pattern"),
        ("--no-rope-fusion", "apply_rope_fusion"),
        ("--disable-clone-scatter-output-in-embedding", "clone_scatter_output_in_embedding"),
        ("--wandb-project", "wandb_project"),
    ],
)
def test_flags_and_their_options(flag: str, name: str) -> None:
    found = table.option_of_flag(flag)
    assert found.name == name


def test_words_that_are_no_option() -> None:
    for word in ("--no-such-option", "tensor_model_parallel_size", "--fp8_format"):
        assert table.option_of_flag(word) is None


@pytest.mark.parametrize(
    ("sections", "emitted"),
    [
        ((*flags.LAYOUT_SECTIONS, *flags.RECOMPUTE), lambda row: row.emitted.line),
        (
            (*bridge.MODEL_AND_DATA, *bridge.RUN, *flags.RECOMPUTE),
            lambda row: row.emitted.recipe and row.bridge,
        ),
        (
            (*flags.NEMO_SECTIONS, *flags.RECOMPUTE),
            lambda row: row.emitted.recipe and row.emitted.in_nemo and row.nemo,
        ),
    ],
)
def test_sections_with_rows_that_are_emitted_are_asked(sections: Any, emitted: Any) -> None:
    with_rows = [one for one in table.SECTIONS.values() if any(map(emitted, one.rows))]
    assert [one.title for one in with_rows if one not in sections] == []


def test_what_is_emitted_has_a_spelling() -> None:
    for row in table.SETTINGS.values():
        assert row.emitted.line is None or row.flag or row.off, row.name
        assert row.emitted.recipe is None or row.bridge, row.name


def test_the_page_is_the_rows() -> None:
    page = Path(__file__).parents[5] / PAGE
    assert page.read_text(encoding="utf-8") == options_page()


def test_what_no_prediction_counts_is_named() -> None:
    given = RawSettings(dsa_indexer_topk_freq=4, tp_comm_split_ag=False, tp_comm_split_rs=True)
    said = {finding.rule: finding.reason for finding in find(given, INSTALLED)}
    assert said["refused_options"].startswith(
        "predictions do not cover a job with dsa_indexer_topk_freq ("
    )
    assert said["untimed_options"].startswith("predictions do not include tp_comm_split_ag (")
    assert "tp_comm_split_rs" not in said["untimed_options"]  # at its default


def test_what_a_command_line_leaves_out_has_the_parsers_default() -> None:
    file = Path(__file__).parents[1] / "data" / "launcher_defaults.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) > 140
    for row in rows:
        option = table.option_of_flag(row["flag"])
        default = ast.literal_eval(row["default"])
        if isinstance(default, list):
            default = tuple(default) or None
        if option.name == "rope_type" and default is None:
            continue  # left to the configuration class (argument_utils.py)
        assert str(option.omitted or None) == str(default or None), option.name
