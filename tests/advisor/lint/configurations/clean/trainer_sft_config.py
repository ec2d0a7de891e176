from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("stanfordnlp/imdb", split="train")
training_args = SFTConfig(
    output_dir="/tmp/sft",
    max_length=1024,
    packing=True,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    bf16=True,
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    warmup_ratio=0.03,
    num_train_epochs=2,
    logging_steps=10,
    save_strategy="epoch",
    eval_strategy="no",
    dataset_text_field="text",
    assistant_only_loss=False,
    optim="adamw_torch_fused",
    report_to="tensorboard",
    push_to_hub=False,
)
trainer = SFTTrainer("meta-llama/Llama-3.2-1B", train_dataset=dataset, args=training_args)
trainer.train()
