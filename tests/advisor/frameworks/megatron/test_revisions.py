import itertools

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.megatron.revisions import (
    MEGATRON_BRIDGE,
    MEGATRON_CORE,
    CheckpointKind,
    checkpoint_kind,
    default_version,
    resolve_revision,
    versions_with_recompute_module,
)
from advisor.frameworks.names import Framework

LM, BRIDGE = Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("0.13", "0.13"),
        ("0.16.1", "0.16"),
        ("v0.17.0", "0.17"),
        ("core_v0.18.2", "0.18"),
        ("core_r0.15.0", "0.15"),
        ("0.16.0rc0", "0.16"),
        ("", "0.19"),
        ("0.20.0", "main"),
        ("main", "main"),
        ("MAIN", "main"),
    ],
)
def test_a_version_of_megatron_core_is_read(text: str, core: str) -> None:
    assert resolve_revision(LM, text).core == core


@pytest.mark.parametrize(
    ("version", "core"),
    [
        ("0.2", "0.16"),
        ("0.3.1", "0.16"),
        ("0.4", "0.17"),
        ("0.5.0", "0.18"),
        ("0.6.0", "0.19"),
        ("", "0.19"),
        ("main", "main"),
    ],
)
def test_a_version_of_bridge_stands_on_the_core_that_it_pins(version: str, core: str) -> None:
    revision = resolve_revision(BRIDGE, version)
    assert (revision.framework, revision.core) == (BRIDGE, core)


@pytest.mark.parametrize("text", ["0.10", "1.0", "latest", "16", "0.16.1.1.1"])
def test_an_unknown_version_names_the_known_ones(text: str) -> None:
    with pytest.raises(
        UserError, match=r"0\.11, 0\.12, 0\.13, 0\.14, 0\.15, 0\.16, 0\.17, 0\.18, 0\.19 or main"
    ):
        resolve_revision(LM, text)


def test_versions_of_one_framework_are_not_those_of_the_other() -> None:
    with pytest.raises(UserError, match=r"0\.2, 0\.3, 0\.4, 0\.5, 0\.6 or main"):
        resolve_revision(BRIDGE, "0.16")


def test_the_default_is_the_newest_release_and_not_main() -> None:
    for framework, table in ((LM, MEGATRON_CORE), (BRIDGE, MEGATRON_BRIDGE)):
        assert default_version(framework) == table[-2].version
        assert table[-1].version == "main"


def test_a_revision_is_one_object() -> None:
    assert resolve_revision(LM, "0.16") is resolve_revision(LM, "0.16")


@pytest.mark.parametrize(
    ("module", "versions"),
    [
        ("mlp", ("0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "main")),
        ("shared_experts", ("0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "main")),
        ("gdn_norm_out", ("0.19", "main")),
        ("mhc", ("main",)),
        ("moe_layer", ()),
    ],
)
def test_the_releases_that_have_a_module(module: str, versions: tuple[str, ...]) -> None:
    assert versions_with_recompute_module(module, LM) == versions


def test_modules_are_only_ever_added() -> None:
    for older, newer in itertools.pairwise(MEGATRON_CORE):
        assert older.recompute_modules == newer.recompute_modules[: len(older.recompute_modules)]
        assert set(older.offload_modules) <= set(newer.offload_modules)


def test_what_changed_with_which_release() -> None:
    by_core = {revision.core: revision for revision in MEGATRON_CORE}
    assert [c for c, r in by_core.items() if r.uniform_must_divide] == [
        "0.11",
        "0.12",
        "0.13",
        "0.14",
        "0.15",
        "0.16",
    ]
    assert [c for c, r in by_core.items() if not r.recompute_modules] == ["0.11"]
    assert [c for c, r in by_core.items() if not r.cuda_graph_impls] == [
        "0.11",
        "0.12",
        "0.13",
        "0.14",
    ]
    assert [c for c, r in by_core.items() if "full_iteration" in r.cuda_graph_impls] == [
        "0.18",
        "0.19",
        "main",
    ]
    assert [c for c, r in by_core.items() if r.cuda_graph_field == "cuda_graph_modules"] == [
        "0.18",
        "0.19",
        "main",
    ]
    assert [c for c, r in by_core.items() if not r.offload_modules] == [
        "0.11",
        "0.12",
        "0.13",
        "0.14",
        "0.15",
    ]


@pytest.mark.parametrize("module", ["core_attn", "mlp", "moe", "shared_experts"])
def test_plain_checkpoints(module: str) -> None:
    assert checkpoint_kind(module) is CheckpointKind.PLAIN


@pytest.mark.parametrize("module", ["layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", "mhc"])
def test_output_discarding_checkpoints(module: str) -> None:
    assert checkpoint_kind(module) is CheckpointKind.OUTPUT_DISCARDING


def test_a_framework_without_megatron_core_has_no_release() -> None:
    with pytest.raises(UserError, match="does not build on Megatron Core"):
        resolve_revision(Framework.TORCHTITAN, "")
