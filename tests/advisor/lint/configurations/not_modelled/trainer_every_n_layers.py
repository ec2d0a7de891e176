import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.bfloat16, attn_implementation="sdpa"
)
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"every_n_layers": 2, "preserve_rng_state": False},
    bf16=True,
    learning_rate=2e-5,
    num_train_epochs=1,
    optim="adafactor",
    torch_empty_cache_steps=4,
    logging_steps=10,
    save_strategy="epoch",
)
Trainer(model=model, args=args, train_dataset=data).train()
