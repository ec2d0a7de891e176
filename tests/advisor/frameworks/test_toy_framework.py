"""A framework that nothing in the package has heard of: registered from outside, it ranks,
refuses and prints flags. The whole of it stands here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.cli.main import main
from advisor.frameworks import framework_parts, registry
from advisor.frameworks.part_types import FixedMemory, RulesOverview, StaticLabels
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.static import stage_elements, static_memory
from advisor.models.layer_kind import LayerKind
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Checkpoint, RecomputePlan, Segment, Setting


class First(Struct, frozen=True):
    """The first `layers` blocks are recomputed; the toy has no other setting."""

    layers: int

    @property
    def spec(self) -> str:
        return f"first:{self.layers}" if self.layers else "none"

    @property
    def promoted(self) -> Setting:
        return self


class Settings(framework_parts.RecomputeSettings):
    none: Setting = First(0)

    def parse(self, text: str) -> Setting:
        word, _, number = text.partition(":")
        if text != "none" and (word != "first" or not number.isdigit()):
            raise UserError("--recompute", text, "is no setting of toy", "none or first:N")
        return First(int(number or 0))

    def tried(self, job: Job) -> tuple[Setting, ...]:
        return tuple(First(layers) for layers in range(job.model.num_layers + 1))

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        assert isinstance(setting, First)
        if setting.layers <= job.model.num_layers:
            return ()
        reason = f"the model has {job.model.num_layers} layers"
        return (
            Rejection(setting=setting, rule="layers", reason=reason, fix="fewer", source="toy.py"),
        )

    def rules_overview(self, version: str) -> RulesOverview:
        return RulesOverview(label="toy 1", facts=(), rules=(("", "layers", "not too many"),))


class Jobs(framework_parts.JobSupport):
    """Data parallelism with whole weights on every rank, of torchtitan's plain blocks."""

    framework = "toy"

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        return text or "1"

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        return replace(model, transformer_impl=TransformerImpl.TORCH), config

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        return ParallelLayout(**{**given, "data_parallel_size": num_gpus})


class Memory(framework_parts.MemoryModel):
    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        assert isinstance(setting, First)
        checkpoint = Checkpoint.EARLY_STOP
        first = tuple(
            Segment((kind,), whole=True, checkpoint=checkpoint) for kind in layers[: setting.layers]
        )
        return RecomputePlan((*first, *(Segment((kind,)) for kind in layers[setting.layers :])))

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        static = static_memory(stage_elements(shape, chunks), 1, DType.BF16, 12)
        words = ("all of it", "toy.py")
        labels = StaticLabels(weights=words, gradients=words, optimizer=words)
        return FixedMemory(static=static, words=labels, buffers=())


class Flags(framework_parts.Spelling):
    def title(self, job: Job) -> str:
        return f"Toy {job.config.framework_version}"

    def setting_flags(self, setting: Setting, job: Job) -> str:
        assert isinstance(setting, First)
        return f"--replay-first {setting.layers}" if setting.layers else ""

    def layout_flags(self, job: Job) -> str:
        return f"--ranks {job.num_gpus}"


def toy() -> framework_parts.FrameworkParts:
    return framework_parts.FrameworkParts(
        family=("toy",),
        shown=("toy",),
        settings=Settings(),
        jobs=Jobs(),
        memory=Memory(),
        spelling=Flags(),
        harness=framework_parts.HarnessRuns("toy"),
    )


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    registry.register("toy", "The Toy", toy)
    yield
    registry.parts_of.cache_clear()


ASKED = ("--model", "llama3.2_1b", "--gpus", "8xH100", "--framework", "toy")


def test_it_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    batch = ("--micro-batch-size", "6", "--global-batch-size", "48")
    assert main([*ASKED, *batch, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    fitting = [c["recompute"]["spec"] for c in report["candidates"] if c["fits"]]
    layers = [int(spec.partition(":")[2] or 0) for spec in fitting]
    assert len(report["candidates"]) == 17  # none, and the first 1 to 16 layers
    assert 0 < layers[0] < 16  # as many as it takes, and no more
    assert layers == sorted(layers)
    assert report["origin"]["job.framework"] == "given"
    assert report["candidates"][0]["flags"] == {"toy": f"--replay-first {layers[0]}"}


def test_its_page_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED]) == 0
    page = capsys.readouterr().out
    assert "Toy 1" in page
    assert "The Toy" in page
    assert main([*ASKED, "--recompute", "first:3", "--format", "flags"]) == 0
    assert capsys.readouterr().out == "--ranks 8 --replay-first 3\n"


def test_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--recompute", "first:17"]) == 2
    assert "first:17: the model has 16 layers; fewer" in capsys.readouterr().err
    assert main([*ASKED, "--recompute", "some"]) == 2
    assert "is no setting of toy; none or first:N" in capsys.readouterr().err
    assert main(["rules", "--framework", "toy"]) == 0
    assert "toy 1: 1 rule" in capsys.readouterr().out
