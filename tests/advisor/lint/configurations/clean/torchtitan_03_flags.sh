torchrun --nproc_per_node 8 --local-ranks-filter 0 --role rank --tee 3 \
  -m torchtitan.train --module llama3 --config llama3_8b \
  --training.steps 1000 --training.local-batch-size 2 --training.seq-len 8192 \
  --dump-folder outputs --metrics.log-freq 10 --metrics.enable-tensorboard \
  --checkpoint.interval 500 --debug.seed 42 \
  --parallelism.tensor-parallel-degree 2 --parallelism.data-parallel-shard-degree 4 \
  activation_checkpoint:full
