#!/bin/bash
cat > ds.json <<EOT
{
  "train_micro_batch_size_per_gpu": ${MBS:-2},
  "bf16": {"enabled": true},
  "fp16": {"enabled": true},
  "zero_optimization": {"stage": 3}
}
EOT
deepspeed train.py --deepspeed ds.json 2>&1 | tee train.log
