NGPU=8 CONFIG_FILE="./llama3_8b.toml" ./run_train.sh --training.seq_len=4096 --compile.enable --activation_checkpoint.selective_ac_option 2 --parallelism.tensor_parallel_degree 2 --training.mixed_precision_reduce float32
torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./llama3_8b.toml --training.local_batch_size 4
