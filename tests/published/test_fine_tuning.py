"""Memory of fine-tuning that ms-swift, axolotl and transformers published. Nothing is fitted on
it; two lengths of samples are assumed (research/rows/fine_tuning.py).

ms-swift's numbers are rounded to GiB and may be nvidia-smi's, so that all that a process reserves
stands next to them. Its zero3.json sizes DeepSpeed's buckets by the hidden size, where the advisor
takes DeepSpeed's own 5e8 elements: 3.6 GiB more, which the last of the tests takes out.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.frameworks.deepspeed import static
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.job.job import LIKELY
from advisor.job.loss_head import LossHead, RouterAuxLoss
from advisor.layers.shape import RankShape
from advisor.layers.transformers.aux_loss import router_aux_loss
from advisor.memory.chunk_units import bytes_on_host, kept_bytes
from advisor.memory.liveness import footprint
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from research.rows.fine_tuning import MEMORY, commanded_job, fine_tuning_rows
from research.rows.row import Row
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import evaluator_of

GIB, MIB, GB = 2**30, 2**20, 10**9
LONG, DENSE, LORA, MUON, ADAM, FA2, FA3 = fine_tuning_rows(MEMORY)


def _evaluated(row: Row, folder: Path) -> tuple[Evaluation, float]:
    """And how far reserved memory is off."""
    job, setting = commanded_job(row, folder)
    found = Evaluator(job, load_calibration(job.gpu)).evaluate(setting).simulated
    error = found.peak.peak_reserved_bytes / GIB / float(row["value"]) - 1
    print(f"{row['source_path_or_table'][31:]:60} {row['value']:>3} {error:+.1%}")
    return found, error


@pytest.mark.parametrize(
    ("row", "error"), [(LONG, -0.01), (DENSE, 0.01), (LORA, -0.06)], ids=["long", "full", "LoRA"]
)
def test_runs_of_megatron_swift(tmp_path: Path, row: Row, error: float) -> None:
    found, off = _evaluated(row, tmp_path)
    assert off == pytest.approx(error, abs=0.01)
    assert found.fit_probability > LIKELY


def test_muon_needs_less_than_adam(tmp_path: Path) -> None:
    """By 13 GiB, both rounded. The samples of that file are others than dense.sh's, of the same
    length for both."""
    adam, muon = (_evaluated(row, tmp_path)[0].peak.peak_reserved_bytes for row in (ADAM, MUON))
    assert float(ADAM["value"]) - float(MUON["value"]) == 13
    assert (adam - muon) / GIB == pytest.approx(12.25, abs=0.1)


@pytest.mark.parametrize("row", [FA2, FA3], ids=["FA2", "FA3"])
def test_zero_3_of_ms_swift(tmp_path: Path, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    found, off = _evaluated(row, tmp_path)
    assert 0 < off < 0.15
    assert found.fit_probability > LIKELY
    hidden = load_model("qwen2.5_7b").hidden_size
    monkeypatch.setattr(static, "REDUCE_BUCKET_ELEMENTS", hidden**2)
    assert 0 < _evaluated(row, tmp_path)[1] < 0.07


def _shape(model: str, seq: int, **changes: int) -> RankShape:
    """transformers' layers of one sequence on one GPU."""
    batch = {"seq_length": seq, "micro_batch_size": 1, "global_batch_size": 1}
    _, job = stack_job("fsdp2", gpus="1xH100", **batch)
    made = replace(load_model(model), transformer_impl=TransformerImpl.TRANSFORMERS, **changes)
    return evaluator_of(replace(job, model=made)).shape


def _on_host(shape: RankShape) -> int:
    """Bytes that full checkpoints keep, which offload moves to the host."""
    layers = shape.model.layer_kinds
    full, away = (
        chunk_plan(parse_setting(spec), shape, layers, Semantics())
        for spec in ("full", "full+offload")
    )
    assert kept_bytes(shape, full) == bytes_on_host(shape, away)
    return bytes_on_host(shape, away)


def test_what_offload_frees() -> None:
    """axolotl: the last layer's input is on the device at the peak. transformers: to the byte."""
    peaks = [float(row["value"]) for row in fine_tuning_rows("peak_memory")]
    for seq, freed in ((16384, peaks[0] - peaks[1]), (32768, peaks[2] - peaks[3])):
        away = _on_host(_shape("qwen3_8b", seq))
        assert away / GIB * 35 / 36 == pytest.approx(freed, abs=0.1)
    there = [float(row["value"]) for row in fine_tuning_rows("resident_after_forward")]
    away = _on_host(_shape("qwen3_0.6b", 8192, num_layers=8))
    assert there[0] - there[1] == away / MIB


def test_auxiliary_loss_of_experts_before_it_was_mended() -> None:
    """Rows of after it were measured without gradients, as their size says: not compared."""
    rows = fine_tuning_rows("peak_of_load_balancing_loss")
    before = [row for row in rows if row["notes"].startswith("before")]
    assert len(before) == 4
    for row in before:
        shape = _shape("qwen3_30b_a3b", int(row["seq_len"]))
        shape = replace(shape, head=LossHead(router_aux_loss=RouterAuxLoss.STACKED))
        peak = footprint((router_aux_loss(shape),), ()).forward.num_bytes
        assert peak / GB == pytest.approx(float(row["value"]), rel=0.03)
