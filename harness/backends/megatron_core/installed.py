"""Whether megatron-core and Transformer Engine can be used here, said in one line."""

import importlib
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError, install_hint, missing_package
from advisor.frameworks.megatron.revisions import MEGATRON_CORE, Revision, resolve_revision
from advisor.frameworks.names import Framework
from advisor.job.job import Job
from harness.backends.megatron_core.unpacked import prefer

_EXTRA: Final = "harness,megatron"
_OLDEST: Final = (0, 13)
_NEEDED: Final = {"torch": "torch", "megatron": "megatron-core"}


def missing() -> str:
    """The packages that are not installed, separated by commas; empty where none is missing."""
    return ", ".join(package for name, package in _NEEDED.items() if find_spec(name) is None)


def require_megatron() -> None:
    """Raise UserError, naming the extra, where torch or megatron-core is not installed, or where
    Megatron is older than the oldest release that was tried."""
    lacking = missing()
    if lacking:
        raise missing_package("backend megatron_core", lacking, _EXTRA)
    release = version("megatron-core")
    if _number(release) < _OLDEST:
        raise UserError("megatron-core", release, "must be 0.13 or newer", install_hint(_EXTRA))


def under_installed(job: Job) -> tuple[Job, str]:
    """`job` under the megatron-core that is here, whatever its own framework and release are, and
    what that changes, in words; as it is where there is none. Its own release where that lies
    unpacked beside what is installed."""
    if missing():
        return job, ""
    asked = resolve_revision(job.config.framework, job.config.framework_version)
    prefer(asked.core)
    release = version("megatron-core")
    here = installed_revision().core
    config = replace(job.config, framework=Framework.MEGATRON_LM, framework_version=here)
    said = f"rules and predictions are those of the installed megatron-core {release}"
    told = "" if asked.core == here else f"; the job asks for {asked.label}"
    return replace(job, config=config), said + told


def installed_revision() -> Revision:
    """The release of megatron-core that is installed, or the newest known before it; the newest
    where none is."""
    if missing():
        return resolve_revision(Framework.MEGATRON_LM)
    number = _number(version("megatron-core"))
    return [one for one in MEGATRON_CORE if one.number <= number][-1]


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


@lru_cache(maxsize=1)
def has_transformer_engine() -> bool:
    """Whether Transformer Engine can be imported: an installation without its library cannot."""
    if find_spec("transformer_engine") is None:
        return False
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, RuntimeError, OSError):
        return False
    return True
