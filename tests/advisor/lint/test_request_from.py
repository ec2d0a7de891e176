"""`advise --from FILE`: the job of a configuration."""

import json
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.cli import main as cli
from advisor.lint.request_from import read_job
from advisor.models.options import CrossEntropyFusion, PositionEmbedding
from advisor.request.request import Request
from advisor.request.resolve import resolve
from tests.advisor.tables import tables

TABLES = tables(__file__)

CORRECT = Path(__file__).parent / "configurations" / "correct"


def job(name: str, **given: object):
    return read_job(str(CORRECT / name), {"gpus": "64xH100", **given})


def test_a_script_of_megatron_lm() -> None:
    found = job("megatron_slurm_srun.sbatch", gpus="H100")
    request = found.request
    assert (request.model, request.gpus) == ("llama2_70b", "128xH100")
    assert request.tensor_model_parallel_size == 8
    assert request.virtual_pipeline_model_parallel_size == 4
    assert (request.seq_length, request.global_batch_size) == (4096, 1024)
    assert request.sequence_parallel
    assert "layout.overlap_param_gather=false" in request.overrides
    assert found.configuration.recompute == "full:uniform:1"
    assert [given.place.line for given in found.configuration.recompute_at] == [44, 45, 46]


@pytest.mark.parametrize(("name", "model", "recompute", "values"), TABLES["test_the_job_of_a_file"])
def test_the_job_of_a_file(name, model, recompute, values) -> None:
    found = job(name)
    assert (found.request.model, found.configuration.recompute) == (model, recompute)
    assert {field: getattr(found.request, field) for field in values} == values


def test_what_the_command_line_says_wins() -> None:
    request = job("megatron_slurm_srun.sbatch", seq_length=2048, model="llama3_70b").request
    assert (request.seq_length, request.model) == (2048, "llama3_70b")
    pair = "layout.overlap_param_gather=true"
    assert job("megatron_slurm_srun.sbatch", overrides=(pair,)).request.overrides.count(pair) == 1


def test_verl_deals_samples_by_length_with_a_file_or_without() -> None:
    named = Request(model="qwen3_8b", gpus="8xH100", framework="verl")
    assert resolve(named).config.samples.balanced
    assert not resolve(
        replace(named, overrides=("samples.balanced=false",))
    ).config.samples.balanced


def test_a_flag_of_samples_wins() -> None:
    command = (
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        "actor_rollout_ref.actor.use_dynamic_bsz=true "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576"
    )
    for given, budget in (({}, 24576), ({"max_tokens_per_gpu": 49152}, 49152)):
        found = resolve(read_job(command, {"gpus": "8xH100", **given}).request)
        assert found.config.samples.token_budget == budget


@pytest.mark.parametrize(("name", "says"), TABLES["test_what_is_missing_is_said"])
def test_what_is_missing_is_said(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        job(name)


def test_what_cannot_be_read_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--from = nofile: is neither a file nor flags"):
        read_job("nofile", {})
    path = tmp_path / "bin.bin"
    path.write_bytes(b"\xff\xfa\xff")
    with pytest.raises(UserError, match=r"^--from = .*bin\.bin: is not UTF-8 text in line 1"):
        read_job(str(path), {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"a = {'9' * 5000}", "a number of more than 40 digits"),
        (f"a = {'[' * 5000}", "nests deeper than 100 levels"),
    ],
)
def test_a_toml_that_python_gives_up_on_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"is not valid TOML: {reason}$"):
        read_job(str(path), {})


def test_the_page_says_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    script = str(CORRECT / "megatron_slurm_srun.sbatch")
    assert cli.main(["--from", script, "--gpus", "H100", "--top", "1"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "sets full:uniform:1 (row " in text
    assert "--recompute-granularity in line 44" in text
    assert "fastest needs none of these options: remove them, and change " in text


LLAMA = (
    "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 "
    "--swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 --bf16 "
)


def resolved(folder: Path, text: str, gpus: str = "8xH100", **given: object):
    """The job of a script, with the origins of its values."""
    (folder / "train.sh").write_text(text + "\n")
    return resolve(read_job(str(folder / "train.sh"), {"gpus": gpus, **given}).request)


@pytest.mark.parametrize("words", ["", "--tensor-model-parallel-size 2 "])
def test_what_a_script_does_not_say_is_megatrons_default_and_no_recipes(tmp_path, words) -> None:
    found = resolved(tmp_path, f"{LLAMA}{words}--use-distributed-optimizer")
    assert not any("recipe" in str(origin) for origin in found.origins.values())
    assert found.config.main_grads_dtype is DType.FP32
    assert not found.config.expandable_segments
    assert found.model.cross_entropy_fusion is CrossEntropyFusion.NONE
    assert not found.layout.sequence_parallel
    assert found.layout.use_distributed_optimizer
    said = resolved(tmp_path, f"{LLAMA}{words}--grad-reduce-in-bf16 --sequence-parallel")
    assert said.config.main_grads_dtype is DType.BF16
    assert said.layout.sequence_parallel == bool(words)


def test_what_a_script_does_not_say_of_the_model_is_megatrons_default(tmp_path: Path) -> None:
    """Of a preset's model, whose own dropouts, positions and fusions are others."""
    found = resolved(tmp_path, f"{LLAMA} --max-position-embeddings 8192")
    model = found.model
    assert model.name == "llama3_8b"
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.1)
    assert model.position_embedding_type is PositionEmbedding.LEARNED
    assert model.apply_rope_fusion
    assert model.masked_softmax_fusion
    local = resolved(tmp_path, f"{LLAMA} --transformer-impl local").model
    assert not local.attention_softmax_in_fp32
    assert str(found.origins["model.hidden_dropout"]).startswith("default of megatron_lm 0.")
    assert str(found.origins["model.hidden_size"]) == "given"
    said = resolved(
        tmp_path,
        f"{LLAMA} --hidden-dropout 0.0 --attention-dropout 0 --no-rope-fusion --qk-layernorm "
        "--use-rotary-position-embeddings --no-bias-swiglu-fusion --no-bias-dropout-fusion "
        "--no-masked-softmax-fusion --attention-softmax-in-fp32 --rotary-percent 0.5",
    ).model
    assert (said.hidden_dropout, said.attention_dropout, said.rotary_percent) == (0, 0, 0.5)
    assert said.position_embedding_type is PositionEmbedding.ROPE
    assert said.qk_layernorm
    assert said.attention_softmax_in_fp32
    fusions = (said.apply_rope_fusion, said.bias_activation_fusion, said.bias_dropout_fusion)
    assert not any((*fusions, said.masked_softmax_fusion))
    named = resolved(tmp_path, LLAMA, model="qwen3_8b").model  # --model says the shape
    assert (named.position_embedding_type, named.hidden_dropout) == (PositionEmbedding.ROPE, 0.1)


OTHER = (
    "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 1536 --num-attention-heads 12 "
    "--seq-length 2048 --max-position-embeddings 4096 --position-embedding-type rope --bf16 "
    "--micro-batch-size 2 "
)


def test_a_model_that_is_no_preset_is_made_of_the_flags(tmp_path: Path) -> None:
    found = resolved(tmp_path, f"{OTHER} --vocab-size 50000 --swiglu")
    model = found.model
    assert (model.name, model.num_layers, model.vocab_size) == ("train", 12, 50000)
    assert (model.ffn_hidden_size, model.kv_channels, model.num_query_groups) == (4096, 128, 12)
    assert str(found.origins["model.num_layers"]) == "given"
    for path in ("model.ffn_hidden_size", "job.global_batch_size"):
        assert str(found.origins[path]).startswith("default of megatron_lm")
    assert model.add_bias_linear
    assert model.share_embeddings_and_output_weights
    assert model.normalization == "LayerNorm"
    plain = resolved(tmp_path, OTHER, overrides=("model.vocab_size=32000",)).model
    assert (plain.ffn_hidden_size, plain.activation, plain.vocab_size) == (6144, "gelu", 32000)
    grouped = resolved(tmp_path, f"{OTHER} --vocab-size 50000 --num-query-groups 4").model
    assert grouped.num_query_groups == 12  # not read without --group-query-attention


def test_without_a_global_batch_a_step_is_one_microbatch_a_rank(tmp_path: Path) -> None:
    script = f"{OTHER} --vocab-size 50000 --tensor-model-parallel-size 2"
    assert resolved(tmp_path, script, "16xH100").config.global_batch_size == 16


def test_a_script_says_its_optimizer_and_its_types(tmp_path: Path) -> None:
    words = (
        "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8 "
        "--optimizer-cpu-offload --use-distributed-optimizer "
        "--no-create-attention-mask-in-dataloader "
    )
    config = resolved(tmp_path, f"{LLAMA} {words}").config
    assert config.use_precision_aware_optimizer
    assert (config.exp_avg_dtype, config.exp_avg_sq_dtype) == (DType.BF16, DType.FLOAT8)
    assert (config.optimizer_cpu_offload, config.optimizer_offload_fraction) == (True, 1.0)
    assert config.create_attention_mask is False
    half = resolved(tmp_path, LLAMA.replace("--bf16", "--fp16")).config
    assert (half.precision, half.main_grads_dtype) == ("fp16", DType.FP16)
    muon = resolved(tmp_path, f"{LLAMA} --optimizer muon").config
    assert muon.optimizer == "muon"


@pytest.mark.parametrize(
    ("recipe", "fused"),
    [
        ("llama.llama3 import llama3_8b_pretrain_config", (True, True)),
        ("qwen.qwen3 import qwen3_8b_pretrain_config", (False, False)),
        ("deepseek.deepseek_v3 import deepseek_v3_pretrain_config", (False, True)),
    ],
)
def test_a_library_recipe_has_the_fusions_of_its_models_class(tmp_path, recipe, fused) -> None:
    name = recipe.rpartition(" ")[2]
    text = f"from megatron.bridge.recipes.{recipe}\ncfg = {name}()\ncfg.model."
    both = "apply_rope_fusion = True\ncfg.model.bias_activation_fusion = True"
    for more, expected in (("tensor_model_parallel_size = 2", fused), (both, (True, True))):
        (tmp_path / "train.py").write_text(f"{text}{more}\n")
        model = resolve(read_job(str(tmp_path / "train.py"), {"gpus": "64xH100"}).request).model
        assert (model.apply_rope_fusion, model.bias_activation_fusion) == expected


QWEN = (
    "torchrun pretrain_gpt.py --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 4 --num-experts 128 "
    "--moe-ffn-hidden-size 768 --moe-router-topk 8 --vocab-size 151936 --seq-length 4096 "
    "--micro-batch-size 1 --global-batch-size 128 --bf16 --expert-model-parallel-size 16 "
)


@pytest.mark.parametrize(
    ("words", "dispatcher", "permute", "graphs"),
    [
        ("", "allgather", False, ("none", ())),
        (
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep "
            "--moe-permute-fusion --moe-router-fusion --cuda-graph-impl transformer_engine "
            "--cuda-graph-modules attn moe_router",
            "flex",
            True,
            ("transformer_engine", ("attn", "moe_router")),
        ),
        (
            "--moe-token-dispatcher-type alltoall --cuda-graph-impl local --cuda-graph-scope attn",
            "alltoall",
            False,
            ("local", ("attn",)),
        ),
    ],
)
def test_a_script_says_how_its_experts_run(tmp_path, words, dispatcher, permute, graphs) -> None:
    found = resolved(tmp_path, f"{QWEN}{words}", "16xH100")
    model, config = found.model, found.config
    assert (model.moe_token_dispatcher_type, model.moe_permute_fusion) == (dispatcher, permute)
    assert (model.moe_router_fusion, model.moe_grouped_gemm) == (permute, False)
    assert (config.cuda_graph_impl, config.cuda_graph_modules) == graphs
    if dispatcher == "flex":
        assert model.moe_flex_dispatcher_backend == "hybridep"


def page_of(folder: Path, capsys, text: str, gpus: str, *words: str) -> str:
    """What is printed of a script, on one line."""
    (folder / "train.sh").write_text(f"{text}\n")
    cli.main(["--from", str(folder / "train.sh"), "--gpus", gpus, *words])
    return " ".join(capsys.readouterr().out.split())


def test_what_is_known_and_not_taken_is_said(tmp_path, capsys) -> None:
    words = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend ncclep"
    script = f"{QWEN}{words} --dsa-indexer-topk-freq 4"
    text = page_of(tmp_path, capsys, script, "16xH100", "--top", "1")
    assert "--moe-flex-dispatcher-backend ncclep in line 1, --dsa-indexer-topk-freq 4" in text
    words = "--max-position-embeddings 8192 --position-embedding-type rope"
    text = page_of(tmp_path, capsys, f"{LLAMA} {words}", "64xH100", "--top", "1")
    assert "default model.hidden_dropout 0.1; the preset has 0.0 · " in text


@pytest.mark.parametrize(("directives", "launcher"), TABLES["test_the_gpus_of_slurms_options"])
def test_the_gpus_of_slurms_options(tmp_path: Path, directives: str, launcher: str) -> None:
    file, options = tmp_path / "train.sh", LLAMA.partition("pretrain_gpt.py")[2]
    file.write_text(f"#SBATCH {directives}\n{launcher} pretrain_gpt.py{options}\n")
    assert read_job(str(file), {"gpus": "H100"}).request.gpus == "64xH100"


def test_what_the_framework_refuses_is_said_with_what_came_of_it(tmp_path, capsys) -> None:
    options = f"{LLAMA} --tensor-model-parallel-size 2 --tp-comm-overlap"
    said = "tp_comm_overlap = True: left out; drop tp_comm_overlap, or set sequence_parallel"
    assert said in page_of(tmp_path, capsys, options, "64xH100", "--quick")
    words = ["--from", str(tmp_path / "train.sh"), "--gpus", "64xH100", "--format", "flags"]
    cli.main([*words, "--quick"])
    assert f"{said}\n" in capsys.readouterr().err
    refused = f"{LLAMA} --recompute-granularity full"
    assert ": refused, but predicted; add" in page_of(tmp_path, capsys, refused, "64xH100")


def test_slime_shards_always_and_counts_tokens(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "source models/qwen3-30B-A3B.sh\npython3 train.py --actor-num-nodes 2 "
        "--actor-num-gpus-per-node 8 --use-dynamic-batch-size --max-tokens-per-gpu 8192 "
        "--context-parallel-size 2 --tensor-model-parallel-size 4 ${MODEL_ARGS[@]}\n"
    )
    request = read_job(str(file), {"model": "qwen3_30b_a3b", "gpus": "H100"}).request
    assert (request.gpus, request.micro_batch_size, request.seq_length) == ("16xH100", 1, 16384)
    assert "layout.use_distributed_optimizer=true" in request.overrides
    assert "model.moe_token_dispatcher_type=alltoall" in request.overrides


def test_what_is_not_known_is_said_with_what_is_assumed(tmp_path, capsys) -> None:
    words = (
        "--cuda-graph-impl $IMPL --tensor-model-parallel-size $TP --recompute-granularity $GRAN "
        "--log-interval $LOG --clip-grad 0 ${EXTRA_ARGS}"
    )
    file = tmp_path / "train.sh"
    file.write_text(f"{LLAMA}{words}\n")
    asked = ["--from", str(file), "--gpus", "8xH100", "--top", "1"]
    cli.main(asked)
    lines = capsys.readouterr().out.split("\nfile ")[1]
    text = " ".join(lines.split())
    assert "sets a recompute setting, but its value is not known" in text
    assert "not used --clip-grad 0.0 in line 1" in text
    for says in (
        "not known --cuda-graph-impl $IMPL in line 1: none is assumed; give "
        "job.cuda_graph_impl=VALUE",
        "--tensor-model-parallel-size $TP in line 1: 1 is assumed; give "
        "layout.tensor_model_parallel_size=VALUE",
        "--recompute-granularity $GRAN in line 1: every setting is ranked",
        "${EXTRA_ARGS} in line 1: not read; assumed: TP 1 · DP 8 · optimizer not sharded",
    ):
        assert says in text
    assert "$LOG" not in text
    cli.main([*asked, "--format", "json"])
    read = json.loads(capsys.readouterr().out)["read_from"]
    assert (read["file"], read["line"], read["recompute"]) == (str(file), 1, None)
    assert [(one["option"], one["value"]) for one in read["not_taken"]] == [("--clip-grad", "0.0")]
    unknown = {one["key"]: one["assumed"] for one in read["not_known"]}
    assumed = {"job.cuda_graph_impl": "none", "layout.tensor_model_parallel_size": "1"}
    assert unknown == {**assumed, "--recompute": None, "": "TP 1 · DP 8 · optimizer not sharded"}
    given = ["--tp", "2", "--recompute", "none", "job.cuda_graph_impl=local"]
    cli.main([*asked, *given, "--format", "json"])
    read = json.loads(capsys.readouterr().out)["read_from"]
    assert [one["value"] for one in read["not_known"]] == ["${EXTRA_ARGS}"]


GIVEN = {"model": "llama3_8b", "gpus": "8xH100"}


def read_text(folder: Path, text: str, name: str = "train.sh"):
    """The job of a file with this text, of Llama 3 8B on eight GPUs."""
    (folder / name).write_text(f"{text}\n")
    return read_job(str(folder / name), GIVEN)


def test_a_command_that_accelerate_launches_is_one_job(tmp_path: Path) -> None:
    """`--bf16` is Megatron's and a Trainer's."""
    options = "--bf16 True --gradient_checkpointing True --torch_compile True"
    found = read_text(tmp_path, f"accelerate launch train.py {options}")
    assert found.request.framework == "huggingface"
    assert found.configuration.recompute.startswith("full")


@pytest.mark.parametrize(
    ("text", "says"), TABLES["test_a_command_without_settings_says_what_was_read"]
)
def test_a_command_without_settings_says_what_was_read(tmp_path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_text(tmp_path, text)


JOBS = CORRECT.parent / "jobs"
FSDP = "layout.data_parallel_sharding"
REALISTIC = yaml.safe_load((Path(__file__).parent / "jobs.yaml").read_text())


@pytest.mark.parametrize("name", REALISTIC)
def test_a_realistic_file_is_the_job_that_its_framework_runs(name: str) -> None:
    """What Megatron-LM's own parser (megatron-core 0.19.2) makes of its scripts that say so was
    compared option by option."""
    expected = REALISTIC[name]
    read = read_job(str(JOBS / name), {"gpus": expected["gpus"]})
    found = resolve(read.request)
    parts = {"model": found.model, "layout": found.layout, "job": found.config}
    for path, value in expected["fields"].items():
        part, _, field = path.partition(".")
        actual = getattr(parts[part], field)
        assert (list(actual) if isinstance(actual, tuple) else actual) == value, path
    assert read.configuration.recompute == expected["recompute"]
    untaken = [one.written for one in read.configuration.untaken]
    assert untaken == expected.get("untaken", [])
    assert read.configuration.unknown == ()
    found.job(found.layout)


@pytest.mark.parametrize(
    ("options", "path", "says"),
    [
        ("--bf16 --gradient_checkpointing", FSDP, "no fsdp"),
        ("--fsdp full_shard", "job.precision", "neither bf16 nor fp16"),
        ("--bf16 --deepspeed no.json --gradient_checkpointing", FSDP, "--deepspeed"),
    ],
)
def test_a_trainers_job_that_is_not_modelled_is_named(tmp_path, options, path, says) -> None:
    read = read_text(tmp_path, f"python train.py --output_dir o {options}")
    assert [(one.path, one.written) for one in read.configuration.unknown] == [(path, says)]


def test_files_lie_next_to_a_script_or_where_it_is_run(tmp_path, monkeypatch) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    script, given = tmp_path / "scripts" / "t.sh", GIVEN
    text = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    script.write_text(
        "accelerate launch --config_file a.yaml train.py --output_dir o --bf16 "
        "--gradient_checkpointing True\n"
    )
    for folder, sharding in (("run", "SHARD_GRAD_OP"), ("scripts", "FULL_SHARD")):
        (tmp_path / folder / "a.yaml").write_text(
            f"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {sharding}\n"
        )
        read = read_job(str(script), given)
        assert read.configuration.unknown == ()
        expected = "gradients" if folder == "run" else "full"
        assert read.configuration.values[FSDP].value == expected
    script.write_text("deepspeed train.py --output_dir o --bf16 --deepspeed ds.json\n")
    (tmp_path / "run" / "ds.json").write_text(text)
    read = read_job(str(script), given)
    assert (read.request.framework, read.configuration.unknown) == ("deepspeed", ())
    assert read.configuration.values[FSDP].value == "gradients"
    (tmp_path / "run" / "tt.toml").write_text(
        "[training]\nseq_len = 512\n[activation_checkpoint]\nmode = 'full'\n"
    )
    script.write_text("CONFIG_FILE=tt.toml torchrun -m torchtitan.train --compile.enable\n")
    assert read_job(str(script), given).request.seq_length == 512


@pytest.mark.parametrize(
    ("command", "framework", "unknown"),
    [
        ("deepspeed train.py --deepspeed no.json", "deepspeed", ["--deepspeed"]),
        ("torchrun train.py --deepspeed $DS", "deepspeed", ["--deepspeed"]),
        ("accelerate launch --config_file no.yaml train.py", "huggingface", ["--config_file"]),
    ],
)
def test_a_named_file_that_is_missing_is_not_known(tmp_path, command, framework, unknown) -> None:
    read = read_text(tmp_path, f"{command} --output_dir o --bf16 --gradient_checkpointing True")
    assert read.request.framework == framework
    assert [one.written for one in read.configuration.unknown] == unknown
    assert resolve(read.request).config.framework == framework


MICRO_BATCH_4 = '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}}'


def test_accelerates_file_has_fsdp1_by_default_and_deepspeeds_stages(tmp_path: Path) -> None:
    def found(text: str, name: str = "a.yaml"):
        return resolve(read_text(tmp_path, text, name).request)

    fsdp = found("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}")
    assert fsdp.config.flat_parameters
    assert fsdp.layout.data_parallel_sharding == "gradients"
    hybrid = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n"
    hybrid = found(hybrid + "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD_ZERO2}")
    assert hybrid.layout.data_parallel_sharding == "gradients"
    assert hybrid.layout.data_parallel_replicate_size == 2
    replicas = "{parallelism_config_dp_replicate_size: 4, parallelism_config_dp_shard_size: 2}"
    text = f"distributed_type: FSDP\nnum_processes: 8\nparallelism_config: {replicas}"
    assert found(text).layout.data_parallel_replicate_size == 4
    stages = "{zero_stage: 2, offload_optimizer_device: cpu}"
    zero = found(f"distributed_type: DEEPSPEED\ndeepspeed_config: {stages}")
    assert (zero.config.framework, zero.config.optimizer_cpu_offload) == ("deepspeed", True)
    assert zero.layout.data_parallel_sharding == "gradients"
    plain = found(MICRO_BATCH_4, "ds.json")
    assert plain.layout.data_parallel_sharding == "no_shard"  # stage 0
    assert plain.config.global_batch_size == 32


TRAINER = "train.py --output_dir o --bf16 --fsdp full_shard --gradient_checkpointing True"
FP8 = "distributed_type: FSDP\nmixed_precision: {}\nfp8_config: {{backend: {}}}"
RECIPE = "Accelerator(mixed_precision='fp8', kwargs_handlers=[{}RecipeKwargs({})])"


@pytest.mark.parametrize(
    ("name", "text", "precision"),
    [
        ("a.yaml", FP8.format("fp8", "TE"), "TE"),
        ("a.yaml", FP8.format("fp8", "AO"), "AO"),
        ("a.yaml", FP8.format("bf16", "AO"), ""),
        ("a.py", RECIPE.format("TE", "amax_history_len=16"), "TE"),
        ("a.py", RECIPE.format("FP8", "backend='TE'"), "TE"),
        ("a.py", RECIPE.format("TE", "use_mxfp8_block_scaling=True"), "MX"),
        ("a.yaml", FP8.format("fp8", "TE, use_mxfp8_block_scaling: true"), "MX"),
        ("a.sh", f"accelerate launch --mixed_precision fp8 --fp8_backend te {TRAINER}", "TE"),
        (
            "a.sh",
            f"ACCELERATE_MIXED_PRECISION=fp8 ACCELERATE_FP8_BACKEND=TE torchrun {TRAINER}",
            "TE",
        ),
    ],
)
def test_accelerates_fp8_is_the_precision(tmp_path: Path, name, text, precision) -> None:
    """A Trainer's bf16 leaves the layers that Accelerate has put in."""
    said = {"TE": "fp8_delayed", "AO": "fp8_current", "MX": "mxfp8", "": "bf16"}[precision]
    assert read_text(tmp_path, text, name).request.precision == said


def test_accelerates_variables_of_fp8_are_read(tmp_path: Path) -> None:
    told = "MIXED_PRECISION=fp8 FP8_BACKEND=AO FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER=false"
    told = " ".join(f"ACCELERATE_{one}" for one in told.split())
    request = read_text(tmp_path, f"{told} torchrun {TRAINER}", "a.sh").request
    assert "job.fp8_param_gather=false" in request.overrides


def test_an_fp8_backend_that_is_not_modelled_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fp8 by MSAMP"):
        resolve(read_text(tmp_path, text := FP8.format("fp8", "MSAMP"), "a.yaml").request)
    nothing = read_text(tmp_path, text.partition("fp8_config")[0], "a.yaml")
    assert [one.written for one in nothing.configuration.unknown] == ["fp8 without a backend"]


TITAN = "torchrun --nproc_per_node=8 -m torchtitan.train"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize(
    "command",
    [
        f"accelerate launch {TRAINER}",
        f"accelerate launch --config_file tt.yaml {TRAINER}",
        "accelerate launch --config_file tt.yaml train.py",
        f"torchrun {TRAINER}",
        f"deepspeed {TRAINER} --deepspeed ds.json",
        "deepspeed train.py --deepspeed_config ds.json",
        f"{TITAN} --training.seq_len=4096 --activation_checkpoint.mode=full",
        f"CONFIG_FILE=tt.toml {TITAN}",
        f"CONFIG_FILE=tt.toml {TITAN} --training.seq_len=4096 --activation_checkpoint.mode=full",
        LLAMA,
    ],
)
def test_the_allocators_option_of_a_script_is_the_jobs(tmp_path, command: str, name: str) -> None:
    (tmp_path / "tt.yaml").write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n")
    full = "[activation_checkpoint]\nmode = 'full'\n"
    (tmp_path / "tt.toml").write_text(f"[training]\nlocal_batch_size = 1\n{full}")
    (tmp_path / "ds.json").write_text(MICRO_BATCH_4)
    for value in (True, False):
        text = f"export {name}=max_split_size_mb:512,expandable_segments:{value}\n{command}"
        found = resolved(tmp_path, text, model="llama3_8b")
        assert found.config.expandable_segments is value
        assert str(found.origins["job.expandable_segments"]) == "given"
    unknown = resolved(tmp_path, f"export {name}=$CONF\n{command}", model="llama3_8b")
    assert str(unknown.origins["job.expandable_segments"]) != "given"


@pytest.mark.parametrize(
    ("name", "text", "says"), TABLES["test_adapters_are_not_modelled_and_the_verdict_says_so"]
)
def test_adapters_are_not_modelled_and_the_verdict_says_so(
    tmp_path, capsys, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    words = ["--from", str(tmp_path / name), "--model", "llama3_8b", "--gpus", "8xH100"]
    assert cli.main([*words, "--recompute", "full"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    caveat = f"This answer {says}."
    assert (f". {caveat}" in page) == bool(says)
    cli.main([*words, "--recompute", "full", "--format", "json"])
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict.endswith(caveat) if says else "adapters" not in verdict


NAMED = "--model llama3_8b --quick --seq-length 2048"


@pytest.mark.parametrize(
    ("command", "says"), TABLES["test_what_the_file_switches_on_is_to_be_dropped"]
)
def test_what_the_file_switches_on_is_to_be_dropped(tmp_path, capsys, command, says) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    )
    (tmp_path / "a.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"
        "  fsdp_version: 2\n"
    )
    options = "" if "titan" in command else " --per_device_train_batch_size 1 --bf16"
    words = f"{NAMED} --recompute none --recompute full".split()
    page = page_of(tmp_path, capsys, f"{command}{options}", "8xH100", *words)
    assert says.format(folder=tmp_path) in page


def test_a_refusal_names_what_may_be_in_unread_parts(tmp_path: Path, capsys) -> None:
    script, options = tmp_path / "t.sh", "--overlap-moe-expert-parallel-comm --bf16"
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py {} --pipeline-model-parallel-size 2 {}\n"
    words = ["--from", str(script), "--model", "llama3_8b", "--gpus", "8xH100", "--quick"]
    script.write_text(f"source ./common.sh\n{text.format('${ARGS[@]}', options)}")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.endswith(
        f"=false; {script} does not state layout.virtual_pipeline_model_parallel_size, but holds "
        "unread parts (${ARGS[@]}, source ./common.sh): give it as KEY=VALUE\n"
    )
    script.write_text(text.format("--micro-batch-size 1", options))
    assert cli.main(words) == 2
    assert "unread" not in capsys.readouterr().err


READ_AS = yaml.safe_load((Path(__file__).parent / "read_as.yaml").read_text())


@pytest.mark.parametrize("name", READ_AS)
def test_options_are_read_as_their_programs_read_them(tmp_path: Path, name: str) -> None:
    case = READ_AS[name]
    for file, text in case.get("files", {}).items():
        (tmp_path / file).write_text(text)
    read = read_text(tmp_path, case["text"], case.get("file", "t.sh"))
    expected, found = case["is"], read.configuration
    assert (read.request.framework, found.recompute) == (
        expected["framework"],
        expected["recompute"],
    )
    assert read.request.precision == expected["precision"]
    assert [one.written for one in found.untaken] == expected["untaken"]
    assert len(found.unknown) == len(expected["unknown"])
    resolve(read.request)


def test_what_the_file_says_is_named_as_it_is_there(tmp_path, capsys) -> None:
    text = "python t.py --per_device_train_batch_size 1 --bf16 1 --gradient_checkpointing 1"
    options = "--fsdp full_shard --layer_offloading True"
    words = f"{NAMED} --recompute full".split()
    page = page_of(tmp_path, capsys, f"{text} {options}", "8xH100", *words)
    assert "row 1 is what the file sets, without --layer_offloading = True: not predicted" in page
    assert "nothing to change" not in page
