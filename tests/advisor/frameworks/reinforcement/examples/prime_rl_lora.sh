uv run rl @ configs/math/rl.toml \
  --model.name Qwen/Qwen3-4B-Instruct-2507 \
  --seq-len 65536 \
  --trainer.model.lora.rank 16 \
  --trainer.model.ac.mode full \
  --trainer.model.ac-offloading None \
  --trainer.model.optim-cpu-offload false \
  --orchestrator.batch-size 128 \
  --deployment.num-train-gpus 8 --deployment.num-infer-gpus 8
