"""The help of `advise`, written by hand: grouped, one line a flag, examples first."""

from typing import Final

SHORT: Final = """\
advise ranks the recompute settings of a training job by memory and time, before it runs.

    advise --model llama3_70b --gpus 32xH100

advise --help shows every flag; advise models and advise gpus list the names."""

LONG: Final = """\
advise --model MODEL --gpus COUNTxTYPE [flags] [KEY=VALUE]...

Ranks the recompute settings of a training job of Megatron, torchtitan, FSDP2, DeepSpeed or Hugging
Face by peak memory and step time, before it runs, and prints the flags of the best one. What is not
given comes from the job's preset or is chosen, and the page says so.

  advise --model llama3_70b --gpus 32xH100
  advise --model llama3_8b --gpus 8xA100-40GB --tp 2 --global-batch-size 128 --explain
  advise --model ./config.json --gpus 64xH100 --search layout --top 20
  advise --model llama3_70b --gpus 32xH100 --recompute none --recompute selective:mlp --format json
  advise --model llama3_70b --gpus 32xH100 model.attention_backend=unfused job.seq_length=8192

Job
  --model MODEL             preset (advise models), YAML file, or Hugging Face config.json
  --gpus COUNTxTYPE         32xH100, 8xA100-40GB (advise gpus)
  --from FILE               the job of a launch script or configuration of any of the frameworks;
                            other flags win; of several jobs FILE#2 is the second
  --seq-length N            tokens of one sequence
  --micro-batch-size N      sequences of one microbatch
  --global-batch-size N     sequences of one step
  --precision P             bf16, fp16, fp8_delayed, fp8_current, fp8_blockwise, mxfp8,
                            nvfp4
  --framework F             megatron_lm, megatron_bridge, nemo, torchtitan, fsdp2, deepspeed,
                            huggingface
  --framework-version V     its release: meaning and spelling of settings follow it
  KEY=VALUE                 any field: model.*, layout.*, job.*, in Megatron's names (advise keys)
  --config-dir DIR          searched before the configuration that comes with the advisor
  --calibration PATH        learn from runs, for jobs like theirs: a folder of harness run, sweep or
                            ingest, or the YAML of harness calibrate; may be repeated

Layout (Megatron's long names work too)
  --tp N   --tensor-model-parallel-size          --sp, --no-sp   --sequence-parallel
  --pp N   --pipeline-model-parallel-size        --cp N   --context-parallel-size
  --vpp N  --virtual-pipeline-model-parallel-size, --num-virtual-stages-per-pipeline-rank
  --ep N   --expert-model-parallel-size          --etp N  --expert-tensor-parallel-size
  What is given stays; the other degrees are the recipe's, or searched.

Search
  --recompute SPEC          evaluate this instead of searching; may be repeated: none,
                            selective:core_attn,mlp, full:uniform:4, full:block:8
                            (+offload=MODULES, +offload_fraction=0.5, +cpu_offloading=LAYERS,
                            +distribute_saved_activations); outside Megatron none, full,
                            selective:N (every N-th block), op:save_attention, op:save_matmul,
                            op:torchtitan, budget:0.5, sequential:SEGMENTS, uniform:N (+offload, …):
                            advise rules --framework F says what is taken
  --search SCOPE            recompute (default); layout: every degree, sharding, micro batch and
                            free option of the same job as well; optimum: the best that the
                            framework can be told on the job's layout, with the proof
  --memory-budget SIZE      what a rank may reserve, e.g. 76GiB; default: what the GPU gives

Output
  --format F                table (default), json, csv, flags (only the flags of the best setting),
                            file (its configuration file: torchtitan, DeepSpeed, Accelerate)
  --top N                   the N best rows. Without it json and csv have all, a page the 10 best
                            but for those that another row beats in memory and time, or runs like
  --front                   the Pareto front of memory and time alone: page, json, csv
  --price-per-gpu-hour X    what 10^12 tokens cost, in the currency of X
  --show-rejected           settings that the framework refuses, and why
  --explain [N]             where each GiB and each millisecond of row N goes (default 1)
  --verify [N]              the N best (default 3) rehearsed by Megatron Core on fake tensors:
                            peaks predicted beside rehearsed; needs the extra `megatron`
  --plot FILE               .png, .svg or .pdf; --plot-kind ranking (default), pareto or time of all
                            rows; waterfall, stages, timeline or layer of --row N, or of the choice
  --trace FILE              .json, .json.gz: the step of --row N for Perfetto and chrome://tracing
  --memory-snapshot FILE    .pickle: its memory for pytorch.org/memory_viz and harness snapshot
  --version  --help

Other commands
  advise lint FILE|FLAGS    checks an existing configuration or command line
  advise diagnose LOG       says why a run failed
  advise models, gpus       lists the presets; advise recipes [MODEL] what was published
  advise rules [--framework F] [WORD]   what a release accepts, promotes and refuses
  advise keys [--framework F] [WORD]    every KEY, and the framework's options that mean it

Exit codes: 0 something fits, 1 nothing fits, 2 the request is wrong (one line says why),
70 a fault of the advisor itself.
lint: 0 clean or notes only, 1 an error or a warning. diagnose: 0 a cause is named, 1 none is known.
"""
