"""Where prediction and rehearsal part: the storages of one layer that only one of them keeps."""

from collections import Counter
from typing import Final

from advisor.base.units import human_bytes
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import parse_setting
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.plan.recompute_plan import kept_tensors
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.saved import saved_bytes_per_layer
from harness.backends.megatron_core.translate import megatron_model
from harness.trial.trial import Workload

_NAMED: Final = 3
_WORTH_NAMING: Final = 1e-3
"""Part of what the layer keeps below which a storage is not told."""


def storage_differences(workload: Workload, case: MegatronCase) -> str:
    """In words, of the last layer alone and one microbatch: most bytes first. `case` is the
    workload under Megatron's names. Nothing is said of layers that one checkpoint spans."""
    model, layout = megatron_model(workload), workload.layout
    kind = model.layer_kinds[-1]
    setting = parse_setting(workload.recompute)
    (segment,) = chunk_plan(setting, model, (kind,), layout.sequence_parallel).segments
    if segment.whole:
        return ""
    shape = RankShape(
        model=model,
        seq_length=workload.seq_length,
        micro_batch_size=workload.micro_batch_size,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
        context_parallel_size=layout.context_parallel_size,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        expert_tensor_parallel_size=layout.expert_tensor_degree if model.num_moe_experts else 1,
    )
    tensors = kept_tensors(transformer_layer(shape, kind), segment.runs)
    _, rows = saved_bytes_per_layer(_of_layer(case, kind))
    predicted = [(tensor.num_bytes, name) for name, tensor in tensors.items()]
    rehearsed = [
        (row.nbytes, f"{row.dtype} {list(row.shape)} of {row.op} in {row.module}") for row in rows
    ]
    said = [
        f"only the {side} keeps {', '.join(found)}"
        for side, mine, other in (
            ("prediction", predicted, rehearsed),
            ("rehearsal", rehearsed, predicted),
        )
        if (found := _unmatched(mine, other))
    ]
    same = "prediction and rehearsal keep the same tensors"
    return f"per layer, {'; '.join(said) or same}"


def _unmatched(mine: list[tuple[int, str]], other: list[tuple[int, str]]) -> list[str]:
    """Of `mine`, those for which `other` has none of as many bytes; the largest few."""
    left = Counter(num_bytes for num_bytes, _ in other)
    floor = _WORTH_NAMING * sum(num_bytes for num_bytes, _ in mine)
    found = []
    for num_bytes, name in sorted(mine, reverse=True):
        if left[num_bytes]:
            left[num_bytes] -= 1
        elif num_bytes >= floor:
            found.append(f"{name} ({human_bytes(num_bytes)})")
    return found[:_NAMED]


def _of_layer(case: MegatronCase, kind: LayerKind) -> MegatronCase:
    """The case with all layers of one kind, on one stage."""
    return case.changed(
        moe_layer_freq="1",
        num_moe_experts=case.num_moe_experts if kind.feed_forward is FeedForward.MOE else None,
        mtp_num_layers=None,
        pipeline_model_parallel_layout=None,
        window_attn_skip_freq=None,
        account_for_embedding_in_pipeline_split=False,
        account_for_loss_in_pipeline_split=False,
    )
