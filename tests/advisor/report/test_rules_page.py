import re
from pathlib import Path

import pytest

import advisor.frameworks
from advisor.base.errors import UserError
from advisor.base.rule import Verdict
from advisor.cli import main as cli
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, Revision
from advisor.frameworks.megatron.rules import RULES
from advisor.frameworks.megatron.rules_overview import overview
from advisor.report.rules_page import rules_page
from advisor.report.text import plain_lines

CORE = {revision.core: revision for revision in MEGATRON_CORE}
BRIDGE = {revision.version: revision for revision in MEGATRON_BRIDGE}
FRAMEWORKS = Path(advisor.frameworks.__file__).parent
RELEASES = (
    ("torchtitan", "0.1"),
    ("torchtitan", "0.3"),
    ("fsdp2", "2.13"),
    ("deepspeed", "0.19"),
    ("huggingface", "4"),
    ("huggingface", "5"),
)


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


def test_every_rule_of_the_other_stacks_is_on_the_page_of_a_release(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All that their modules declare, found by trying settings and jobs."""
    folders = ("torch", "torchtitan", "deepspeed", "huggingface")
    sources = [file for name in folders for file in (FRAMEWORKS / name).glob("*.py")]
    problem = re.compile(r'Problem\(\s*"(.+?)"')
    declared = {rule for file in sources for rule in problem.findall(file.read_text())}
    shown: set[str] = set()
    for framework, version in RELEASES:
        assert cli.main(["rules", "--framework", framework, "--framework-version", version]) == 0
        shown |= set(re.findall(r"^[a-z_]+(?:\.\w+)+$", capsys.readouterr().out, re.MULTILINE))
    assert shown == declared
    assert cli.main(["rules", "--framework", "deepspeed", "nvme"]) == 2
    assert "nvme: matches no rule of DeepSpeed 0.19" in capsys.readouterr().err


def test_a_word_filters() -> None:
    text = page(CORE["0.19"], "offload")
    assert "offload_attn_proj" in text
    assert "full_needs_method" not in text
    assert "recompute modules" not in text
    assert int(re.findall(r": (\d+) rules", text)[0]) < len(RULES)
    with pytest.raises(UserError, match="xyz: matches no rule"):
        rules_page(overview(CORE["0.19"]), "xyz")
