#!/bin/bash
# Megatron-MoE-ModelZoo style: everything from a YAML through envsubst and yq
set -euxo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
envsubst < model_configs/benchmarking/${MODEL}.yaml > ${CONFIG}
TRAINING_PARAMS=""
TRAINING_PARAMS_FROM_CONFIG=$(yq '.MODEL_ARGS | to_entries | .[] | with(select(.value == "true"); .value = "") | [.key + " " + .value] | join("")' ${CONFIG} | tr '\n' ' ')
TRAINING_PARAMS="${TRAINING_PARAMS} ${TRAINING_PARAMS_FROM_CONFIG}"
if [[ -n "${A2A_OVERLAP:-}" ]]; then
  TRAINING_PARAMS="${TRAINING_PARAMS} --overlap-moe-expert-parallel-comm --delay-wgrad-compute"
fi
TRAINING_PARAMS="${TRAINING_PARAMS} --recompute-granularity selective --recompute-modules moe_act mla_up_proj"
TRAINING_CMD="torchrun --nproc_per_node 8 ${MEGATRON_PATH}/pretrain_gpt.py ${TRAINING_PARAMS}"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=32
srun --container-image ${IMAGE} bash -c "${TRAINING_CMD}"
EOF
