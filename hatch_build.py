"""A step of the wheel's build: configs/ compiled (advisor/base/configuration.py)."""

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledPresets(BuildHookInterface[Any]):
    """An editable install reads the YAML files of its checkout, and needs none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file outside the sources, and name it among what the wheel holds."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from advisor.base.configuration import FILE, compile_configs

        made = Path(mkdtemp()) / FILE.name
        made.write_bytes(compile_configs(Path(self.root) / "configs"))
        build_data["force_include"][str(made)] = f"advisor/configs/{FILE.name}"
