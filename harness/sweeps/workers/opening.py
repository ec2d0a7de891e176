"""Opens the study of a sweep: made by the first worker, joined by the others."""

import hashlib
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError, require
from harness.planner.launcher_options import Sampler, SweepOptions
from harness.sweeps.history import expectations
from harness.sweeps.space import Space
from harness.sweeps.workers.claims import others_at_work
from harness.sweeps.workers.ledger import METRICS, Ledger
from harness.sweeps.workers.storages import JOURNAL, Storage, open_storage
from harness.sweeps.workers.study import Study
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler

_BROKEN: Final = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, ArithmeticError, RecursionError),
)
"""What Optuna raises on a journal whose lines are not those that it wrote."""
_QUESTION: Final = "question"
_WORKERS: Final = "workers"


def open_study(
    folder: RunFolder,
    space: Space,
    options: SweepOptions,
    device_name: str,
    retry: frozenset[TrialStatus] = frozenset(),
    say: Callable[[str], None] = lambda _: None,
) -> Study:
    """This worker's study, named as the folder. UserError where Optuna is not installed, and where
    the storage cannot be opened or holds another sweep of that name."""
    optuna: Any = require("optuna", "harness sweep", "harness,sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    folder.path.mkdir(parents=True, exist_ok=True)
    storage, study = _opened(folder, space, options, device_name)
    return Study(
        storage=storage,
        ledger=Ledger(study, expectations(space), space.choices(), space.room_bytes),
        space=space,
        folder=folder,
        timeout_seconds=options.worker_timeout_seconds,
        retry=retry,
        say=say,
    )


def _opened(
    folder: RunFolder, space: Space, options: SweepOptions, device_name: str
) -> "tuple[Storage, optuna.Study]":
    def opened() -> "tuple[Storage, optuna.Study]":
        storage = open_storage(options.storage, folder.path, folder.path.name)
        return storage, _load(storage, folder.path.name, space, options, device_name)

    if options.storage:
        return opened()
    try:
        return opened()
    except _BROKEN as error:
        journal = folder.path / JOURNAL
        if isinstance(error, UserError) or others_at_work(folder.path):
            raise
        os.replace(journal, journal.with_suffix(".broken"))
        return opened()


def _load(
    storage: Storage, name: str, space: Space, options: SweepOptions, device_name: str
) -> "optuna.Study":
    import optuna

    with storage.turn():
        study = optuna.create_study(
            study_name=name,
            storage=storage.optuna,
            directions=["minimize", "minimize"],
            load_if_exists=True,
        )
        known = study.user_attrs
        question = {"choices": space.choices(), _QUESTION: _digest(space), "device": device_name}
        if _QUESTION not in known:
            study.set_metric_names(list(METRICS))
            for key, value in question.items():
                study.set_user_attr(key, value)
        elif any(known.get(key) != value for key, value in question.items()):
            on = f"holds a sweep on {known.get('device')}"
            relation = f"{on} with another search space, measurement or device"
            hint = "give name=ANOTHER, or repeat the request of that sweep"
            raise UserError("name", name, relation, hint)
        before = int(known.get(_WORKERS, 0))
        study.set_user_attr(_WORKERS, before + 1)
    study.sampler = _sampler(options, before)
    return study


def _digest(space: Space) -> str:
    """Of what is run and how it is measured; for how long at most may change."""
    trials = [planned.trial for planned in space.planned.values()]
    how = {
        (replace(one.measurement, timeout_seconds=1.0), one.variables, one.memory_bytes)
        for one in trials
    }
    words = [*sorted(trial.workload.key() for trial in trials), *sorted(map(repr, how))]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]


def _sampler(options: SweepOptions, before: int) -> "BaseSampler":
    """`before` workers came earlier: each draws other numbers."""
    from optuna import samplers

    seed, first = options.seed + before, options.first
    tpe = {"n_startup_trials": max(1, first), "multivariate": True, "constant_liar": True}
    kinds: dict[Sampler, tuple[Callable[..., BaseSampler], dict[str, Any]]] = {
        Sampler.TPE: (samplers.TPESampler, tpe),
        Sampler.NSGA2: (samplers.NSGAIISampler, {"population_size": max(2, first)}),
        Sampler.BRUTE_FORCE: (samplers.BruteForceSampler, {}),
    }
    kind, given = kinds.get(options.sampler, (samplers.RandomSampler, {}))
    return kind(seed=seed, **given)
