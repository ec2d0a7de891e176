set -x
MODEL_PATH="Qwen/Qwen3-4B-Thinking-2507"
CKPT_ARGS=(
   --actor.model_name_or_path ${MODEL_PATH}
   --ckpt.output_dir ./exp/Qwen3-4B-Thinking
   --ckpt.load_enable
)
ROLLOUT_ARGS=(
   --train.agent_func_path ./examples/python/math_reward_func.py
   --data.prompt_dataset zhuzilin/dapo-math-17k
   --data.max_len 74240
   --rollout.max_new_tokens 64000
   --rollout.batch_size 128
   --rollout.n_samples_per_prompt 8
   --train.batch_size 1024
)
ENGINE_ARGS=(
   --ref.num_nodes 1
   --ref.num_gpus_per_node 8
   --actor.num_nodes 1
   --actor.num_gpus_per_node 8
   --vllm.num_engines 4
   --vllm.tensor_parallel_size 2
   --vllm.gpu_memory_utilization 0.6
   --vllm.enable_sleep
   --ds.enable_sleep
   --train.colocate_all
   --ds.zero_stage 3
   --ds.packing_samples
   --actor.gradient_checkpointing_enable
   --train.dynamic_batch_enable
   --train.max_tokens_per_gpu 16192
   --rollout.max_tokens_per_gpu 32768
   --ds.ring_attn_size 4
   --ds.ring_attn_head_stride 2
)
OPTIMIZER_ARGS=( --algo.advantage.estimator reinforce_baseline --algo.kl.init_coef 1e-5 --algo.kl.use_loss
   --algo.kl.estimator k2 --actor.adam.lr 5e-7 --actor.eps_clip_low_high 0.2 0.27 )
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
   ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${ENGINE_ARGS[@]} ${OPTIMIZER_ARGS[@]} --ds.param_dtype bf16
