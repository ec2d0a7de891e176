#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
python3 main.py \
  stages=[training] training=gpt3/5b cluster.partition=batch \
  training.trainer.num_nodes=16 training.trainer.devices=8 \
  training.model.activations_checkpoint_granularity=full \
  training.model.activations_checkpoint_method=block \
  training.model.activations_checkpoint_num_layers=2 \
  training.model.tensor_model_parallel_size=2 \
  training.model.sequence_parallel=True
