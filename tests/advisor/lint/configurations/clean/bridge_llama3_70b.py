from megatron.bridge.recipes.llama import llama3_70b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain


def main() -> None:
    cfg = llama3_70b_pretrain_config()
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "block"
    cfg.model.recompute_num_layers = 2
    cfg.model.cross_entropy_loss_fusion = True
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.logger.log_interval = 10
    cfg.checkpoint.save = "/checkpoints"
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
