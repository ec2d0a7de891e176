import argparse

import deepspeed

ds_config = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "steps_per_print": 10,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": (0.9, 0.95)}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "offload_optimizer": {"device": "cpu"},
        "memory_efficient_linear": True,
    },
    "activation_checkpointing": {"partition_activations": False},
}
model_engine, optimizer, _, _ = deepspeed.initialize(model=model, config=ds_config)
