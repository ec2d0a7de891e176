"""The commands of `advise` as data: flags, what they are for, examples. A flag is a line here; its
parser, its help and its completion are made of it."""

from typing import Final

from advisor.report.command_help import CommandHelp, Flag, Topic, explained, flags

SHORT: Final = """\
advise ranks the recompute settings of a training job by memory and time, before it runs.

    advise --model llama3_70b --gpus 32xH100

advise --help shows every flag; advise models and advise gpus list the names."""

_CONFIG_DIR: Final = Flag(
    "--config-dir DIR", "folder of your own models, GPUs and calibrations, searched first"
)
_JOB: Final = Topic(
    "Job",
    (
        *flags(
            """
            --model MODEL            preset (advise models), YAML file, or Hugging Face config.json
            --gpus COUNTxTYPE        32xH100, 8xA100-40GB (advise gpus)
            --from FILE              the job in a launch script or configuration file of any
                framework; flags override it; FILE#2 is its second job
            --seq-length N           tokens of one sequence
            --micro-batch-size N     sequences of one microbatch
            --global-batch-size N    sequences of one step
            --precision P            {choices}
            --framework F            {choices}
            --framework-version V    the framework's release, which decides what settings mean;
                default: the newest
            """,
            {"--from": {"field": "source"}},
        ),
        ("KEY=VALUE", "any field: model.*, layout.*, job.*, in Megatron's names (advise keys)"),
        _CONFIG_DIR,
        *flags(
            """
            --calibration PATH  use measured runs of similar jobs to correct the predictions: a
                folder that harness run, sweep or ingest wrote, or the YAML of harness calibrate;
                may be repeated
            """,
            {"--calibration": {"repeated": True}},
        ),
    ),
)
_LAYOUT: Final = Topic(
    "Layout",
    flags(
        """
        --tp, --tensor-model-parallel-size N    tensor parallelism
        --pp, --pipeline-model-parallel-size N  pipeline stages
        --vpp, --virtual-pipeline-model-parallel-size, --num-virtual-stages-per-pipeline-rank N
            virtual stages (chunks of layers) per pipeline stage
        --cp, --context-parallel-size N         context parallelism
        --ep, --expert-model-parallel-size N    expert parallelism
        --etp, --expert-tensor-parallel-size N  tensor parallelism of experts
        --sp, --sequence-parallel               sequence parallelism
        --no-sp, --no-sequence-parallel         no sequence parallelism
        """,
        {
            "--vpp": {"field": "virtual_pipeline_model_parallel_size"},
            "--no-sp": {"field": "sequence_parallel"},
        },
    ),
    "Degrees that are not given come from the recipe, or are searched.",
)
_SEARCH: Final = Topic(
    "Search",
    flags(
        """
        --recompute SPEC      evaluate only this setting; may be repeated. Megatron: none,
            selective:core_attn,mlp, full:uniform:4, full:block:8 (+offload=MODULES,
            +offload_fraction=0.5, +cpu_offloading=LAYERS, +distribute_saved_activations). Others:
            none, full, selective:N (every N-th block), op:save_attention, op:save_matmul,
            op:torchtitan, budget:0.5, sequential:SEGMENTS, uniform:N (+offload, …); advise rules
            --framework F lists what a framework accepts
        --search SCOPE        recompute (default): every setting on one layout; layout: also every
            layout, sharding and micro batch, and options that you did not give (overlap,
            dispatcher, CUDA graphs, …); optimum: the best setting that the framework can express
            on the job's layout, with a proof
        --quick, --as-typed   the job as typed alone; nothing faster is looked for
        --memory-budget SIZE  memory that a rank may reserve, e.g. 76GiB; default: all usable memory
            of the GPU
        """,
        {"--recompute": {"repeated": True}, "--quick": {"field": "quick"}},
    ),
)
_OUTPUT: Final = Topic(
    "Output",
    flags(
        """
        --format F              table (default), json, csv, html (the explorer: every row and its
            pictures on one page), flags (only the flags of the best setting), file (its
            configuration file: torchtitan, DeepSpeed, Accelerate)
        -o, --output FILE       write the answer to FILE (- is stdout); without --format, the ending
            .html, .json or .csv sets the format
        --top N                 show the N best rows. Default: a table shows the 10 best, without
            dominated rows and rows with the same result as another; json and csv hold all rows
        --front                 only the rows on the Pareto front of memory and time
        --price-per-gpu-hour X  show what 10^12 tokens cost, in the currency of X
        --show-rejected         list the settings that the framework refuses, and why
        --explain [N]           show where each GiB and ms of row N goes (default: the first named)
        --verify [N]            rehearse the N best rows (default 3) with Megatron Core on fake
            tensors, and compare the peaks; needs the extra `megatron`
        --against OTHER         compare with another release (0.13), with other flags ('--tp 8') or
            with another request, as advise diff does; table or json
        --plot FILE             draw a picture: .png, .svg or .pdf
        --plot-kind KIND        which picture: ranking (default), pareto or time of all rows;
            waterfall, stages, timeline or layer of one row
        --trace FILE            write the predicted step of a row for Perfetto or chrome://tracing:
            .json, .json.gz
        --memory-snapshot FILE  write the row's memory for pytorch.org/memory_viz or harness
            snapshot: .pickle
        --row N                 the row that these pictures and files show; default: the chosen row
        """,
        {
            "--format": {"field": "output"},
            "-o": {"field": "written"},
            "--verify": {"default": 3},
        },
    ),
)
RANKING: Final = CommandHelp(
    usage="advise --model MODEL --gpus COUNTxTYPE [flags] [KEY=VALUE]...",
    about="Ranks the recompute settings of a training job by peak memory and step time, before the "
    "job runs, and prints the flags of the best one. Frameworks: Megatron, torchtitan, FSDP2, "
    "DeepSpeed, Hugging Face. Values that are not given come from a preset or are chosen; the "
    "answer lists them.",
    examples=(
        "advise --model llama3_70b --gpus 32xH100",
        "advise --model llama3_8b --gpus 8xA100-40GB --tp 2 --global-batch-size 128 --explain",
        "advise --model ./config.json --gpus 64xH100 --search layout --top 20",
        "advise --model llama3_70b --gpus 32xH100 --recompute none --recompute selective:mlp "
        "--format json",
        "advise --model llama3_70b --gpus 32xH100 model.attention_backend=unfused "
        "job.seq_length=8192",
    ),
    topics=(
        *(_JOB, _LAYOUT, _SEARCH, _OUTPUT),
        Topic(
            "Other commands (details: advise COMMAND --help)",
            explained("""
            diff 'REQUEST' 'REQUEST'  compares two requests
            lint FILE|FLAGS           checks an existing configuration or command line
            diagnose LOG              says why a run failed
            models, gpus              lists the models; lists the GPUs
            recipes [MODEL]           lists the jobs that frameworks publish
            rules [WORD]              lists the settings that a framework accepts, replaces or
                refuses
            keys [WORD]               lists every KEY, with the options that set it
            completion SHELL          prints the completion script for bash, zsh or fish
        """),
        ),
    ),
    closing="--version, --help. Exit codes: 0 something fits, 1 nothing fits, 2 the request is "
    "wrong (one line says why), 70 a bug in the advisor.",
)
_WRITTEN: Final = next(flag for flag in RANKING.flags if flag.name == "written")
_FRAMEWORK: Final = Flag("--framework F", "{choices}")
_VERSION: Final = Flag("--framework-version V", "the framework's release")
SUBCOMMANDS: Final = {
    "diff": CommandHelp(
        usage="advise diff 'REQUEST' 'REQUEST' [--format table|json] [-o FILE]",
        about="Compares two requests: what differs in the job and where each value comes from, "
        "the chosen rows, peak memory by component, step time by phase, and the flags that "
        "change. A REQUEST is the arguments of advise, in quotes.",
        examples=(
            "advise diff '--model llama3_70b --gpus 32xH100' '--model llama3_70b --gpus 32xH200'",
            ("advise --model llama3_70b --gpus 32xH100 --against 0.13", "another release"),
            (
                "advise --model llama3_70b --gpus 32xH100 --against '--recompute selective:mlp'",
                "the same request with another setting",
            ),
        ),
        topics=(
            Topic(
                "Flags",
                (
                    Flag(
                        "--format F", "table (default), json", "output", choices=("table", "json")
                    ),
                    _WRITTEN,
                ),
            ),
        ),
        closing="Exit codes: 0 both requests are answered, 2 a request is wrong.",
    ),
    "lint": CommandHelp(
        usage="advise lint [--framework-version V] FILE|FLAGS",
        about="Checks the recompute settings of a FILE or of FLAGS. FILE: a shell script, "
        "Megatron-LM or NeMo YAML, a Python recipe of Megatron Bridge or NeMo, torchtitan's TOML, "
        "DeepSpeed's JSON, Accelerate's YAML, or code with TrainingArguments.",
        examples=(
            "advise lint train.sh",
            "advise lint --recompute-granularity selective --recompute-modules core_attn mlp",
        ),
        topics=(Topic("Flags", (_VERSION,)),),
        closing="Exit codes: 0 clean, or only notes; 1 an error (the setting is refused, crashes "
        "or hangs) or a warning (the setting does not do what it says, or saves nothing); 2 the "
        "input cannot be read.",
    ),
    "diagnose": CommandHelp(
        usage="advise diagnose LOG",
        about="Finds known failures in a training log, plain or gzip (- is standard input), and "
        "says what they mean and how to fix them.",
        closing="Exit codes: 0 a known failure is found, 1 none is found, 2 the log cannot be "
        "read.",
    ),
    "models": CommandHelp(
        usage="advise models [--config-dir DIR]",
        about="Lists the names that --model accepts.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "gpus": CommandHelp(
        usage="advise gpus [--config-dir DIR]",
        about="Lists the types that --gpus accepts.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "recipes": CommandHelp(
        usage="advise recipes [MODEL] [--config-dir DIR]",
        about="Lists the recipes that Megatron Bridge, NeMo and Megatron-LM publish, with their "
        "recompute settings.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "rules": CommandHelp(
        usage="advise rules [--framework F] [--framework-version V] [WORD]",
        about="Lists the settings that a framework's release accepts, replaces or refuses; with a "
        "WORD, only the rules that contain it.",
        topics=(Topic("Flags", (_FRAMEWORK, _VERSION)),),
    ),
    "keys": CommandHelp(
        usage="advise keys [--framework F] [WORD]",
        about="Lists every KEY of KEY=VALUE with its type, its default and the framework's options "
        "that set it; with a WORD, only the keys that contain it.",
        topics=(Topic("Flags", (_FRAMEWORK,)),),
    ),
    "completion": CommandHelp(
        usage="advise completion bash|zsh|fish",
        about="Prints the script that completes commands, flags and names in a shell.",
        examples=(
            ('eval "$(advise completion bash)"', "in ~/.bashrc"),
            ('eval "$(advise completion zsh)"', "in ~/.zshrc, after compinit"),
            ("advise completion fish | source", "in ~/.config/fish/config.fish"),
        ),
    ),
}
