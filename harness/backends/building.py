"""The backends that run in the worker's own process, each a folder with its `build`."""

from importlib import import_module
from typing import Final, cast

from advisor.base.errors import UserError, either
from harness.measure.training_step import StepFactory
from harness.trial.trial import Backend

IN_PROCESS: Final = (Backend.NATIVE, Backend.MEGATRON_CORE)


def factory(backend: Backend) -> StepFactory:
    """The backend's `build`; UserError where this release has none."""
    if backend not in IN_PROCESS:
        relation = "cannot run in the harness's worker yet"
        raise UserError("backend", backend, relation, f"use {either(IN_PROCESS)}")
    return cast(StepFactory, import_module(f"harness.backends.{backend}").build)
