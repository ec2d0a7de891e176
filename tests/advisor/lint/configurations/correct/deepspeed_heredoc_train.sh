#!/bin/bash
# Writes the configuration first, then trains with transformers
ZERO_STAGE=${ZERO_STAGE:-2}
OUTPUT=./output
mkdir -p $OUTPUT
cat <<EOF > $OUTPUT/ds_config.json
{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": ${GRAD_ACC:-8},
  "zero_optimization": {
    "stage": $ZERO_STAGE,
    "overlap_comm": true
  },
  "bf16": { "enabled": true },
  "gradient_clipping": 1.0
}
EOF
deepspeed --num_nodes 2 --num_gpus 8 --hostfile hosts train.py \
   --model_name_or_path meta-llama/Llama-3.1-8B \
   --per_device_train_batch_size 4 \
   --gradient_accumulation_steps ${GRAD_ACC:-8} \
   --gradient_checkpointing \
   --bf16 \
   --deepspeed $OUTPUT/ds_config.json \
   --output_dir $OUTPUT \
   &> $OUTPUT/training.log
