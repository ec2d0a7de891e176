import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

model_id = "mistralai/Mistral-7B-v0.1"
gradient_checkpointing = True

model = AutoModelForCausalLM.from_pretrained(
    model_id,
    attn_implementation="flash_attention_2",
    torch_dtype=torch.bfloat16,
    use_cache=not gradient_checkpointing,  # not with gradient checkpointing
)
tokenizer = AutoTokenizer.from_pretrained(model_id)

args = TrainingArguments(
    output_dir="mistral-7b-sft",
    num_train_epochs=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=gradient_checkpointing,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    optim="adamw_torch_fused",
    logging_steps=10,
    learning_rate=2e-4,
    bf16=True,
    max_grad_norm=0.3,
    warmup_ratio=0.03,
    report_to="tensorboard",
)

trainer = Trainer(model=model, args=args, processing_class=tokenizer)
trainer.train()
