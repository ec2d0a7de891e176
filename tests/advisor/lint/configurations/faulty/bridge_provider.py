from megatron.bridge.models.llama import Llama3ModelProvider70B
from megatron.bridge.training.config import ConfigContainer


def model_config(layers_to_recompute: int = 10):
    return Llama3ModelProvider70B(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4,
        sequence_parallel=True,
        seq_length=8192,
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=layers_to_recompute,
        distribute_saved_activations=True,
    )
