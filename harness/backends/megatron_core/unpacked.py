"""Releases of megatron-core whose wheels are unpacked beside the one that is installed.

pip takes Python 3.11 for too old for those from 0.17 on, which run on it all the same: without
triton, of which their kernels' decorators are enough here, and with a typing.override that does
nothing. MEGATRON_CORE names the folder of such a wheel; `make test` makes one in the virtual
environment, where it is found without being named.
"""

import os
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from advisor.base.errors import UserError

VARIABLE: Final = "MEGATRON_CORE"
_DIST_INFO: Final = "megatron_core-*.dist-info"
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
    """Use a folder with release `core` (major.minor), here and in processes that are started, where
    there is one, the environment does not say (empty: what is installed) and nothing of Megatron is
    imported yet."""
    if VARIABLE in os.environ or "megatron.core" in sys.modules:
        return
    for folder in _folders():
        if _release(folder) == core:
            os.environ[VARIABLE] = str(folder)
            _use(folder)
            return


def _folders() -> Iterator[Path]:
    """In the virtual environment."""
    yield from sorted(Path(sys.prefix).glob("megatron-core-*"), reverse=True)


def _release(folder: Path) -> str:
    """major.minor of the wheel in `folder`; empty where there is none."""
    for found in folder.glob(_DIST_INFO):
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
