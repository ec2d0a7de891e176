"""Whether megatron-core and Transformer Engine can be used here, which releases lie unpacked next
to the installed one, and how Megatron is imported without a compiler. pip takes Python 3.11 for too
old for those from 0.17 on, which run on it all the same: without triton, of which their kernels'
decorators are enough here, and with a typing.override that does nothing. MEGATRON_CORE names the
folder of such a wheel; `make test` makes one in the virtual environment, where it is found without
being named.

Megatron hands some of its functions to torch.compile as it is imported, which loads TorchInductor:
as long as all the rest. cpu.py runs what is inside of them anyway."""

import functools
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from advisor.base.errors import UserError, install_hint, missing_package
from advisor.frameworks.megatron.revisions import MEGATRON_CORE, Revision, resolve_revision
from advisor.frameworks.names import Framework
from advisor.job.job import Job

VARIABLE: Final = "MEGATRON_CORE"
_ASKING: Final = (
    "torch._dynamo",
    "torch._inductor.runtime.hints",
    "torch._inductor.runtime.triton_compat",
)


def use_named() -> None:
    """Put the folder that the environment names before what is installed."""
    named = os.environ.get(VARIABLE)
    if named and not _release(Path(named)):
        raise UserError(VARIABLE, named, "must be a folder with an unpacked wheel of megatron-core")
    if named and named not in sys.path:
        _use(Path(named))


def prefer(core: str) -> None:
    """Use a folder of the virtual environment with release `core` (major.minor), here and in
    processes that are started, where there is one, the environment does not say (empty: what is
    installed) and nothing of Megatron is imported yet."""
    if VARIABLE in os.environ or "megatron.core" in sys.modules:
        return
    for folder in sorted(Path(sys.prefix).glob("megatron-core-*"), reverse=True):
        if _release(folder) == core:
            os.environ[VARIABLE] = str(folder)
            _use(folder)
            return


def _release(folder: Path) -> str:
    """major.minor of the wheel in `folder`; empty where there is none."""
    for found in folder.glob("megatron_core-*.dist-info"):
        return ".".join(found.name.removeprefix("megatron_core-").split(".")[:2])
    return ""


def _use(folder: Path) -> None:
    if find_spec("torch") is None:
        return  # told where Megatron is asked for
    sys.path.insert(0, str(folder))
    if find_spec("triton") is None:
        for name in _ASKING:  # torch has to find triton absent before it seems to be there
            import_module(name)
        triton, language = _Decorators("triton"), _Decorators("triton.language")
        vars(triton).update(language=language, __version__="0.0.0")
        vars(language).update(constexpr=object)
        sys.modules |= {"triton": triton, "triton.language": language}
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]


class _Decorators(ModuleType):
    """A module in which every name is a decorator that changes nothing, with or without options."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unchanged


def _unchanged(*given: Any, **options: Any) -> Any:
    if len(given) == 1 and callable(given[0]) and not options:
        return given[0]
    return lambda function: function


def _as_it_is(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    """In place of torch.compile: marked as its result is, and run as written."""
    if function is None:
        return _as_it_is

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    run._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
    return run


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Modules of Megatron that are imported inside are not compiled, now or later."""
    import torch

    with patch.object(torch, "compile", _as_it_is):
        yield


_EXTRA: Final = "harness,megatron"
_OLDEST: Final = (0, 13)
_NEEDED: Final = {"torch": "torch", "megatron": "megatron-core"}


def missing() -> str:
    """The packages that are not installed, separated by commas; empty where none is missing."""
    return ", ".join(package for name, package in _NEEDED.items() if find_spec(name) is None)


def require_megatron() -> None:
    """UserError, naming the extra, without torch or a megatron-core of 0.13 or newer."""
    lacking = missing()
    if lacking:
        raise missing_package("backend megatron_core", lacking, _EXTRA)
    release = version("megatron-core")
    if _number(release) < _OLDEST:
        raise UserError("megatron-core", release, "must be 0.13 or newer", install_hint(_EXTRA))


def under_installed(job: Job) -> tuple[Job, str]:
    """`job` under the megatron-core that is here, whatever its own framework and release are, and
    what that changes, in words; as it is where there is none. Its own release where that lies
    unpacked next to what is installed."""
    if missing():
        return job, ""
    asked = resolve_revision(job.config.framework, job.config.framework_version)
    prefer(asked.core)
    release = version("megatron-core")
    here = installed_revision().core
    config = replace(job.config, framework=Framework.MEGATRON_LM, framework_version=here)
    said = f"rules and predictions are those of the installed megatron-core {release}"
    other = "" if asked.core == here else f"; the job asks for {asked.label}"
    return replace(job, config=config), said + other


def installed_revision() -> Revision:
    """The release of megatron-core that is installed, or the newest known before it, or of all."""
    if missing():
        return resolve_revision(Framework.MEGATRON_LM)
    number = _number(version("megatron-core"))
    return [one for one in MEGATRON_CORE if one.number <= number][-1]


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


@functools.cache
def has_transformer_engine() -> bool:
    """Whether Transformer Engine can be imported: an installation without its library cannot."""
    if find_spec("transformer_engine") is None:
        return False
    try:
        import_module("transformer_engine.pytorch")
    except (ImportError, RuntimeError, OSError):
        return False
    return True
