import re

import pytest

from advisor.base.errors import UserError
from advisor.base.rule import Verdict
from advisor.cli import main as cli
from advisor.frameworks.megatron.candidates import overview
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, Revision
from advisor.frameworks.megatron.rules.engine import RULES
from advisor.report.lint_page import rules_page
from advisor.report.text import plain_lines

CORE = {revision.core: revision for revision in MEGATRON_CORE}
BRIDGE = {revision.version: revision for revision in MEGATRON_BRIDGE}


def page(revision: Revision, word: str = "") -> str:
    lines = plain_lines(rules_page(overview(revision), word))
    assert max(map(len, lines)) <= 100
    return "\n".join(lines)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("revision", [*MEGATRON_CORE, *MEGATRON_BRIDGE], ids=lambda r: r.label)
def test_every_release_has_a_page_with_its_labels(revision: Revision) -> None:
    text = flat(page(revision))
    assert "GPU: refused" in text
    assert text.startswith(revision.label)
    for name in (*revision.recompute_modules, *revision.offload_modules):
        assert re.search(rf"\b{name}\b", text)
    total = sum(int(n) for n in re.findall(rf": (?:{'|'.join(Verdict)}) \((\d+)\)", text))
    assert f"{total} rules" in text


def test_releases_differ_in_labels_and_rules() -> None:
    old, new, main = (page(CORE[name]) for name in ("0.16", "0.19", "main"))
    assert "gdn_norm_out" not in old
    assert "gdn_norm_out" in new
    assert "uniform N crashes" in flat(old)
    assert "uniform N may have a shorter last group" in flat(new)
    assert "mhc_needs_connections" in main
    assert "mhc_needs_connections" not in new
    assert "cuda_graph_any_recompute" in page(CORE["0.13"])
    assert "cuda_graph_any_recompute" not in new
    assert "none: selective recomputes core attention" in flat(page(CORE["0.11"]))


def test_each_framework_has_its_own_launcher_s_rules() -> None:
    assert "bridge_local_graphs" in page(BRIDGE["0.6"])
    assert "selective_with_method" not in page(BRIDGE["0.6"])
    assert "selective_with_method" in page(CORE["0.19"])


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp2", "deepspeed", "huggingface"])
def test_the_other_stacks_say_each_rule_with_its_source(framework: str, capsys) -> None:
    assert cli.main(["rules", "--framework", framework, "context_parallel_fsdp1"]) == 0
    said = flat(capsys.readouterr().out)
    example = "layout.context_parallel_size=2 job.flat_parameters=true"
    assert f"layout.context_parallel_fsdp1 {example}: context parallelism" in said
    assert said.endswith("(accelerate 1.15.0 commands/launch.py)")
    assert cli.main(["rules", "--framework", framework, "nowhere"]) == 2
    assert "nowhere: matches no rule of" in capsys.readouterr().err


def test_a_word_filters() -> None:
    text = page(CORE["0.19"], "offload")
    assert "offload_attn_proj" in text
    assert "full_needs_method" not in text
    assert "recompute modules" not in text
    assert int(re.findall(r": (\d+) rules", text)[0]) < len(RULES)
    with pytest.raises(UserError, match="xyz: matches no rule"):
        rules_page(overview(CORE["0.19"]), "xyz")
