"""Stand-ins for packages that only one program imports, and that its options do not come from."""

import sys
from abc import ABCMeta
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Anything(ABCMeta):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})

    def __call__(cls, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else cls


class _Absent(ModuleType):
    __path__: list[str] = []
    __getattr__ = _Anything.__getattr__


class Absentees:
    """Finds what a package imports and nobody else finds, except where it asks whether it is there
    (Bridge's import_utils)."""

    def __init__(self, package: str) -> None:
        self.folder = f"/{package}/"

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        asking = sys._getframe(1)
        while asking and "importlib" in asking.f_code.co_filename:
            asking = asking.f_back
        file = asking.f_code.co_filename if asking else ""
        asks = self.folder in file and "import_utils" not in file
        return ModuleSpec(name, self, is_package=True) if asks else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
