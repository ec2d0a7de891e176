set -x
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_files=data/train.parquet \
    data.train_batch_size=128 \
    data.max_length=4096 \
    data.pad_mode=no_padding \
    data.truncation=error \
    data.use_dynamic_bsz=True \
    data.max_token_len_per_gpu=16384 \
    model.path=Qwen/Qwen3-8B \
    model.use_remove_padding=True \
    engine.strategy=fsdp2 \
    engine.ulysses_sequence_parallel_size=2 \
    optim.lr=2e-5 \
    trainer.total_epochs=2 \
    trainer.n_gpus_per_node=8
