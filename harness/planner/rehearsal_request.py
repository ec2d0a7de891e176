"""The command line of `harness rehearse` as a request to the advisor, and what to rehearse."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.configuration import Group, config_names, load_config
from advisor.base.errors import UserError
from advisor.base.fields import parse_all, show
from advisor.base.numbers import whole
from advisor.base.units import nearest_names
from advisor.request.request import Request
from harness.trial.trial import Device

_DEGREES: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_PART: Final = re.compile(r"([a-z]+)([0-9]{1,9})")
_SETTING: Final = re.compile(r"[\"']?(none|selective|full|op:)")
_PLAIN: Final = ("device", "name", "runs", "steps")
_OWN_KEYS: Final = ("model", "gpus", "layout", "stage", "recompute", *_PLAIN)
_GROUPS: Final = ("model.", "layout.", "job.")


class Asked(Struct, frozen=True, kw_only=True):
    """One `harness rehearse`: the advisor's request, and which ranks are to be run, on what.

    stage: a number, or None for all. steps: timed on a real device.
    """

    request: Request
    recompute: tuple[str, ...]
    stage: int | None = None
    device: str = Device.FAKE
    name: str = ""
    runs: str = "runs"
    steps: int = 3

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError("steps", self.steps, "must be at least 1")


def parse_asked(pairs: Sequence[str], config_dir: Path | None = None) -> Asked:
    """KEY=VALUE arguments; UserError with the nearest key for one that is not known."""
    given: dict[str, str] = {}
    overrides = []
    for pair in pairs:
        key, found, value = pair.partition("=")
        if key.startswith(_GROUPS):
            overrides.append(pair)
        elif key in _OWN_KEYS and found:
            given[key] = value
        else:
            raise UserError(
                key, value or "(nothing)", "is not a known key", nearest_names(key, _OWN_KEYS)
            )
    for key, example in (("model", "llama3_70b"), ("gpus", "32xH100")):
        if not given.get(key):
            raise UserError(key, "(none)", "is missing", f"write e.g. {key}={example}")
    request = Request(
        model=given["model"],
        gpus=given["gpus"],
        overrides=tuple(overrides),
        config_dir=config_dir,
        **parse_layout(given.get("layout", "")),
    )
    return Asked(
        request=request,
        recompute=_settings(given.get("recompute", "none"), config_dir),
        stage=_stage(given.get("stage", "all")),
        **parse_all(Asked, {key: given[key] for key in _PLAIN if key in given}, ""),
    )


def parse_layout(text: str) -> dict[str, Any]:
    """``tp4_pp4_vpp5_cp2_ep8_sp`` as fields of a request; ``nosp`` turns sequence parallelism off.

    What is not named is the preset's, or 1; data parallelism is what the GPUs leave.
    """
    found: dict[str, Any] = {}
    for part in text.split("_") if text else ():
        match = _PART.fullmatch(part)
        if part in ("sp", "nosp"):
            found["sequence_parallel"] = part == "sp"
        elif match and match[1] in _DEGREES and int(match[2]) > 0:
            found[_DEGREES[match[1]]] = int(match[2])
        else:
            raise UserError(
                "layout",
                text,
                f"{part or '(nothing)'} is not a degree",
                "write e.g. tp4_pp4_vpp5_cp2_ep8_sp",
            )
    return found


def _stage(text: str) -> int | None:
    if text == "all":
        return None
    number = whole(text)
    if number is None:
        raise UserError("stage", show(text), "must be all or a number", "write stage=0")
    return number


def _settings(text: str, config_dir: Path | None) -> tuple[str, ...]:
    """``[none,selective:core_attn,mlp]``, one setting, or the name of a file of settings."""
    if text in config_names(Group.RECOMPUTE, config_dir) and text != "none":
        document = load_config(Group.RECOMPUTE, text, config_dir, "recompute")
        listed = document.values.get("settings")
        if not isinstance(listed, list) or not listed:
            raise UserError("recompute", text, "names no setting", "write e.g. [none,full:block:4]")
        return tuple(str(setting) for setting in listed)
    found: list[str] = []
    for word in text.removeprefix("[").removesuffix("]").split(","):
        word = word.strip()
        if found and not _SETTING.match(word):  # a module of the setting before it
            found[-1] += f",{word}"
        elif word:
            found.append(word)
    settings = tuple(dict.fromkeys(setting.strip("\"'") for setting in found))
    if not settings:
        raise UserError("recompute", text, "is empty", "write e.g. [none,full:block:4]")
    return settings
