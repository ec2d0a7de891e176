NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.local_batch_size 2 --parallelism.tensor_parallel_degree 2 --compile.enable activation_checkpoint:full
