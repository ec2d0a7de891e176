"""Identity before numbers: the workload decides which golden a result belongs to; the environment,
whether the two may be compared. What is under test (git commit) or differs from run to run (host,
date, clocks of the moment, process ids) is recorded and never compared."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.fields import read_record, split_key_values
from harness.base.collections import Scalar, flatten
from harness.trial.result import TrialResult
from harness.trial.trial import Workload, world_size

GPUS: Final = "gpus"
CPU: Final = "cpu"
_SOFTWARE: Final = "software."
VARIABLES: Final = "variables."
_COMPARED: Final = re.compile(
    r"software\.(torch|cuda|cudnn|nccl|transformer_engine|deterministic|matmul_precision)"
    r"|gpus\[0\]\.(driver|power_limit_watts|ecc_enabled|mig_enabled)"
    r"|variables\.\w+"
    r"|source\.framework"
)
_GPU_NAME: Final = re.compile(r"gpus\[0\]\.(torch_)?name")


class EnvironmentDifference(Struct, frozen=True, kw_only=True):
    """One thing that is not as in the golden; None where a side does not have it."""

    name: str
    golden: Scalar
    new: Scalar

    def __str__(self) -> str:
        return f"{self.name}  {shown(self.golden)} -> {shown(self.new)}"


class MeasuredPlace(Struct, frozen=True, kw_only=True):
    """Where numbers come from: ``32xH100-SXM-80GB`` or ``cpu``, and the flat environment."""

    gpus: str
    environment: dict[str, Scalar]

    @property
    def complete(self) -> bool:
        """Whether a whole fingerprint was taken, so that what is missing was not set."""
        return any(key.startswith(_SOFTWARE) for key in self.environment)


def workload_key(workload: Mapping[str, Any]) -> str:
    """`Workload.key` of a workload as JSON; of one that is known in part, a hash of that part."""
    try:
        return read_record(Workload, workload, "workload").key()
    except UserError:
        text = json.dumps(workload, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def workload_label(workload: Mapping[str, Any]) -> str:
    """`Workload.label` of a workload as JSON, or flat, of which parts may be missing."""
    flat = flatten(workload)
    tp, pp = (flat.get(f"layout.{k}_model_parallel_size", 1) for k in ("tensor", "pipeline"))
    words = (flat.get("model.name", "?"), f"tp{tp}pp{pp}", flat.get("recompute"))
    return "/".join(str(word) for word in words if word is not None)


def place_of(result: TrialResult) -> MeasuredPlace:
    """Where a result was measured: GPUs of the layout, type by its full name. A process that died
    too early to leave a fingerprint still ran under its trial's variables."""
    environment, workload = result.environment, result.trial["workload"]
    if not environment:
        environment = {"variables": split_key_values(map(str, result.trial.get("variables", ())))}
    flat = flatten(environment)
    if str(workload.get("device", "cuda")) == CPU:
        return MeasuredPlace(gpus=CPU, environment=flat)
    names = [str(value) for key, value in flat.items() if _GPU_NAME.fullmatch(key)]
    return MeasuredPlace(
        gpus=f"{world_size(workload)}x{gpu_type(names[0]) if names else '?'}", environment=flat
    )


def gpu_type(name: str) -> str:
    """The full name of a GPU type; as it was given where the type is not known."""
    from advisor.hardware.catalogue import resolve_gpu

    try:
        return resolve_gpu(name)
    except UserError:
        return name


def compared(environment: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The part of a flat environment that both sides must share; any CPU will do."""
    return {key: value for key, value in environment.items() if _COMPARED.fullmatch(key)}


def differences(golden: MeasuredPlace, new: MeasuredPlace) -> tuple[EnvironmentDifference, ...]:
    """What differs between two environments; the GPUs come first. A golden that records its
    software records everything, and what it lacks was not set. One that does not (a published
    number) can only differ in what it records; see `unrecorded`."""
    old, now = (compared(place.environment) for place in (golden, new))
    names = sorted(old.keys() | now.keys() if golden.complete else old.keys())
    here = EnvironmentDifference(name=GPUS, golden=golden.gpus, new=new.gpus)
    found = [EnvironmentDifference(name=k, golden=old.get(k), new=now.get(k)) for k in names]
    return tuple(one for one in (here, *found) if one.golden != one.new)


def unrecorded(golden: MeasuredPlace, new: MeasuredPlace) -> tuple[str, ...]:
    """What the result records of its environment and an incomplete golden does not."""
    if golden.complete:
        return ()
    known = compared(new.environment).keys() - golden.environment.keys()
    return tuple(sorted(key.removeprefix(_SOFTWARE) for key in known))


def shown(value: Scalar) -> str:
    """A value as a reader sees it."""
    return "(none)" if value is None else str(value)
