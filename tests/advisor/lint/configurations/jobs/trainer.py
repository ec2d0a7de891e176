import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

MODEL_ID = "meta-llama/Llama-2-7b-hf"
BATCH = 4
tokenizer = AutoTokenizer.from_pretrained(MODEL_ID, model_max_length=2048)
model = AutoModelForCausalLM.from_pretrained(MODEL_ID, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2")
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=BATCH, gradient_accumulation_steps=4, bf16=True,
    optim="adamw_torch", torch_compile=True, fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}, learning_rate=2e-5, max_steps=100)
trainer = Trainer(model=model, args=args)
trainer.train()
