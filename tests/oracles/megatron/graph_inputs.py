"""Inputs that Transformer Engine's CUDA graphs of a pipeline rank have of their own, as Megatron's
helper makes them for the order of its schedule, on fake tensors: nothing is captured."""

from unittest.mock import patch

from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import cuda_graphs

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.meter import LiveBytes
from harness.backends.megatron_core.fake.without_gpu import fake_chunks, megatron_without_gpu


def graph_input_bytes(case: MegatronCase, pp_rank: int) -> int:
    """Bytes of hidden states and attention masks of all graphs of whole layers; rotary frequencies,
    which all share, are left out. Source: TECudaGraphHelper._get_cuda_graph_input_data."""
    meter = LiveBytes()
    with (
        megatron_without_gpu(case, pp_rank, meter.kernel),
        patch.object(cuda_graphs, "is_te_min_version", lambda *_, **__: True),
    ):
        chunks = fake_chunks(case)
        count, group = len(chunks), case.pipeline_model_parallel_size
        _, _, warmup, _ = schedules.get_pp_rank_microbatches(case.num_microbatches, count, group)
        table = schedules.get_schedule_table(case.num_microbatches, count, group)
        helper = object.__new__(cuda_graphs.TECudaGraphHelper)
        helper.config, helper.seq_length = chunks[0].config, case.seq_length
        helper.micro_batch_size, helper.num_microbatches = (
            case.micro_batch_size,
            case.num_microbatches if case.pipeline_model_parallel_size > 1 else 1,
        )
        helper.chunks_with_decoder, helper.num_model_chunks = list(chunks), count
        helper.callables_per_chunk = [list(chunk.decoder.layers) for chunk in chunks]
        helper.flattened_callables = [
            layer for layers in helper.callables_per_chunk for layer in layers
        ]
        helper.num_layers_per_chunk = list(map(len, helper.callables_per_chunk))
        order = cuda_graphs.convert_schedule_table_to_order(warmup, count, table)
        args, kwargs = helper._get_sample_arguments(order[: 2 * helper.num_microbatches * count])
        made = {id(tensor): tensor for (tensor,) in args}
        made |= {id(masks["attention_mask"]): masks["attention_mask"] for masks in kwargs}
        return sum(tensor.numel() * tensor.element_size() for tensor in made.values())
