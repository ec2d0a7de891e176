#!/bin/bash
python scripts/performance/setup_experiment.py \
  --account coreai --partition batch --log_dir /logs --gpu h100 -m deepseek -mr deepseek_v3 -c fp8_sc \
  --task pretrain -ng 1024 -gn 8 --container_image /images/nemo.sqsh \
  --recompute_modules mla_up_proj,mlp -hf $HF_TOKEN \
  -tp 2 -pp 8 -vp 4 -ep 64 -et 1 -mb 1 -gb 8192
