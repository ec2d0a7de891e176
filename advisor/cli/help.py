"""The commands of `advise` as data: their pages, of which parser, help and completion are made."""

from typing import Any, Final

from advisor.report.command_help import read_page

SHORT: Final = """\
advise ranks the recompute settings of a training job by memory and time, before it runs.

    advise --model llama3_70b --gpus 32xH100

advise --help shows every flag; advise models and advise gpus list the names."""
RANKING: Final = read_page(
    __file__,
    "advise",
    {
        "--from": {"field": "source"},
        "--calibration": {"repeated": True},
        "--vpp": {"field": "virtual_pipeline_model_parallel_size"},
        "--no-sp": {"field": "sequence_parallel"},
        "--recompute": {"repeated": True},
        "--quick": {"field": "quick"},
        "--packing": {"choices": ("padded", "packed")},
        "--format": {"field": "output"},
        "-o": {"field": "written"},
        "--verify": {"default": 3},
    },
)
_OF_DIFF: Final[dict[str, dict[str, Any]]] = {
    "--format": {"field": "output", "choices": ("table", "json")},
    "-o": {"field": "written"},
}
_OF: Final[dict[str, dict[str, Any]]] = {
    "lint": {"--format": {"choices": ("text", "json", "sarif", "github", "junit")}},
    "check": {"--format": {"choices": ("text", "json")}},
}
_NAMES: Final = "check diff lint diagnose models gpus recipes rules keys completion"
SUBCOMMANDS: Final = {
    name: read_page(__file__, name, _OF.get(name, _OF_DIFF)) for name in _NAMES.split()
}
