"""Context parallelism of the PyTorch stacks: whose kind it is, what it takes, how it is said."""

from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.torch.setting import FULL, NONE
from advisor.job.job import Job
from advisor.layers.transformer import transformer_layer
from advisor.lint.request_from import read_job
from advisor.models.layer_kind import DENSE
from advisor.models.options import CpCommType
from advisor.request.resolve import resolve
from advisor.search.rank_shape import rank_shape
from tests.advisor.jobs import evaluator_of
from tests.advisor.tables import tables

from .jobs import stack_job

TABLES = tables(__file__)

FACE = "model.transformer_impl=transformers"


def _job(framework: str, ranks: int, *overrides: str, **options: Any) -> Job:
    _, job = stack_job(
        framework,
        seq_length=32768,
        micro_batch_size=1,
        context_parallel_size=ranks,
        overrides=overrides,
        **options,
    )
    return job


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("deepspeed", CpCommType.A2A),
        ("fsdp2", CpCommType.ALL_GATHER),
        ("huggingface", CpCommType.ALL_GATHER),
        ("torchtitan", CpCommType.ALL_GATHER),
    ],
)
def test_states_are_cut_by_all_ranks_and_activations_by_some(framework, kind) -> None:
    alone, job = _job(framework, 1), _job(framework, 4)
    assert (job.layout.cp_comm_type, job.layout.data_parallel_size) == (kind, 2)
    peaks = []
    for one in (alone, job):
        evaluator = evaluator_of(one)
        found = evaluator.evaluate(FULL)
        static = evaluator.stage_detail(FULL, 0).fixed.static
        peaks.append((static.weights, static.optimizer, found.detail.saved_bytes_per_layer[DENSE]))
    (weights, states, kept), (*cut, kept_of_part) = peaks
    assert [weights, states] == cut
    assert kept_of_part * 4 == kept


def test_ulysses_sends_heads_and_keeps_them_by_heads() -> None:
    """q, k and v there and the output back; 8 key/value heads among 16 ranks are sent twice."""
    sent = {}
    for ranks in (8, 16):
        job = _job("deepspeed", ranks, FACE, gpus="16xH100")
        shape = rank_shape(job)
        operators = transformer_layer(shape, DENSE)
        exchanges = [o for o in operators if o.name.startswith("ulysses")]
        sent[ranks] = [c.num_bytes for o in exchanges for c in o.forward_collectives]
        (kernel,) = (o for o in operators if o.attention is not None)
        heads = job.model.num_attention_heads // ranks
        assert kernel.saved[0].shape == (1, 32768, heads * job.model.kv_channels)
    width, groups = 4096 * 2, 1024 * 2
    assert sent[8] == [4096 * (width + 2 * groups), 4096 * width]
    assert sent[16] == [2048 * (width + 2 * 2 * groups), 2048 * width]


def test_a_ring_is_slower_than_no_ring_by_what_is_exposed() -> None:
    """The same tokens on the same GPUs: attention and linear layers are as long."""
    times = []
    for ranks in (1, 4):
        job = _job("fsdp2", ranks, global_batch_size=8)
        times.append(evaluator_of(job).evaluate(NONE).time_seconds)
    alone, ring = times
    assert ring.total > alone.total
    assert ring.forward == pytest.approx(
        alone.forward, rel=0.25
    )  # partial outputs are merged in fp32


@pytest.mark.parametrize(
    ("framework", "options", "words"),
    TABLES["test_what_does_not_divide_is_one_line"],
)
def test_what_does_not_divide_is_one_line(framework, options, words) -> None:
    with pytest.raises(UserError, match=words):
        stack_job(framework, **{"context_parallel_size": 2, **options})


def test_windows_do_not_run_over_ranks() -> None:
    stack, job = stack_job("huggingface", context_parallel_size=2, model="gemma3_27b")
    found = [rejection.rule for rejection in stack.settings.check(NONE, job)]
    assert "layout.context_parallel_attention" in found


def test_each_says_it_in_its_own_words() -> None:
    stack, job = stack_job("torchtitan", context_parallel_size=4)
    assert "--parallelism.context_parallel_degree=4" in stack.spelling.layout_flags(job)
    assert "--parallelism.context_parallel_rotate_method=allgather" in stack.spelling.layout_flags(
        job
    )
    stack, job = stack_job("fsdp2", context_parallel_size=4)
    assert 'context_parallel, mesh["cp"]' in stack.spelling.setting_flags(FULL, job)
    stack, job = stack_job("deepspeed", context_parallel_size=4, overrides=(FACE,))
    assert '"sequence_parallel_size": 4' in stack.spelling.setting_flags(FULL, job)
    assert "PARALLELISM_CONFIG_SP_SIZE=4" in stack.spelling.environment(FULL, job)
    stack, job = stack_job("deepspeed", context_parallel_size=4)
    assert any("DistributedAttention" in note for note in stack.settings.notes(FULL, job))
    assert not any("PARALLELISM" in variable for variable in stack.spelling.environment(FULL, job))
    stack, job = stack_job("huggingface", context_parallel_size=4)
    assert "PARALLELISM_CONFIG_CP_COMM_STRATEGY=allgather" in stack.spelling.environment(FULL, job)
    assert "parallelism_config_cp_size: 4" in stack.spelling.config_file(FULL, job)


_DEEPSPEED = """{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
"gradient_accumulation_steps": 2, "sequence_parallel_size": 8, "bf16": {"enabled": true},
"zero_optimization": {"stage": 3}}"""
_SCRIPT = """export PARALLELISM_CONFIG_CP_SIZE=4 PARALLELISM_CONFIG_CP_COMM_STRATEGY=alltoall
accelerate launch --num_processes 16 --use_fsdp --fsdp_version 2 --mixed_precision bf16 train.py \\
  --per_device_train_batch_size 1 --gradient_checkpointing True --max_length 32768
"""
_TITAN = """[training]
local_batch_size = 1
seq_len = 32768
[parallelism]
context_parallel_degree = 4
context_parallel_rotate_method = "alltoall"
"""


@pytest.mark.parametrize(
    ("name", "text", "ranks", "kind"),
    [
        ("ds.json", _DEEPSPEED, 8, CpCommType.A2A),
        ("train.sh", _SCRIPT, 4, CpCommType.P2P),
        ("train.toml", _TITAN, 4, CpCommType.P2P),
    ],
)
def test_read_from_a_file(tmp_path, name: str, text: str, ranks: int, kind: CpCommType) -> None:
    file = tmp_path / name
    file.write_text(text)
    request = read_job(str(file), {"model": "llama3_8b", "gpus": "16xH100"}).request
    layout = resolve(request).layout
    assert (layout.context_parallel_size, layout.cp_comm_type) == (ranks, kind)
    assert layout.data_parallel_size * ranks == 16


def test_what_is_printed_for_accelerate_is_read_back(tmp_path: Path) -> None:
    stack, job = stack_job("huggingface", context_parallel_size=4)
    file = tmp_path / "accelerate.yaml"
    file.write_text(stack.spelling.config_file(FULL, job))
    given = {"model": "llama3_8b", "gpus": "H100", "micro_batch_size": 1, "global_batch_size": 8}
    assert resolve(read_job(str(file), given).request).layout == job.layout
