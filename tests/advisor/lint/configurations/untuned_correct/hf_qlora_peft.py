"""QLoRA with gradient checkpointing and FSDP from a parser of arguments."""
from dataclasses import dataclass, field

from peft import LoraConfig, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
from trl import SFTConfig, SFTTrainer


@dataclass
class ScriptArguments:
    model_id: str = field(default="meta-llama/Meta-Llama-3-70B")
    max_seq_length: int = field(default=3072)


def training_function(script_args, training_args):
    model = AutoModelForCausalLM.from_pretrained(
        script_args.model_id,
        use_cache=False if training_args.gradient_checkpointing else True,
    )
    if training_args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model = prepare_model_for_kbit_training(model)
    trainer = SFTTrainer(model=model, args=training_args, peft_config=LoraConfig(r=8))
    trainer.train()


if __name__ == "__main__":
    config = SFTConfig(
        output_dir="out",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs=dict(use_reentrant=False),
        bf16=True,
        fsdp="full_shard auto_wrap",
        fsdp_config={"activation_checkpointing": False, "use_orig_params": False},
        packing=True,
    )
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script_args, training_args = parser.parse_args_into_dataclasses()
    training_function(script_args, config)
