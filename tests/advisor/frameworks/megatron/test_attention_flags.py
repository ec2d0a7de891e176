"""Flags of latent attention, windows, sinks and multi-token prediction, verbatim."""

from types import SimpleNamespace

import pytest

from advisor.frameworks.megatron.flags import flags_of, override, recipe_values
from advisor.frameworks.megatron.options.table import sections
from advisor.frameworks.megatron.raw import job_values
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from tests.advisor.tables import tables

TABLES = tables(__file__)


@pytest.mark.parametrize(
    ("name", "flags", "overrides"),
    TABLES["test_flags"],
)
def test_flags(name: str, flags: str, overrides: str) -> None:
    model = load_model(name)
    config = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=1)
    job = SimpleNamespace(model=model, layout=ParallelLayout(), config=config)
    revision = resolve_revision(Framework.MEGATRON_LM)
    values = job_values(job, revision)
    assert " ".join(flags_of(sections("Attention"), values, job, revision)) == flags
    found = recipe_values(sections("Attention"), values, job, revision)
    assert " ".join(override(row.name, row, value) for row, value in found) == overrides
