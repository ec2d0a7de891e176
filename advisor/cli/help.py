"""The commands of `advise` as data: flags, what they are for, examples. A flag is a line here; its
parser, its help and its completion are made of it."""

from typing import Final

from advisor.report.command_help import Command, Flag, Kind, Topic

SHORT: Final = """\
advise ranks the recompute settings of a training job by memory and time, before it runs.

    advise --model llama3_70b --gpus 32xH100

advise --help shows every flag; advise models and advise gpus list the names."""

_CONFIG_DIR: Final = Flag(
    "--config-dir DIR",
    "searched before the configuration that comes with the advisor",
    Kind.FOLDER,
)
_JOB: Final = Topic(
    "Job",
    (
        Flag(
            "--model MODEL",
            "preset (advise models), YAML file, or Hugging Face config.json",
            Kind.MODEL,
        ),
        Flag("--gpus COUNTxTYPE", "32xH100, 8xA100-40GB (advise gpus)", Kind.GPUS),
        Flag(
            "--from FILE",
            "the job of a launch script or configuration of any of the frameworks; other flags "
            "win; of several jobs FILE#2 is the second",
            Kind.FILE,
            "source",
        ),
        Flag("--seq-length N", "tokens of one sequence", Kind.NUMBER),
        Flag("--micro-batch-size N", "sequences of one microbatch", Kind.NUMBER),
        Flag("--global-batch-size N", "sequences of one step", Kind.NUMBER),
        Flag("--precision P", "{choices}", Kind.CHOICE),
        Flag("--framework F", "{choices}", Kind.CHOICE),
        Flag(
            "--framework-version V",
            "its release: meaning and spelling of settings follow it",
            Kind.TEXT,
        ),
        ("KEY=VALUE", "any field: model.*, layout.*, job.*, in Megatron's names (advise keys)"),
        _CONFIG_DIR,
        Flag(
            "--calibration PATH",
            "learn from runs, for jobs like theirs: a folder of harness run, sweep or ingest, or "
            "the YAML of harness calibrate; may be repeated",
            Kind.FILE,
            repeated=True,
        ),
    ),
)
_LAYOUT: Final = Topic(
    "Layout",
    (
        Flag("--tp, --tensor-model-parallel-size N", "tensor parallelism", Kind.NUMBER),
        Flag("--pp, --pipeline-model-parallel-size N", "pipeline stages", Kind.NUMBER),
        Flag(
            "--vpp, --virtual-pipeline-model-parallel-size, "
            "--num-virtual-stages-per-pipeline-rank N",
            "chunks of layers a stage",
            Kind.NUMBER,
            "virtual_pipeline_model_parallel_size",
        ),
        Flag("--cp, --context-parallel-size N", "context parallelism", Kind.NUMBER),
        Flag("--ep, --expert-model-parallel-size N", "expert parallelism", Kind.NUMBER),
        Flag("--etp, --expert-tensor-parallel-size N", "TP of experts", Kind.NUMBER),
        Flag("--sp, --sequence-parallel", "sequence parallelism"),
        Flag(
            "--no-sp, --no-sequence-parallel",
            "no sequence parallelism",
            field="sequence_parallel",
        ),
    ),
    "What is given stays; the other degrees are the recipe's, or searched.",
)
_SEARCH: Final = Topic(
    "Search",
    (
        Flag(
            "--recompute SPEC",
            "evaluate this instead of searching; may be repeated: none, "
            "selective:core_attn,mlp, full:uniform:4, full:block:8 (+offload=MODULES, "
            "+offload_fraction=0.5, +cpu_offloading=LAYERS, +distribute_saved_activations); "
            "outside Megatron none, full, selective:N (every N-th block), op:save_attention, "
            "op:save_matmul, op:torchtitan, budget:0.5, sequential:SEGMENTS, uniform:N "
            "(+offload, …): advise rules --framework F says what is taken",
            Kind.TEXT,
            repeated=True,
        ),
        Flag(
            "--search SCOPE",
            "recompute (default); layout: every degree, sharding, micro batch and free option of "
            "the same job as well; optimum: the best that the framework can be told on the job's "
            "layout, with the proof",
            Kind.CHOICE,
        ),
        Flag(
            "--memory-budget SIZE",
            "what a rank may reserve, e.g. 76GiB; default: what the GPU gives",
            Kind.TEXT,
        ),
    ),
)
_WRITTEN: Final = Flag("-o, --output FILE", "write the answer to FILE", Kind.FILE, "written")
_OUTPUT: Final = Topic(
    "Output",
    (
        Flag(
            "--format F",
            "table (default), json, csv, html (the explorer: every row and its pictures on one "
            "page), flags (only the flags of the best setting), file (its configuration file: "
            "torchtitan, DeepSpeed, Accelerate)",
            Kind.CHOICE,
            "output",
        ),
        _WRITTEN,
        Flag(
            "--top N",
            "the N best rows. Without it json and csv have all, a page the 10 best except "
            "those that another row beats in memory and time, or runs like",
            Kind.NUMBER,
        ),
        Flag("--front", "the Pareto front of memory and time alone: page, json, csv"),
        Flag(
            "--price-per-gpu-hour X",
            "what 10^12 tokens cost, in the currency of X",
            Kind.DECIMAL,
        ),
        Flag("--show-rejected", "settings that the framework refuses, and why"),
        Flag(
            "--explain [N]",
            "where each GiB and each millisecond of row N goes (default 1)",
            Kind.OPTIONAL,
            default=1,
        ),
        Flag(
            "--verify [N]",
            "the N best (default 3) rehearsed by Megatron Core on fake tensors: peaks predicted "
            "beside rehearsed; needs the extra `megatron`",
            Kind.OPTIONAL,
            default=3,
        ),
        Flag(
            "--against OTHER",
            "compare with a release (0.13), with this request under other flags ('--tp 8'), or "
            "with another request: what advise diff shows, as table or json",
            Kind.TEXT,
        ),
        Flag("--plot FILE", "a picture, as .png, .svg or .pdf", Kind.FILE),
        Flag(
            "--plot-kind KIND",
            "of all rows: ranking (default), pareto, time; of one row: waterfall, stages, "
            "timeline, layer",
            Kind.CHOICE,
        ),
        Flag(
            "--trace FILE",
            "the step of a row for Perfetto and chrome://tracing, as .json or .json.gz",
            Kind.FILE,
        ),
        Flag(
            "--memory-snapshot FILE",
            "its memory for pytorch.org/memory_viz and harness snapshot, as .pickle",
            Kind.FILE,
        ),
        Flag("--row N", "the row that these files show; default: the choice", Kind.NUMBER),
    ),
)
_TOPICS: Final = (_JOB, _LAYOUT, _SEARCH, _OUTPUT)
RANKING: Final = Command(
    usage="advise --model MODEL --gpus COUNTxTYPE [flags] [KEY=VALUE]...",
    about="Ranks the recompute settings of a training job of Megatron, torchtitan, FSDP2, "
    "DeepSpeed or Hugging Face by peak memory and step time, before it runs, and prints the flags "
    "of the best one. What is not given comes from the job's preset or is chosen, and the page "
    "says so.",
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
        *_TOPICS,
        Topic(
            "Other commands (advise COMMAND --help says more)",
            (
                ("diff 'REQUEST' 'REQUEST'", "two requests side by side"),
                ("lint FILE|FLAGS", "checks an existing configuration or command line"),
                ("diagnose LOG", "says why a run failed"),
                ("models, gpus", "lists the presets"),
                ("recipes [MODEL]", "what was published"),
                ("rules [WORD]", "what a release accepts, promotes and refuses"),
                ("keys [WORD]", "every KEY, and the framework's options that mean it"),
                ("completion SHELL", "a script for bash, zsh or fish"),
            ),
        ),
    ),
    closing="--version, --help. Exit codes: 0 something fits, 1 nothing fits, 2 the request is "
    "wrong (one line says why), 70 a fault of the advisor itself.",
)
_FRAMEWORK: Final = Flag("--framework F", "{choices}", Kind.CHOICE)
_VERSION: Final = Flag("--framework-version V", "its release", Kind.TEXT)
SUBCOMMANDS: Final = {
    "diff": Command(
        usage="advise diff 'REQUEST' 'REQUEST' [--format table|json] [-o FILE]",
        about="Two requests side by side: what differs in the job and where each value comes from, "
        "the rows that they choose, peak memory by component, step time by phase, and the flags "
        "that change. A REQUEST is what stands behind advise on a command line, in quotes.",
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
                        "--format F",
                        "table (default), json",
                        Kind.CHOICE,
                        "output",
                        choices=("table", "json"),
                    ),
                    _WRITTEN,
                ),
            ),
        ),
        closing="Exit codes: 0 both could be answered, 2 a request is wrong.",
    ),
    "lint": Command(
        usage="advise lint [--framework-version V] FILE|FLAGS",
        about="Checks recompute settings. FILE: a shell script, Megatron-LM or NeMo YAML, a Python "
        "recipe of Megatron Bridge or NeMo, torchtitan's TOML, DeepSpeed's JSON, Accelerate's "
        "YAML, or code with TrainingArguments.",
        examples=(
            "advise lint train.sh",
            "advise lint --recompute-granularity selective --recompute-modules core_attn mlp",
        ),
        topics=(Topic("Flags", (_VERSION,)),),
        closing="Exit codes: 0 clean or notes only; 1 an error (refused, crashes, hangs) or a "
        "warning (does not do what it says, or saves nothing); 2 it cannot be read.",
    ),
    "diagnose": Command(
        usage="advise diagnose LOG",
        about="Known failures in a training log, plain or gzip (- is standard input).",
        closing="Exit codes: 0 a cause is named, 1 nothing known is in it, 2 it cannot be read.",
    ),
    "models": Command(
        usage="advise models [--config-dir DIR]",
        about="The names that --model takes.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "gpus": Command(
        usage="advise gpus [--config-dir DIR]",
        about="The types that --gpus takes.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "recipes": Command(
        usage="advise recipes [MODEL] [--config-dir DIR]",
        about="The recipes that Megatron Bridge, NeMo and Megatron-LM publish, and the setting "
        "that they ship.",
        topics=(Topic("Flags", (_CONFIG_DIR,)),),
    ),
    "rules": Command(
        usage="advise rules [--framework F] [--framework-version V] [WORD]",
        about="What a release accepts, promotes and refuses; with a WORD only the rules that have "
        "it.",
        topics=(Topic("Flags", (_FRAMEWORK, _VERSION)),),
    ),
    "keys": Command(
        usage="advise keys [--framework F] [WORD]",
        about="Every KEY of KEY=VALUE, what it takes and its default, with the options of the "
        "framework that mean it; with a WORD those that have it.",
        topics=(Topic("Flags", (_FRAMEWORK,)),),
    ),
    "completion": Command(
        usage="advise completion bash|zsh|fish",
        about="Prints a script that completes commands, flags and names in a shell.",
        examples=(
            ('eval "$(advise completion bash)"', "in ~/.bashrc"),
            ('eval "$(advise completion zsh)"', "in ~/.zshrc, behind compinit"),
            ("advise completion fish | source", "in ~/.config/fish/config.fish"),
        ),
    ),
}
