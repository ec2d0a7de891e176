"""The matrix of rehearsed peaks: ``python -m tests.oracles.peak_matrix [few]`` rehearses it again.

Every stage that it names is run by the installed megatron-core on fake tensors: bytes counted, not
measured on a GPU. All of it takes about five minutes on one core, `few` ten seconds. The table is
results/rehearsed/megatron_core_VERSION.csv; test_recorded_peaks.py holds today's predictions
against it. Models are cut in depth to `layers` a chunk where they are deeper.
"""

import csv
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from advisor.base.record import as_dict
from advisor.job.job import Job
from advisor.models.layer_pattern import LayerPattern
from harness.trial.result import StagePeaks

from .rehearsed import compared, job_of, predictions, rehearse

FOLDER: Final = Path(__file__).parents[2] / "results" / "rehearsed"
NONE, ATTENTION, NORM = "none", "selective:core_attn", "selective:layernorm"
FULL: Final = ("full:uniform:1", "full:uniform:2", "full:block:1")
GPT: Final = (NONE, ATTENTION, NORM, "selective:core_attn,layernorm", *FULL)
LLAMA: Final = (NONE, ATTENTION, NORM, "selective:mlp", "selective:core_attn,layernorm,mlp", *FULL)
MOE: Final = (NONE, ATTENTION, NORM, "selective:moe", "selective:core_attn,layernorm,moe", *FULL)
MLA: Final = (
    *MOE[:6],
    FULL[2],
    "selective:mlp",
    "selective:mla_up_proj",
    "selective:shared_experts",
    "selective:layernorm,mla_up_proj,shared_experts",
)


class Case(Struct, frozen=True, kw_only=True):
    """A job, in the short names of a layout; `layers` are those of one chunk."""

    model: str
    layers: int
    seq_length: int
    micro_batch_size: int = 1
    tp: int = 1
    sp: bool = True
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 2

    def job(self, release: str = "") -> Job:
        """The preset cut to this depth; of DeepSeek's dense layers the first stays."""
        depth = self.layers * self.pp * self.vpp
        pattern = LayerPattern("[0]" + f"+[1]*{depth - 1}" * (depth > 1))
        return job_of(
            self.model,
            self.layers,
            seq_length=self.seq_length,
            micro_batch_size=self.micro_batch_size,
            options={"moe_layer_freq": pattern} if self.model == "deepseek_v3" else {},
            release=release,
            tensor_model_parallel_size=self.tp,
            sequence_parallel=self.sp and self.tp > 1,
            context_parallel_size=self.cp,
            pipeline_model_parallel_size=self.pp,
            virtual_pipeline_model_parallel_size=self.vpp,
            expert_model_parallel_size=self.ep,
            expert_tensor_parallel_size=self.etp,
            data_parallel_size=self.dp,
        )


def _of(model: str, seq_length: int, **common: Any) -> Any:
    def case(layers: int, **degrees: Any) -> Case:
        return Case(model=model, layers=layers, seq_length=seq_length, **(common | degrees))

    return case


_8B, _70B, _405B = (_of(f"llama3_{size}", 8192) for size in ("8b", "70b", "405b"))
_175B, _MIXTRAL = _of("gpt3_175b", 2048), _of("mixtral_8x7b", 4096, ep=8, dp=8)
_QWEN, _DEEPSEEK = _of("qwen3_30b_a3b", 4096, ep=32, dp=32), _of("deepseek_v3", 4096, ep=64, dp=64)
_QWEN_8B, _OSS = _of("qwen3_8b", 4096), _of("gpt_oss_20b", 4096, ep=8, dp=8)
_SPREAD: Final = "full:uniform:1+distribute_saved_activations"

# settings, and the stages where not all of them
MATRIX: Final[tuple[tuple[Case, tuple[str, ...], tuple[int, ...] | None], ...]] = (
    (_8B(2, dp=8), LLAMA, None),
    (_8B(2, tp=2, pp=2, vpp=2), LLAMA, None),
    (_8B(2, cp=2, pp=4, micro_batch_size=2), LLAMA, (0, 3)),
    (_8B(2, tp=4, sp=False, pp=2), (NONE, "selective:mlp", *FULL, _SPREAD), None),
    (_8B(8, pp=4), (NONE, "selective:mlp", "full:uniform:4", "full:block:4"), (0, 3)),
    (_70B(2, tp=4, pp=4), LLAMA, (0, 3)),
    (_70B(1, tp=4, pp=4, vpp=5), (NONE, NORM, "selective:mlp", *FULL[:1], FULL[2]), (0, 2, 3)),
    (_70B(1, tp=8, pp=8, vpp=2, cp=2), (NONE, "selective:mlp", "full:block:1"), (0, 7)),
    (_405B(2, tp=8, pp=8), LLAMA, (0, 7)),
    (_405B(1, tp=8, pp=16), (NONE,), None),
    (_405B(2, tp=8, pp=16), ("selective:mlp", "full:uniform:2", "full:block:1"), (0, 8, 15)),
    (_405B(1, tp=8, pp=16, vpp=2), (NONE, "selective:mlp"), (0, 15)),
    (_175B(2, tp=8, pp=4), GPT, (0, 3)),
    (_175B(1, tp=8, pp=8, vpp=3), (NONE, ATTENTION, *FULL[:1]), (0, 7)),
    (_175B(1, tp=8, pp=16), (NONE, ATTENTION, NORM, "full:block:1"), (0, 8, 15)),
    (_MIXTRAL(2), MOE, None),
    (_MIXTRAL(2, tp=2, pp=4), MOE, (0, 1, 3)),
    (_MIXTRAL(1, tp=2, pp=2, vpp=2), (*MOE[:6], FULL[2]), None),
    (_MIXTRAL(1, tp=4, ep=4, etp=2, pp=8, vpp=2), (NONE, "selective:moe", *FULL[:1]), (0, 7)),
    (_MIXTRAL(1, pp=16), (NONE, "selective:moe"), (0, 8, 15)),
    (_QWEN(2, pp=2), MOE, (0, 1)),
    (_QWEN(1, pp=2, vpp=2), (NONE, "selective:moe", NORM, *FULL[:1]), None),
    (_QWEN(1, tp=2, pp=4, vpp=2), (NONE, "selective:moe", *FULL[:1]), (0, 3)),
    (_QWEN(1, pp=16), (NONE, "selective:moe"), (0, 15)),
    (_DEEPSEEK(2, pp=2), MLA, None),
    (_DEEPSEEK(1, tp=2, pp=4, vpp=2), (NONE, "selective:mla_up_proj", *FULL[:1]), (0, 3)),
    (_DEEPSEEK(1, pp=8), (NONE, "selective:moe", "selective:mla_up_proj"), (0, 7)),
    (_DEEPSEEK(1, pp=16), (NONE, "selective:mla_up_proj,moe"), (0, 8, 15)),
    (_QWEN_8B(2, tp=2, pp=4), (NONE, NORM, "selective:mlp", *FULL[:1]), (0, 3)),
    (_OSS(2), MOE, None),
    (_OSS(2, tp=2, pp=4), (NONE, ATTENTION, "selective:moe", *FULL[:1]), (0, 1, 3)),
    (_OSS(2, pp=2, vpp=2), (NONE, "selective:moe", *FULL[:1]), None),
)


FEW: Final[tuple[tuple[Case, tuple[str, ...], tuple[int, ...] | None], ...]] = (
    (_8B(1, tp=2, pp=2), (NONE, "selective:mlp"), None),
    (_8B(1, tp=2, pp=2, vpp=2), (NONE, "selective:layernorm"), None),
    (_8B(2), FULL, None),
    (_175B(1, tp=8), (ATTENTION,), None),
    (_MIXTRAL(1, tp=2, pp=2), (NONE, "selective:moe"), None),
    (_DEEPSEEK(1, pp=2), (NONE, "selective:mla_up_proj"), None),
)


class Row(Struct, frozen=True, kw_only=True):
    """One stage under one setting as it was rehearsed, in bytes. activations: peak of forward and
    backward beyond weights, gradients and optimizer states. peak: the highest of the whole step,
    these included."""

    case: Case
    recompute: str
    stage: int
    activations: int
    peak: int

    def cells(self) -> dict[str, Any]:
        """The row flat, as it stands in the table."""
        return as_dict(self.case) | {f.name: getattr(self, f.name) for f in fields(self)[1:]}


def read(path: Path) -> list[Row]:
    """The rows of a table."""
    with path.open(newline="") as stream:
        return [_row(cells) for cells in csv.DictReader(stream)]


def _row(cells: Mapping[str, str]) -> Row:
    def typed(cls: type) -> dict[str, Any]:
        kinds = {"model": str, "recompute": str, "sp": "True".__eq__}
        return {
            f.name: kinds.get(f.name, int)(cells[f.name]) for f in fields(cls) if f.name in cells
        }

    return Row(case=Case(**typed(Case)), **typed(Row))


def predicted(rows: Iterable[Row], release: str) -> Iterator[StagePeaks]:
    """What the advisor predicts today of `release` (major.minor), row by row."""
    for row in rows:
        yield from predictions(row.case.job(release), row.recompute, (row.stage,))


def rehearsed(
    matrix: Iterable[tuple[Case, tuple[str, ...], tuple[int, ...] | None]],
) -> Iterator[Row]:
    """Every row of `matrix`, each rehearsed now."""
    for case, settings, stages in matrix:
        for recompute in settings:
            for _, found in compared(case.job(), recompute, stages, rehearse):
                yield Row(
                    case=case,
                    recompute=recompute,
                    stage=found.stage,
                    activations=found.activations,
                    peak=found.peak,
                )


def main() -> None:
    """Rehearse and write the table; rows go to stderr as they come."""
    software = {name: version(name) for name in ("megatron-core", "torch")}
    software["date"] = datetime.now(UTC).date().isoformat()
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"megatron_core_{software['megatron-core']}.csv"
    names = [f.name for f in (*fields(Case), *fields(Row)[1:])]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*names, *software], lineterminator="\n")
        writer.writeheader()
        for row in rehearsed(FEW if "few" in sys.argv else MATRIX):
            writer.writerow(row.cells() | software)
            stream.flush()
            print(row, file=sys.stderr)
    print(f"{path}: {time.process_time():.0f} s of one core")


if __name__ == "__main__":
    main()
