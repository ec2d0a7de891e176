"""Job presets: legal jobs with published layouts, found by model, GPUs and precision."""

from pathlib import Path
from typing import Any

import pytest

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.hardware.catalogue import load_gpu, resolve_gpu
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.options import AttentionBackend, CrossEntropyFusion
from advisor.models.presets import load_model
from advisor.request import recipes
from advisor.request.recipe_choice import Wanted, find_experiment
from tests.advisor.jobs import parallel
from tests.advisor.refusals import refused


def job_of(experiment: recipes.Experiment) -> Job:
    count, kind = parse_gpus(experiment.gpus)
    return Job(
        model=experiment.configure(load_model(experiment.model)),
        layout=experiment.layout,
        config=experiment.config,
        gpu=load_gpu(kind),
        num_gpus=count,
    )


def find(model: str, gpus: str, **more: Any) -> recipes.Experiment | None:
    count, kind = parse_gpus(gpus)
    return find_experiment(Wanted(model=model, num_gpus=count, gpu_type=kind, **more))


@pytest.mark.parametrize("name", recipes.experiment_names())
def test_every_preset_is_a_legal_job_that_is_found(name: str) -> None:
    experiment = recipes.load_experiment(name)
    assert experiment.source
    assert job_of(experiment).num_microbatches >= 1
    count, kind = parse_gpus(experiment.gpus)
    precision = experiment.config.precision
    for spelt in (kind, resolve_gpu(kind)):
        assert find(experiment.model, f"{count}x{spelt}", precision=precision) == experiment
    stem = f"{experiment.model}_{experiment.gpus.lower()}"
    assert name in (stem, f"{stem}_{precision}")


def test_the_seventy_billion_case() -> None:
    experiment = find_experiment(Wanted(model="llama3_70b", num_gpus=32, gpu_type="H100"))
    assert experiment.name == "llama3_70b_32xh100"
    assert experiment.layout == ParallelLayout(
        **parallel(tp=4, sp=True, pp=4, vpp=5, dp=2), tp_comm_overlap=True
    )
    config = experiment.config
    assert (config.micro_batch_size, config.global_batch_size, config.seq_length) == (1, 32, 4096)
    assert config.precision is Precision.BF16
    assert config.main_grads_dtype is DType.BF16
    model = experiment.configure(load_model("llama3_70b"))
    assert model.cross_entropy_fusion is CrossEntropyFusion.TE
    assert job_of(experiment).num_microbatches == 16


# Korthikanti et al. (arXiv 2205.05198) Table 3
@pytest.mark.parametrize(
    ("name", "gpus", "tp", "pp", "vpp", "mbs", "gbs"),
    [
        ("gpt3_22b", 8, 8, 1, 1, 4, 4),
        ("gpt3_175b", 64, 8, 8, 3, 1, 64),
        ("gpt3_530b", 280, 8, 35, 3, 1, 280),
        ("gpt3_1t", 512, 8, 64, 1, 1, 512),
    ],
)
def test_the_jobs_of_the_paper(name, gpus, tp, pp, vpp, mbs, gbs) -> None:
    experiment = find_experiment(Wanted(model=name, num_gpus=gpus, gpu_type="A100-SXM-80GB"))
    layout, config = experiment.layout, experiment.config
    assert layout.tensor_model_parallel_size == tp
    assert layout.sequence_parallel
    assert layout.pipeline_model_parallel_size == pp
    assert layout.virtual_pipeline_model_parallel_size == vpp
    assert layout.data_parallel_size == 1
    assert not layout.use_distributed_optimizer
    assert (config.micro_batch_size, config.global_batch_size) == (mbs, gbs)
    assert (config.precision, config.seq_length) == (Precision.FP16, 2048)
    model = experiment.configure(load_model(name))
    assert model.attention_backend is AttentionBackend.UNFUSED


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ("llama3_70b", "24xH100"),
        ("llama3_70b", "32xH200"),
        ("llama3_70b", "32xH100-PCIe"),
        ("llama3", "32xH100"),
        ("llama3_70b_32xh100", "32xH100"),
    ],
)
def test_no_preset_is_no_error(model: str, gpus: str) -> None:
    assert find(model, gpus) is None


def test_a_precision_has_its_own_preset_or_takes_the_plain_one() -> None:
    plain, eight, other = (
        find("llama3_8b", "8xB200", precision=precision)
        for precision in (None, Precision.MXFP8, Precision.FP8_BLOCKWISE)
    )
    assert plain.name == "llama3_8b_pretrain_8gpu_b200_bf16"
    assert eight.name == "llama3_8b_pretrain_8gpu_b200_fp8mx"
    assert eight.config.fp8_param_gather
    assert other == plain


def test_a_row_of_the_precision_comes_before_the_file_that_names_none() -> None:
    eight = {"precision": Precision.FP8_CURRENT}
    row = find("llama3_70b", "64xH100", **eight)
    assert row.name == "llama3_70b_pretrain_64gpu_h100_fp8cs"
    assert row.layout.pipeline_model_parallel_size == 8
    # the same in 16 bits, or for a length that the row is not for, is the file
    for other in ({"precision": Precision.BF16}, {}, eight | {"seq_length": 4096}):
        assert find("llama3_70b", "64xH100", **other).name == "llama3_70b_64xh100"


def test_a_preset_for_one_precision_is_not_taken_for_another() -> None:
    assert find("llama3_70b", "64xGB200") is None
    assert find("llama3_70b", "64xGB200", precision=Precision.MXFP8) is not None


OWN = """\
model: llama3_8b
gpus: 16xH100
seq_length: 8192
micro_batch_size: 1
global_batch_size: 64
layout:
  tensor_model_parallel_size: 2
"""


def own(folder: Path, text: str, name: str = "llama3_8b_16xh100") -> Path:
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / f"{name}.yaml").write_text(text)
    return folder


def test_a_preset_of_the_user_s_own(tmp_path: Path) -> None:
    experiment = find("llama3_8b", "16xH100", config_dir=own(tmp_path, OWN))
    assert experiment.layout.data_parallel_size == 8
    assert experiment.config.main_grads_dtype is DType.FP32
    model = load_model("llama3_8b")
    assert experiment.configure(model) == model


def test_a_preset_for_a_gpu_nobody_describes_is_passed_over(tmp_path: Path) -> None:
    folder = own(tmp_path, OWN, "llama3_8b_16xtpu")
    assert find("llama3_8b", "16xH100", config_dir=folder) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OWN.replace("model: llama3_8b\n", ""), "model = (none): is missing"),
        (OWN.replace("16xH100", "H100"), "is not COUNTxTYPE"),
        (
            OWN.replace("size: 2", "size: 3"),
            "TP x CP x PP = 3: must divide 16 GPUs; nearest: 2 or 4",
        ),
        (OWN.replace("size: 2", "size: 0"), "layout.tensor_model_parallel_size = 0: must be at"),
        (OWN.replace("tensor_", "tensr_"), "layout.tensr_model_parallel_size = 2: is not a known"),
        (OWN.replace("seq_length", "sequence"), "sequence = 8192: is not a known key"),
        (OWN.replace("8192", "0"), "job.seq_length = 0: must be at least 1"),
        (OWN + "precision: fp7\n", "precision = fp7: must be one of bf16"),
        (OWN + "model_options: {num_layer: 1}\n", "model_options.num_layer = 1: is not a known"),
        (OWN + "model_options: 3\n", "model_options = 3: must be a mapping"),
        (OWN + "seq_length: 1\n", "key seq_length is given twice"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    own(tmp_path, text)
    with refused(says):
        recipes.load_experiment("llama3_8b_16xh100", tmp_path)


@pytest.mark.parametrize("name", recipes.experiment_names())
def test_a_file_that_is_a_row_under_a_shorter_name_says_the_same(name: str) -> None:
    file = recipes.load_experiment(name)
    _, _, last = file.source.strip().rpartition(" ")
    if not any(last == row.name for row in recipes.load_recipes(file.model)):
        return
    row = recipes.named_experiment(last)
    assert job_of(file) == job_of(row)
    assert file.shipped == row.shipped


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean llama3_70b_32xh100"):
        recipes.load_experiment("llama3_70b_32xh10")
