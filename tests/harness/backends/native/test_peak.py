"""The peak of a whole native step on a CPU next to the advisor's for the job that it is run as."""

import gc

import pytest
from cases import EXPERTS, GPT, LLAMA, Phases, workload
from msgspec.structs import replace

from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.backends.native import build
from harness.measure.memory import StorageMeter
from harness.measure.session import measure
from harness.trial.trial import Device, MeasurementPlan, Workload
from tests.advisor.jobs import job_config, job_of

SIZES = {"num_layers": 4, "vocab_size": 1024, "max_position_embeddings": 256}
MODELS = {
    "llama": replace(
        LLAMA, hidden_size=128, ffn_hidden_size=448, transformer_impl=TransformerImpl.LOCAL, **SIZES
    ),
    "gpt": replace(  # the CPU's stand-in for attention with dropout has scores of its own
        GPT,
        hidden_size=128,
        ffn_hidden_size=512,
        attention_dropout=0.0,
        transformer_impl=TransformerImpl.LOCAL,
        **SIZES,
    ),
    "experts": replace(
        EXPERTS,
        hidden_size=128,
        moe_ffn_hidden_size=224,
        transformer_impl=TransformerImpl.LOCAL,
        **SIZES,
    ),
}
SEQUENCE = 256
ROUNDING = 5e-4
"""Token ids, losses and AdamW's step counters: about 5 KiB of 30 to 40 MB."""


def predicted(one: Workload) -> int:
    """The advisor's peak without cuBLAS workspaces, which a CPU has not."""
    gpu = load_gpu("A100")
    job = job_of(
        one.model,
        one.layout,
        job_config(one.seq_length, one.micro_batch_size, one.global_batch_size),
        gpu,
    )
    evaluator = Evaluator(as_run(job, one), load_calibration(gpu))
    setting = parse_setting(one.recompute)
    buffers = evaluator.stage_detail(setting, 0).fixed.buffers
    workspaces = sum(term.num_bytes for term in buffers if term.name == "cuBLAS workspaces")
    return evaluator.evaluate(setting).peak.peak_allocated_bytes - workspaces


def measured(one: Workload) -> int:
    gc.collect()
    before = StorageMeter()
    before.count_existing()  # what other tests have left alive
    step = build(one, 1)
    plan = MeasurementPlan(steps=1, min_warmup_steps=1, max_warmup_steps=1)
    allocated = measure(step, plan, Device.CPU).memory[0].allocated
    return allocated - before.live_bytes


def run_as(model: ModelSpec, setting: str, microbatches: int) -> Workload:
    return workload(
        model, setting, seq_length=SEQUENCE, micro_batch_size=4, global_batch_size=4 * microbatches
    )


@pytest.mark.parametrize(
    ("name", "setting", "microbatches"),
    [
        ("llama", "none", 1),
        ("llama", "selective:mlp", 2),
        ("gpt", "none", 2),
        ("gpt", "selective:core_attn,layernorm", 1),
        ("experts", "selective:mlp", 2),
        ("experts", "selective:core_attn,layernorm", 1),
    ],
)
def test_the_peak_is_the_predicted_one(name: str, setting: str, microbatches: int) -> None:
    one = run_as(MODELS[name], setting, microbatches)
    assert measured(one) == pytest.approx(predicted(one), rel=ROUNDING)


def test_a_checkpoint_of_torch_holds_one_hidden_state_less() -> None:
    one = run_as(MODELS["llama"], "full:uniform:2", 1)
    hidden = 4 * SEQUENCE * 128 * 2
    assert predicted(one) - measured(one) == pytest.approx(hidden, rel=0.05)


def test_gradients_stay_from_one_step_to_the_next() -> None:
    step = build(run_as(MODELS["llama"], "none", 1), 1)
    step.run(Phases())
    kept = {name: p.grad for name, p in step.model.named_parameters()}
    step.run(Phases())
    assert all(p.grad is kept[name] for name, p in step.model.named_parameters())
