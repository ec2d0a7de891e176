import torch
from megatron.bridge.models.llama import Llama3ModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig, ConfigContainer, DistributedDataParallelConfig, GPTDatasetConfig, LoggerConfig,
    OptimizerConfig, SchedulerConfig, TokenizerConfig, TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

model_cfg = Llama3ModelProvider(
    num_layers=32,
    hidden_size=4096,
    ffn_hidden_size=14336,
    num_attention_heads=32,
    num_query_groups=8,
    rotary_base=500_000,
    seq_length=8192,
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=1,
    context_parallel_size=2,
    sequence_parallel=True,
    pipeline_dtype=torch.bfloat16,
    recompute_granularity="selective",
    recompute_modules=["mlp"],
    cross_entropy_loss_fusion=True,
    make_vocab_size_divisible_by=128,
)
cfg = ConfigContainer(
    train=TrainingConfig(train_iters=100, global_batch_size=64, micro_batch_size=1, eval_interval=50, eval_iters=2),
    model=model_cfg,
    optimizer=OptimizerConfig(optimizer="adam", lr=3e-4, min_lr=3e-5, weight_decay=0.1, bf16=True, use_distributed_optimizer=True),
    scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=10),
    ddp=DistributedDataParallelConfig(check_for_nan_in_grad=True, grad_reduce_in_fp32=True, overlap_grad_reduce=True,
                                      overlap_param_gather=True, use_distributed_optimizer=True),
    dataset=GPTDatasetConfig(random_seed=1234, sequence_length=8192, reset_position_ids=False, reset_attention_mask=False,
                             eod_mask_loss=False, num_dataset_builder_threads=1),
    logger=LoggerConfig(log_interval=1),
    tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=128256),
    checkpoint=CheckpointConfig(save="/ckpt", save_interval=50, ckpt_format="torch_dist"),
    mixed_precision="bf16_mixed",
)
pretrain(cfg, forward_step)
