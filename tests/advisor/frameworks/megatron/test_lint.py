from pathlib import Path

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.megatron.lint.settings import field_of
from advisor.frameworks.names import Framework
from advisor.lint.target import LintReport, lint_target
from tests.advisor.tables import tables

TABLES = tables(__file__)

CONFIGURATIONS = Path(__file__).with_name("configurations")
PROMOTED = "--recompute-granularity selective"
SELECTIVE = f"{PROMOTED} --recompute-modules"
FULL = "--recompute-granularity full --recompute-method"


def found(report: LintReport) -> str:
    return ", ".join(f"{finding.level} {finding.rule}" for finding in report.findings)


@pytest.mark.parametrize(("flags", "findings"), TABLES["test_findings_on_flags"])
def test_findings_on_flags(flags: str, findings: str) -> None:
    for target in (flags, flags.split()):
        report = lint_target(target)
        assert found(report) == findings
        assert report.exit_code == ("ERROR" in findings or "WARNING" in findings)


def test_the_release_decides() -> None:
    flags = f"{FULL} uniform --recompute-num-layers 3 --num-layers 32"
    assert found(lint_target(flags, "0.16")) == "ERROR uniform_must_divide"
    assert found(lint_target(flags, "0.17")) == ""
    bias = "--moe-router-enable-expert-bias --moe-router-score-function sqrtsoftplus"
    assert found(lint_target(bias, "0.17")) == "ERROR router_bias_needs_sigmoid"
    assert found(lint_target(bias, "0.18")) == ""
    graphs = "--cuda-graph-impl local --cuda-graph-modules attn"
    assert found(lint_target(graphs, "0.17")) == "ERROR cuda_graph_spelling"
    assert found(lint_target(graphs, "0.18")) == ""
    with pytest.raises(UserError, match="is not a known version"):
        lint_target(flags, "0.1")


def test_a_newer_release_is_named() -> None:
    flags = f"{FULL} uniform --recompute-num-layers 4 --num-layers 32"
    said = "megatron-core main, megatron_lm 0.21 is not known and taken as main"
    assert lint_target(flags, "0.21").checked[0].label == said
    assert lint_target(flags, "main").checked[0].label == "megatron-core main"


def test_virtual_stages_make_the_chunk() -> None:
    common = f"{FULL} uniform --recompute-num-layers 4 --num-layers 32 "
    per_stage = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
    ranks = "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 4"
    for layout in (per_stage, ranks):
        assert lint_target(common + layout).checked[0].settings.layers_per_chunk == 2
        assert found(lint_target(common + layout, "0.16")) == "ERROR uniform_must_divide"


def test_a_shell_script() -> None:
    script = CONFIGURATIONS / "train.sh"
    report = lint_target(str(script))
    assert found(report) == "ERROR distribute_with_sequence_parallel"
    assert report.target == str(script)
    read = report.checked[0].settings
    assert (read.recompute_granularity, read.recompute_method) == ("full", "block")
    assert (read.recompute_num_layers, read.tensor_model_parallel_size) == (10, 4)
    assert lint_target(str(script)) == lint_target([str(script)])


def test_a_variable_that_the_script_does_not_set_is_said_and_not_guessed() -> None:
    report = lint_target(f"{FULL} $METHOD --recompute-num-layers ${{N}}")
    assert found(report) == "NOTE shell_variable, NOTE shell_variable"
    assert "--recompute-method" in report.findings[0].reason


def test_options_and_their_fields() -> None:
    fields = {"--recompute-modules": "recompute_modules", "--fp8-format": "fp8", "--lr": None}
    fields |= {"--num-experts": "num_moe_experts", "--cuda-graph-scope": "cuda_graph_modules"}
    fields |= {"--recompute_modules": None, "recompute-modules": None}
    assert {option: field_of(option) for option in fields} == fields


def test_bridge_overrides() -> None:
    words = [
        "model.recompute_granularity=selective",
        "model.recompute_modules=[layernorm,mlp]",
        "mixed_precision=bf16_with_fp8_delayed_scaling_mixed",
        "train.train_iters=20",
    ]
    report = lint_target(words)
    assert report.checked[0].release.framework == Framework.MEGATRON_BRIDGE
    assert report.checked[0].settings.recompute_modules == ("layernorm", "mlp")
    assert found(report) == "ERROR fp8_layernorm_recompute, NOTE layernorm_on_te"
    assert found(lint_target(words, "0.2")).split(", ")[0] == "ERROR fp8_layernorm_recompute"
    cleared = lint_target(["model.recompute_granularity=null", "model.recompute_modules=[]"])
    assert found(cleared) == ""
    assert cleared.checked[0].settings.recompute_granularity is None


def test_model_args_of_megatron_lm_and_plain_fields(tmp_path: Path) -> None:
    report = lint_target(str(CONFIGURATIONS / "model_config.yaml"))
    assert found(report) == "WARNING layernorm_on_te, NOTE graph_register_environment"
    assert report.checked[0].settings.num_layers == 12
    assert not report.checked[0].settings.distribute_saved_activations
    file = tmp_path / "model_config.yaml"
    file.write_text("language_model:\n  recompute_granularity: partial\nmicro_batch_size: 1\n")
    assert found(lint_target(str(file))) == "ERROR recompute_granularity"


@pytest.mark.parametrize(
    ("sequence_parallel", "findings"),
    [("true", "ERROR distribute_with_sequence_parallel"), ("false", "")],
)
def test_a_configuration_that_bridge_dumped(sequence_parallel, findings, tmp_path) -> None:
    file = tmp_path / "run.yml"
    text = (CONFIGURATIONS / "dumped.yml").read_text()
    assert text.count("parallel: true") == 1
    file.write_text(text.replace("parallel: true", f"parallel: {sequence_parallel}"))
    report = lint_target(str(file))
    assert report.checked[0].release.label == "Megatron Bridge 0.6 (megatron-core 0.19)"
    assert found(report) == findings
    assert report.checked[0].settings.attention_backend == "flash"
    read = report.checked[0].settings
    assert (read.fp8, read.fp8_recipe) == ("hybrid", "tensorwise")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.yaml", "a: [1, 2", "is not valid YAML in line 1"),
        ("a.yaml", "- 1", "holds no mapping of settings"),
        ("a.yaml", "learning_rate: 1", "holds no setting"),
        ("a.sh", "echo hello", "holds no setting"),
    ],
)
def test_files_that_hold_nothing_readable(name, content, says, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UserError, match=says):
        lint_target(str(file))


def test_targets_that_are_neither_file_nor_flags(tmp_path: Path) -> None:
    binary = tmp_path / "a.sh"
    binary.write_bytes(b"\xff\xfe\x00")
    for target, says in (
        ("no_such_file.sh", "is neither a file"),
        (str(tmp_path), "cannot be read"),
        (str(binary), "is not UTF-16 text"),
        ("", "is neither a file"),
        ("--lr 1", "holds no setting"),
    ):
        with pytest.raises(UserError, match=says):
            lint_target(target)


def test_a_value_of_the_wrong_type_names_its_option() -> None:
    report = lint_target(f"{FULL} block --recompute-num-layers four")
    assert found(report).startswith("ERROR wrong_type")
    assert report.findings[0].reason == "--recompute-num-layers = four must be a valid number"


@pytest.mark.parametrize(
    ("flags", "understood_as"), TABLES["test_what_was_understood_is_said_in_words"]
)
def test_what_was_understood_is_said_in_words(flags: str, understood_as: str) -> None:
    said = f"{lint_target(flags).checked[0].understood},"
    assert understood_as in said
    assert "None" not in said


def test_moe_layer_recompute_runs_more_than_it_says() -> None:
    report = lint_target("--moe-layer-recompute --num-experts 8 --attention-backend unfused")
    assert found(report) == "WARNING promoted_moe_layer"
    assert "core_attn, moe" in report.findings[0].reason
    assert report.exit_code == 1


def test_labels_that_the_model_lacks_are_said_to_do_nothing() -> None:
    moe = "--num-experts 8 --moe-grouped-gemm"
    assert found(lint_target(f"{SELECTIVE} mlp {moe}")) == "WARNING mlp_without_dense_layers"
    assert found(lint_target(f"{SELECTIVE} mlp {moe} --moe-layer-freq ([0]*1+[1]*9)".split())) == ""
    router = "--cuda-graph-impl transformer_engine --cuda-graph-modules moe_router"
    preprocess = f"{router} moe_preprocess --moe-token-dispatcher-type alltoall"
    assert found(lint_target(f"{SELECTIVE} layernorm {moe} {preprocess}")) == ""


SCRIPT_RUN = "python scripts/performance/run_script.py -m llama -mr llama3_70b -g h100 -ng 32 "


@pytest.mark.parametrize(
    ("options", "findings"), TABLES["test_options_of_bridge_s_performance_scripts"]
)
def test_options_of_bridge_s_performance_scripts(options: str, findings: str) -> None:
    report = lint_target(SCRIPT_RUN + options)
    assert report.checked[0].release.framework == Framework.MEGATRON_BRIDGE
    assert found(report) == findings


def test_a_word_after_the_shorthand_is_an_unknown_argument() -> None:
    report = lint_target("--recompute-activations selective --attention-backend unfused")
    assert "ERROR stray_word" in found(report)
    assert report.exit_code == 1
    assert "ERROR stray_word" not in found(lint_target("--recompute-activations"))


@pytest.mark.parametrize(
    ("written", "meant"), TABLES["test_no_beginning_and_no_likeness_is_taken_for_an_option"]
)
def test_no_beginning_and_no_likeness_is_taken_for_an_option(written: str, meant: str) -> None:
    report = lint_target(f"pretrain_gpt.py --num-layers 2 {written}")
    (finding,) = [one for one in report.findings if one.rule == "unknown_option"]
    assert finding.reason.startswith(written.split()[0])
    assert meant in finding.fix


def test_an_option_of_the_scripts_own_is_none_of_ours() -> None:
    report = lint_target("pretrain_gpt.py --num-layers 2 --my-own-corpus wiki")
    assert [(f.level, f.rule) for f in report.findings] == [("NOTE", "not_known")]
