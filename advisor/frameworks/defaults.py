"""What most frameworks answer alike, so that an adapter says only what is its own."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.frameworks.own_options import refuse_options
from advisor.frameworks.protocols import (
    Decisions,
    JobChange,
    JobEvaluator,
    LayerSplits,
    Solved,
    no_file,
    not_rehearsed,
)
from advisor.job.job import Job, JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import LayerKind
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting


class AdapterDefaults:
    """A framework alone in its family that runs models of eager torch layers, shards by data
    parallelism, and reads no file. own_options: see own_options.refuse_options. command_dialect: in
    whose words the harness tells a command of it a setting, where these are not its own."""

    framework: str
    own_options: tuple[str, ...] = ()
    command_dialect: str = ""

    @property
    def family(self) -> tuple[str, ...]:
        """Itself alone: no other framework means the same by the same words."""
        return (self.framework,)

    @property
    def shown(self) -> tuple[str, ...]:
        """Itself."""
        return (self.framework,)

    def builds(self, model: ModelSpec) -> bool:
        """Layers that are written in plain torch."""
        return model.transformer_impl.is_eager

    def recipe_options(
        self, model: ModelSpec, precision: Precision, version: str
    ) -> Mapping[str, Any] | None:
        """A job starts from a script."""
        return None

    def for_recipe(self, framework: str | None) -> str:
        """Itself."""
        return self.framework

    def splits(self, config: JobConfig) -> LayerSplits:
        """There is no pipeline to split layers over."""
        return LayerSplits()

    def harness_words(self, job: Job) -> tuple[str, ...]:
        """The user's own command, which says where the setting goes."""
        command = "backend=command", "command=./train.sh {recompute}", "device=cuda"
        return (*command, f"framework={self.command_dialect or self.framework}")

    def harness_job(self, job: Job) -> Job:
        """As it is."""
        return job

    def unsaid(self, job: Job) -> str:
        """Nothing."""
        return ""

    def takes_flags(self, job: Job) -> bool:
        """It does."""
        return True

    def unverified(self, job: Job) -> str:
        """Nothing."""
        return ""

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """None."""
        return iter(())

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """The same in every release."""
        return shape

    def check_options(self, config: JobConfig) -> None:
        """Those that it has itself."""
        refuse_options(config, self.framework, self.own_options)

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """None that a user might try."""
        return ()

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Nothing is to be said of a setting."""
        return ()

    def remarks(self, job: Job) -> tuple[str, ...]:
        """Nothing is to be said of a job."""
        return ()

    def option_names(self) -> Mapping[str, Collection[str]]:
        """None that is listed."""
        return {}

    def assumed_flags(self, job: Job) -> str:
        """None."""
        return ""

    def config_file(self, setting: Setting, job: Job) -> str:
        """It reads none."""
        raise no_file(job.config.framework)

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """None."""
        return frozenset()

    def reductions(self, job: Job) -> int:
        """All of them."""
        return job.num_microbatches

    def graph_capture(self, job: Job) -> Capture | None:
        """None."""
        return None

    def graph_inputs(self, job: Job, shape: RankShape, layers: tuple[LayerKind, ...]) -> int:
        """None."""
        return 0

    def graph_buffers(self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
        """None."""
        return 0

    def rehearsed_by(self, number: int) -> str:
        """Nothing runs its layers alone."""
        raise not_rehearsed(self.framework, number)

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """No variables."""
        return ()

    def decisions(self, job: Job) -> Decisions | None:
        """The menu is all."""
        return None

    def solved(self, evaluator: JobEvaluator) -> Solved | None:
        """There is no solver."""
        return None
