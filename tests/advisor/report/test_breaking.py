"""Lines that break between pieces only."""

import shlex

import pytest

from advisor.report.blocks import command_lines, dotted_lines, packed, spec_lines, wrapped


def test_pieces_stay_whole_and_lines_are_full() -> None:
    assert packed(["aa", "bb", "cc"], 4) == ["aabb", "cc"]
    assert packed(["aa", "bb"], 4, glue="+", end="!") == ["aa!", "bb"]
    assert packed(["a" * 9, "b"], 4) == ["a" * 9, "b"]
    assert packed([], 4) == [""]


def test_a_number_stays_with_its_unit() -> None:
    assert wrapped("takes 12.3 GiB, 4 % less", 10) == ["takes", "12.3 GiB,", "4 % less"]
    assert wrapped("(12.3 GiB)", 6) == ["(12.3", "GiB)"]


def test_lists_break_between_their_parts() -> None:
    assert dotted_lines(["aa bb", "cc dd", "ee ff"], 14) == ["aa bb ·", "cc dd · ee ff"]
    assert dotted_lines(["aa bb", "cc dd"], 13) == ["aa bb · cc dd"]
    assert dotted_lines(["aa", "bb cc dd", "ee"], 6) == ["aa ·", "bb cc", "dd ·", "ee"]
    assert dotted_lines(["aa", "Et|tt|t|L"], 6) == ["aa ·", "Et|tt|", "t|L"]


def test_specs_break_at_their_joints() -> None:
    spec = "selective:core_attn,mlp+offload=core_attn,attn_proj"
    assert spec_lines(spec, 60) == [spec]
    broken = ["selective:core_attn,mlp", "  +offload=core_attn,", "  attn_proj"]
    assert spec_lines(spec, 24) == broken


@pytest.mark.parametrize("width", [20, 22, 28])
def test_broken_specs_lose_nothing_and_fit(width: int) -> None:
    spec = "selective:shared_experts,layernorm,mla_up_proj+distribute_saved_activations"
    lines = spec_lines(spec, width)
    assert "".join(line.removeprefix("  ") for line in lines) == spec
    assert max(map(len, lines)) <= width


def test_broken_commands_are_one_to_a_shell() -> None:
    assert command_lines("--a 1 --b 2 --c 3", 10) == ["--a 1 \\", "--b 2 \\", "--c 3"]
    command = "--recompute-modules core_attn mlp --bf16 --micro-batch-size 1"
    lines = command_lines(command, 40)
    assert lines[0] == "--recompute-modules core_attn mlp \\"
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
    modules, method = "'model.recompute_modules=[mlp]'", "model.recompute_method=null"
    assert command_lines(f"{modules} {method}", 40) == [f"{modules} \\", method]
    assert command_lines("", 10) == [""]
