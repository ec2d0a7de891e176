"""Jobs of the PyTorch stacks, resolved as the command line resolves them."""

from typing import Any

from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.request.request import Request
from advisor.request.resolve import resolve
from tests.advisor.jobs import batches


def stack_job(framework: str, gpus: str = "8xH100", **options: Any) -> tuple[FrameworkParts, Job]:
    """Llama-3 8B (or `model`) with sequences of 8192 on `gpus`, and the stack that runs it."""
    values: dict[str, Any] = {"model": "llama3_8b", **batches(8192, 2, 16), **options}
    resolution = resolve(Request(gpus=gpus, framework=framework, **values))
    assert resolution.layout is not None
    job = resolution.job(resolution.layout)
    return parts_of(job.config.framework), job
