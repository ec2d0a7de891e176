"""A training command for tests: transformers' own parser and Trainer on a Llama of two layers."""

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM


class Tokens(torch.utils.data.Dataset):
    """The same sequence again and again."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(16)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=2,
        vocab_size=64,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
    print("checkpointed", [layer.gradient_checkpointing for layer in model.model.layers])


if __name__ == "__main__":
    main()
