import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

bnb = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_compute_dtype=torch.bfloat16,
    bnb_4bit_use_double_quant=True,
)
model = AutoModelForCausalLM.from_pretrained(
    "mistralai/Mistral-7B-v0.1", quantization_config=bnb, device_map={"": 0}
)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=64, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
trainer = Trainer(
    model=model,
    train_dataset=data,
    args=TrainingArguments(
        output_dir="mistral-qlora",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        gradient_checkpointing=True,
        max_steps=1000,
        learning_rate=2.5e-5,
        bf16=True,
        optim="paged_adamw_32bit",
        logging_steps=25,
        do_eval=True,
    ),
)
