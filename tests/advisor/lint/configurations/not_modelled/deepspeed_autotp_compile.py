import deepspeed

ds_config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "tensor_parallel": {"autotp_size": 4},
    "compile": {"deepcompile": True},
    "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    "optimizer": {"type": "Muon", "params": {"lr": 2e-5}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
