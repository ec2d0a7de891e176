"""The fastest setting of a few jobs, of all that a framework can be told: those that send
activations to the host are among them, which a search of layouts leaves out."""

from collections.abc import Iterable

from advisor.frameworks.part_types import Decisions
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.plan.recompute_plan import Setting
from advisor.search.optimum.best_first import BestFirst, Branch, Found
from advisor.search.optimum.stage_splits import StageSplits
from advisor.search.optimum.stage_table import StageTable


def fastest_beyond_the_menu(jobs: Iterable[Job], calibration: Calibration, below: float) -> Found:
    """The fastest that fits and takes less than `below` seconds; nothing where nothing does, or
    where the menu is all. Jobs with as many layers in a chunk are looked at with the same settings.
    """
    branches: list[Branch] = []
    known: dict[int, Decisions | None] = {}
    for job in dict.fromkeys(jobs):
        layers = most_layers_of_chunk(job.model, job.layout)
        if layers not in known:
            known[layers] = parts_of(job.config.framework).optimum.decisions(job)
        decisions = known[layers]
        if decisions is not None:
            table = StageTable(job, calibration, StageSplits(job, moves=False))
            branches.append(Branch(table, table, decisions))

    def is_legal(setting: Setting, job: Job) -> bool:
        return not parts_of(job.config.framework).settings.check(setting, job)

    return BestFirst(branches, calibration, is_legal, below).run()
