import pytest

from advisor.models.options import Activation
from harness.backends.megatron_core.case import MegatronCase
from tests.advisor.jobs import parallel

CASE = MegatronCase(
    num_layers=8,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=4,
    seq_length=128,
    **parallel(tp=4, cp=2, pp=4, dp=3, vpp=2),
)


def test_derived_sizes() -> None:
    assert CASE.world_size == 96
    assert CASE.local_seq_length == 64
    assert (CASE.num_model_chunks, CASE.interleaved) == (2, True)


def test_stages_are_blocks_of_ranks() -> None:
    """Megatron's order tp-cp-dp-pp: a stage is 4 x 2 x 3 neighbours."""
    assert [CASE.rank_of_stage(stage) for stage in range(4)] == [0, 24, 48, 72]
    with pytest.raises(ValueError, match="pp_rank = 4"):
        CASE.rank_of_stage(4)


def test_gated_activations() -> None:
    gated = [Activation.SWIGLU, Activation.GEGLU, Activation.QUICK_GEGLU]
    assert [a for a in Activation if a.gated] == gated
