import argparse

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--ds", default=None)
parser.add_argument("--lr", type=float, default=1e-5)
args = parser.parse_args()

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B",
    torch_dtype=torch.bfloat16,
    attn_implementation="flash_attention_2",
)
training_args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    learning_rate=args.lr,
    bf16=True,
    deepspeed=args.ds if args.ds else None,
    logging_steps=1,
    save_strategy="no",
)
Trainer(model=model, args=training_args, train_dataset=data).train()
