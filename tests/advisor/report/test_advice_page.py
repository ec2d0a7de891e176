"""The page: width, form, the sentence that decides, notes, remedies, flags."""

import re

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.dtypes import Precision
from advisor.cli.main import main
from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import Provenance
from advisor.job.job import CudaGraphImpl
from advisor.job.layout import ParallelLayout
from advisor.job.tuning import Adapter, Tuning
from advisor.report.advice_page import page
from advisor.report.blocks import Block
from advisor.report.header import layout_words, run_words
from advisor.report.ranking_table import Gauge, Rows
from advisor.report.setting_flags import other_frameworks
from advisor.report.text import Screen, plain_lines, printed
from advisor.report.wording import verdict
from advisor.request.request import Request
from advisor.request.resolve import resolve
from tests.advisor.jobs import parallel

FIXTURES = ("tight", "roomy", "hopeless", "layouts")


def plain(advice: Answer, width: int = 100, **options: object) -> str:
    """The page as a file gets it."""
    return "\n".join(plain_lines(page(advice, **options), width)) + "\n"


def form(text: str) -> str:
    """`text` with every number as 0 and every bar as one block, blanks squeezed."""
    text = re.sub(r"[█▏▎▍▌▋▊▉]+▶?", "█", text)
    text = re.sub(r"[<>]?[+-]?\d+(,\d{3})*(\.\d+)?", "0", text)
    return re.sub(r" +", " ", text)


@pytest.fixture(params=FIXTURES)
def any_advice(request: pytest.FixtureRequest) -> Answer:
    advice: Answer = request.getfixturevalue(request.param)
    return advice


@pytest.mark.parametrize("show_rejected", [False, True])
@pytest.mark.parametrize("with_layout_flags", [False, True])
def test_a_page_fits_100_columns(any_advice, show_rejected, with_layout_flags) -> None:
    text = plain(any_advice, show_rejected=show_rejected, with_layout_flags=with_layout_flags)
    assert max(map(len, text.splitlines())) <= 100
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("width", [60, 70, 80, 90, 120])
def test_a_page_fits_a_terminal_except_words_that_must_stay_whole(any_advice, width) -> None:
    text = plain(any_advice, width)
    table, _, answer = text.partition("\n\n")[2].partition("\n\n")
    assert max(map(len, table.splitlines())) <= width or "TP CP PP" in table
    commands = [line for line in answer.splitlines() if "=" in line]
    others = [line for line in answer.splitlines() if line not in commands]
    assert max(map(len, others)) <= width


def test_a_narrow_page_leaves_out_what_matters_least(tight: Answer) -> None:
    heads = [plain(tight, width).split("\n\n")[1].splitlines()[0] for width in (100, 70, 60)]
    assert ["TFLOP/s" in head for head in heads] == [True, False, False]
    assert all("overhead" in head and "fits" in head for head in heads)


def test_environment_is_named_where_the_flags_need_it(make_advice, make_evaluation) -> None:
    setting = parse_setting("none+offload=core_attn,attn_proj")
    advice = make_advice(make_evaluation(setting, 10))
    assert "Environment      NVTE_CPU_OFFLOAD_V1=1" in plain(advice)
    assert "NVTE_CPU_OFFLOAD_V1=1" in plain(advice, 20), "it is never cut"


def test_long_names_and_large_numbers_still_fit(layouts: Answer) -> None:
    job = layouts.job
    model = replace(job.model, name="a_model_with_a_name_of_great_length_" * 2)
    degrees = {"tensor_model": 8, "pipeline_model": 16, "virtual_pipeline_model": 5, "data": 128}
    sizes = {f"{name}_parallel_size": size for name, size in degrees.items()}
    wide = ParallelLayout(sequence_parallel=True, **sizes)
    config = replace(job.config, global_batch_size=4096)
    job = replace(job, model=model, layout=wide, num_gpus=16384, config=config)
    first = layouts.candidates[0]
    candidate = replace(first, rank=1000, evaluation=replace(first.evaluation, job=job))
    advice = replace(layouts, job=job, candidates=(*layouts.candidates, candidate))
    text = plain(advice, with_layout_flags=True)
    assert max(map(len, text.splitlines())) <= 100


def test_form_of_the_page(tight: Answer) -> None:
    assert form(plain(tight)) == (
        "llama0_0b · 0 B parameters · 0 x H0-SXM0GB · bf0 · sequence 0 · micro batch 0 ·\n"
        "global batch 0\n"
        "layout TP 0 +SP · PP 0 · VPP 0 · DP 0 · distributed optimizer preset llama0_0b_0xh0\n"
        "budget 0 of 0 GiB usable per GPU (full bar) Megatron Core 0 with Transformer Engine\n"
        "calibration h0 (published runs): step time ±0 %\n"
        "assumed flash attention · dropout 0\n"
        "\n"
        " recompute peak GiB (stage) step s TFLOP/s/GPU overhead fits\n"
        " 0 selective:mlp 0 (0) █ 0 0 0 % 0 %\n"
        " 0 full:block:0 0 (0) █ 0 0 0 % 0 %\n"
        " 0 full:uniform:0 0 (0) █ 0 0 0 % 0 %\n"
        " 0 none 0 (0) █ 0 0 — 0 %\n"
        " 0 selective:core_attn 0 (0) █ 0 0 0 % 0 %\n"
        "\n"
        "Row 0 is the choice: selective:mlp is the fastest that fits (0 of 0 GiB, 0 % likely). "
        "Without\n"
        "recompute the job exceeds the budget by 0 GiB.\n"
        "0 tokens/s; 0^0 tokens take 0 GPU-hours.\n"
        "\n"
        "Megatron-LM --recompute-granularity selective --recompute-modules mlp\n"
        " # on top of recipe llama0_0b_0xh0\n"
        "\n"
        "--explain 0 explains a row · --show-rejected lists 0 rejected settings ·\n"
        "--framework megatron_bridge prints its flags · -o job.html writes the explorer\n"
    )


def test_rows_show_the_figures(tight: Answer) -> None:
    rows = plain(tight).splitlines()
    assert "\n 1  selective:mlp        66.0 (0) █████████████▋       9.30" in "\n".join(rows)
    none = next(row for row in rows if re.match(r" 4  none", row))
    assert " ".join(none.split()) == f"4 none 85.0 (0) {'█' * 16}▶ 8.00 400 — <1 %"
    uniform = next(row for row in rows if "full:uniform:1" in row)
    assert uniform.endswith("308   +30.0 %  >99 %")


def test_no_recompute_needed_is_the_plain_answer(roomy: Answer) -> None:
    text = plain(roomy)
    assert "No recompute needed: row 1 (none) fits (65.0 of 77.0 GiB, 97 % likely).\n" in text
    assert "Megatron-LM      (no flag: recompute is off unless a flag asks for it)" in text


def test_nothing_fits_says_by_how_much_and_what_else_helps(hopeless: Answer) -> None:
    text = plain(hopeless)
    said = " ".join(text.split())
    assert verdict(hopeless) in said
    assert (
        "over the budget. Other changes that help: "
        "- VPP 10 instead of 5: -1.5 GiB, still 0.5 GiB over the budget, -0.8 % step time (less "
        "warm-up in flight). "
        "- micro batch 1 instead of 2: -1.5 GiB, still 0.5 GiB over the budget" in said
    )
    not_enough = "These changes are not enough: try another layout (--search layout), more GPUs, or"
    assert f"{not_enough} GPUs" in text
    assert "Flags of row 1, which may not fit:\nMegatron-LM      --recompute-gran" in text


def test_the_answer_stands_right_below_the_table(any_advice: Answer) -> None:
    lines = plain(any_advice).splitlines()
    table = next(i for i, line in enumerate(lines) if "overhead" in line)
    end = next(i for i, line in enumerate(lines) if i > table and not line)
    assert re.match("No recompute needed|Row 1 is the choice|Nothing fits", lines[end + 1])


def test_rejected_settings_are_listed_on_demand(tight: Answer) -> None:
    assert "moe_act_needs_experts" not in plain(tight)
    assert (
        "Rejected settings: 1\n"
        "  selective:moe_act\n"
        "      moe_act acts on grouped experts, and the model has none. Fix: leave moe_act out.\n"
        "      moe_act_needs_experts: megatron-core 0.19.2 transformer_config.py:1785\n"
        in plain(tight, show_rejected=True)
    )
    nothing = replace(tight, rejected=())
    assert "Rejected settings: none" in plain(nothing, show_rejected=True)


def test_an_answer_without_candidates_shows_the_rejections(tight: Answer) -> None:
    text = plain(replace(tight, candidates=(), remedies=()))
    assert "No setting could be evaluated" in text
    assert "moe_act_needs_experts" in text
    assert "recompute   " not in text


def test_top_limits_the_rows_and_says_so(tight: Answer) -> None:
    text = plain(tight, rows=Rows(top=2))
    assert "2 of 5 rows, more with --top N" in text
    assert " 3  full:uniform:1" not in text
    assert "core_attn" not in text


def test_notes_of_the_choice_and_of_rows_asked_about_stand_once(
    make_advice, make_evaluation
) -> None:
    advice = make_advice(*(make_evaluation(f"full:block:{n}", 10 + n) for n in range(1, 7)))
    own = {4: ("of all",)}
    marked = [
        replace(c, notes=own.get(c.rank, ("buys nothing", "of all"))) for c in advice.candidates
    ]
    advice = replace(advice, candidates=tuple(marked))
    text = plain(advice)
    assert "\nrow 1  buys nothing\nrow 1  of all\n--explain" in text
    text = plain(advice, rows=Rows(kept=(2, 4)))
    assert "\nrows 1-2     buys nothing\nrows 1-2, 4  of all\n--explain" in text


def test_layout_columns_and_flags_where_layouts_are_ranked(tight: Answer, layouts: Answer) -> None:
    assert " TP CP PP VPP DP mbs " in plain(layouts)
    assert " TP " not in plain(tight).split("recompute  ")[1].split("row")[0]
    assert " TP PP VPP DP mbs " in plain(tight, search_layout=True)
    text = plain(tight, with_layout_flags=True)
    assert "Megatron-LM      --tensor-model-parallel-size 4 --sequence-parallel" in text
    joined = text.replace(" \\\n" + " " * 17, " ")
    assert re.search(r"--tensor-model-parallel-size .* --recompute-modules mlp\n", joined)


def coloured(content: Block) -> str:
    """What a terminal of 100 columns gets."""
    return printed(content, Screen(100, colour=True))


def test_colour_changes_no_letter(any_advice: Answer) -> None:
    text = coloured(page(any_advice))
    bare = re.sub("\033\\[[0-9;]+m", "", text).splitlines()
    assert [line.rstrip() for line in bare] == plain(any_advice).splitlines()
    assert "\033[1m" in text


def test_a_row_has_the_style_of_its_standing(tight: Answer) -> None:
    rows = coloured(page(tight)).splitlines()
    styled = [row for row in rows if re.match("\033\\[\\d+m +\\d", row)]
    style_of = {row.replace("m", " ", 1).split()[2]: row.split("m")[0] for row in styled}
    assert style_of["selective:mlp"] == "\033[1"
    assert style_of["full:block:2"] == "\033[2"
    assert style_of["none"] == "\033[33"


def test_an_uncalibrated_gpu_and_what_is_known_to_be_off_are_named(tight: Answer) -> None:
    note = replace(tight.calibration, name="none", provenance=Provenance.DATASHEET, summary="")
    text = plain(replace(tight, calibration=note))
    assert "calibration  none (not measured on this type of machine)\n" in text
    assert "known off" not in plain(tight)
    note = replace(tight.calibration, known_error="4 runs were predicted 25 % too fast")
    text = plain(replace(tight, calibration=note))
    assert "known error  4 runs were predicted 25 % too fast\n" in text


def test_what_was_not_simulated_is_marked(tight: Answer) -> None:
    assert "~" not in plain(tight)
    first, second, *others = tight.candidates
    estimated = replace(second, evaluation=replace(second.evaluation, requests=None))
    text = plain(replace(tight, candidates=(first, estimated, *others)))
    (row,) = (line for line in text.splitlines() if line.startswith(" 2 "))
    assert re.search(r" ~\d+\.\d \(0\)", row)
    said = "~ +an estimate; peaks without ~ come from a simulation of torch's allocator"
    assert re.search(rf"^{said}$", text, re.MULTILINE)
    assert text.count("~") == 3


def test_the_head_says_what_moves_the_step(tight: Answer) -> None:
    assert "runs with" not in plain(tight)
    job = tight.job
    impl = CudaGraphImpl.TRANSFORMER_ENGINE
    graphs = replace(job.config, cuda_graph_impl=impl, cuda_graph_modules=("attn", "mlp"))
    layout = replace(job.layout, tp_comm_overlap=True, overlap_grad_reduce=False)
    text = plain(replace(tight, job=replace(job, config=graphs, layout=layout)))
    words = "CUDA graphs of attn, mlp (transformer_engine) · TP overlap · no DP overlap"
    assert f"runs with    {words}\n" in text


FLASH = "job.attn_implementation=flash_attention_2"
LIGER = ("job.torch_compile=true", "job.use_liger_kernel=true", FLASH)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            Request(model="deepseek_v3", gpus="256xGB200", precision=Precision.MXFP8),
            [
                "one CUDA graph of the whole iteration",
                "dispatcher flex (hybridep)",
                "EP overlap with delayed weight gradients",
            ],
        ),
        (Request(model="mixtral_8x7b", gpus="1xH200"), []),
        (
            Request(model="llama3_8b", gpus="8xH100", framework="huggingface", overrides=LIGER),
            ["torch.compile", "attn_implementation flash_attention_2", "Liger kernels"],
        ),
    ],
)
def test_run_words(request_: Request, words: list[str]) -> None:
    found = resolve(request_)
    assert run_words(found.job(found.layout)) == words


def test_what_flags_cannot_say_stands_below_them(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--model", "llama3_70b", "--gpus", "32xH100", "--recompute", "full:uniform:1"]
    main([*job, "--framework", "megatron_bridge", "--tp", "8"])
    lm, _, bridge = capsys.readouterr().out.partition("Megatron Bridge  model.")
    assert "in the recipe" not in lm
    comment = "# set this in the recipe: sequence length 4096 · the mixed_precision.… overrides"
    assert f" model.recompute_num_layers=1\n                 {comment}\n" in bridge


def test_layout_words() -> None:
    layout = ParallelLayout(**parallel(tp=2, cp=2, dp=3), use_distributed_optimizer=False)
    assert layout_words(layout) == "TP 2 · CP 2 · DP 3 · optimizer not sharded"
    split = {"pipeline_model_parallel_layout": "Ett|tttL"}
    text = "TP 1 · PP 2 · pipeline split Ett|tttL · DP 1 · distributed optimizer"
    assert layout_words(ParallelLayout(pipeline_model_parallel_size=2, **split)) == text
    last = ParallelLayout(pipeline_model_parallel_size=2, num_layers_in_last_pipeline_stage=1)
    assert "last stage 1 layers" in layout_words(last)
    assert layout_words(ParallelLayout()) == "one GPU"


BARS = {0: "", 1 / 32: "▏", 1 / 4: "█", 12 / 32: "█▌", 1: "████", 33 / 32: "████▶", 28: "████▶"}


@pytest.mark.parametrize("share", BARS)
def test_bars_have_eighths_and_run_over_visibly(share: float) -> None:
    assert plain_lines(Gauge("1.0 (0)", share, 4)) == [f"1.0 (0) {BARS[share]}".rstrip()]


def test_a_searched_layout_is_that_of_row_1(layouts: Answer) -> None:
    text = plain(replace(layouts, searched=True), search_layout=True)
    assert "layout       row 1: TP 4 +SP" in text
    assert "assumed      preset llama3_70b_32xh100 ·" in text


def test_what_the_recipe_is_for_is_said_without_its_label_twice(tight: Answer) -> None:
    text = plain(replace(tight, recipe_differs=("recipe some_h100 is for bf16, not mxfp8",)))
    assert "\nrecipe       some_h100 is for bf16, not mxfp8\n" in text


def test_the_recipe_that_all_differ_from_is_named_once(tight: Answer) -> None:
    ours = ("job.a 1 (given), not 2 (recipe some_h100)", "model.b x, not y (recipe some_h100)")
    text = plain(replace(tight, differences=ours))
    said = "from recipe some_h100 · job.a 1 (given), not 2 · model.b x, not y"
    assert f"differs      {said}\n" in text
    mixed = ("job.a 1, not 2 (recipe one)", "job.b 1 (given), not 2")
    assert f"differs      {mixed[0]} · {mixed[1]}\n" in plain(replace(tight, differences=mixed))


@pytest.mark.parametrize("framework", ["megatron_bridge", "megatron_lm", "nemo"])
def test_a_recipe_of_another_framework_is_written_out(tight: Answer, framework: str) -> None:
    text = plain(replace(tight, recipe_framework=framework))
    assert ("--micro-batch-size" in text) == (framework != "megatron_lm")
    assert "train.micro_batch_size" not in text, "the flags of one framework"


def test_adapters_are_not_megatron_lms(tight: Answer) -> None:
    bridge = replace(tight.job.config, framework="megatron_bridge")
    assert other_frameworks(replace(tight.job, config=bridge)) == ["megatron_lm"]
    adapted = replace(bridge, tuning=Tuning(adapter=Adapter.LORA))
    assert not other_frameworks(replace(tight.job, config=adapted))
