from trl import SFTConfig

config = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_checkpointing=False,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
