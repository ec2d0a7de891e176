import itertools
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.revisions import (
    MEGATRON_BRIDGE,
    MEGATRON_CORE,
    CheckpointKind,
    Revision,
    checkpoint_kind,
    resolve_revision,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.request.request import Request
from advisor.search.advise import advise
from tests.advisor.jobs import parallel

LM, BRIDGE = Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE


CORES = {"0.13": "0.13", "0.16.1": "0.16", "v0.17.0": "0.17", "core_v0.18.2": "0.18", "": "0.19"}
CORES |= {"core_r0.15.0": "0.15", "0.16.0rc0": "0.16"} | dict.fromkeys(
    ("0.20.0", "main", "MAIN"), "main"
)
BRIDGES = {"0.2": "0.16", "0.3.1": "0.16", "0.4": "0.17", "0.5.0": "0.18", "0.6.0": "0.19"}
BRIDGES |= {"": "0.19", "main": "main"}


@pytest.mark.parametrize("text", CORES)
def test_a_version_of_megatron_core_is_read(text: str) -> None:
    assert resolve_revision(LM, text).core == CORES[text]


@pytest.mark.parametrize("version", BRIDGES)
def test_a_version_of_bridge_stands_on_the_core_that_it_pins(version: str) -> None:
    revision = resolve_revision(BRIDGE, version)
    assert (revision.framework, revision.core) == (BRIDGE, BRIDGES[version])


@pytest.mark.parametrize("text", ["0.10", "latest", "16", "0.16.1.1.1"])
def test_an_unknown_version_names_the_known_ones(text: str) -> None:
    with pytest.raises(
        UserError, match=r"0\.11, 0\.12, 0\.13, 0\.14, 0\.15, 0\.16, 0\.17, 0\.18, 0\.19 or main"
    ):
        resolve_revision(LM, text)


def test_versions_of_one_framework_are_not_those_of_the_other() -> None:
    with pytest.raises(UserError, match=r"0\.2, 0\.3, 0\.4, 0\.5, 0\.6 or main"):
        resolve_revision(BRIDGE, "0.1")


@pytest.mark.parametrize(("framework", "text"), [(LM, "1.0"), (LM, "0.21.0"), (BRIDGE, "0.7.1")])
def test_a_newer_version_means_the_newest_that_is_known(framework: str, text: str) -> None:
    assert resolve_revision(framework, text).version == "main"


@pytest.mark.parametrize("name", ["gpt_oss_20b", "qwen3_next_80b_a3b", "llama3_8b"])
def test_the_page_says_which_release_has_the_model(name: str) -> None:
    """transformer_config.py of the wheels: softmax_type came with 0.15, attention_output_gate and
    experimental_attention_variant with 0.16."""
    request = Request(
        model=name,
        gpus="8xH100",
        framework="megatron_bridge",
        recompute=("none",),
        **parallel(tp=1, pp=1, cp=1, ep=1),
        quick=True,
    )
    needs = {"gpt_oss_20b": "0.15", "qwen3_next_80b_a3b": "0.16"}.get(name)
    title = parts_of("megatron_bridge").spelling.title(advise(request).job)
    assert ("the model needs core" in title) == (needs is not None)
    if needs:
        assert title.endswith(f"(the model needs core {needs})")
        older = "0.14" if name == "gpt_oss_20b" else "0.15"
        with pytest.raises(UserError, match=f"which came with megatron-core {needs}"):
            advise(replace(request, framework="megatron_lm", framework_version=older))


def test_the_default_is_the_newest_release_and_not_main() -> None:
    for framework, table in ((LM, MEGATRON_CORE), (BRIDGE, MEGATRON_BRIDGE)):
        assert resolve_revision(framework) is table[-2]
        assert table[-1].version == "main"


def test_a_revision_is_one_object() -> None:
    assert resolve_revision(LM, "0.16") is resolve_revision(LM, "0.16")


ALL = ("0.11", "0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "main")


@pytest.mark.parametrize(
    ("module", "versions"),
    [
        ("mlp", ALL[1:]),
        ("shared_experts", ALL[3:]),
        ("gdn_norm_out", ALL[8:]),
        ("mhc", ALL[9:]),
        ("moe_layer", ()),
    ],
)
def test_the_releases_that_have_a_module(module: str, versions: tuple[str, ...]) -> None:
    found = (release.version for release in MEGATRON_CORE if module in release.recompute_modules)
    assert tuple(found) == versions


def test_modules_are_only_ever_added() -> None:
    for older, newer in itertools.pairwise(MEGATRON_CORE):
        assert older.recompute_modules == newer.recompute_modules[: len(older.recompute_modules)]
        assert set(older.offload_modules) <= set(newer.offload_modules)


def test_what_changed_with_which_release() -> None:
    def releases(true: Callable[[Revision], object]) -> tuple[str, ...]:
        return tuple(revision.core for revision in MEGATRON_CORE if true(revision))

    assert releases(lambda r: r.uniform_must_divide) == ALL[:6]
    assert releases(lambda r: not r.recompute_modules) == ALL[:1]
    assert releases(lambda r: not r.cuda_graph_impls) == ALL[:4]
    assert releases(lambda r: "full_iteration" in r.cuda_graph_impls) == ALL[7:]
    assert releases(lambda r: r.cuda_graph_field == "cuda_graph_modules") == ALL[7:]
    assert releases(lambda r: not r.offload_modules) == ALL[:5]


DISCARDING = ("layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", "mhc")


@pytest.mark.parametrize("module", ["core_attn", "mlp", "moe", "shared_experts", *DISCARDING])
def test_kinds_of_checkpoints(module: str) -> None:
    discards = checkpoint_kind(module) is CheckpointKind.OUTPUT_DISCARDING
    assert discards == (module in DISCARDING)


def test_a_framework_without_megatron_core_has_no_release() -> None:
    with pytest.raises(UserError, match="does not build on Megatron Core"):
        resolve_revision(Framework.TORCHTITAN, "")
