"""From a request to the commands of its trials, and to the machine that they run on."""

from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import default_framework
from advisor.job.job import Job
from harness.backends.command_flags import (
    OTHER,
    check_framework,
    check_template,
    variables,
    words,
)
from harness.planner.device import Machine, find_machine
from harness.planner.run_request import RunConfig
from harness.trial.run_plan import PlannedSetting
from harness.trial.trial import Backend, Command, Device

_OWN_KEYS: Final = ("command", "framework")


def check_request(config: RunConfig) -> None:
    """UserError where command and backend do not belong together, or the command is no template."""
    if config.backend is not Backend.COMMAND:
        given = next((key for key in _OWN_KEYS if getattr(config, key)), None)
        if given is not None:
            raise UserError(
                given,
                getattr(config, given),
                f"is for backend={Backend.COMMAND}",
                f"this is backend={config.backend}",
            )
        return
    framework = framework_of(config)
    check_framework(framework)
    check_template(config.command, framework)


def framework_of(config: RunConfig) -> str:
    """The framework given, else the job's."""
    return config.framework or str(config.job.get("framework", default_framework(None)))


def job_framework(config: RunConfig) -> Framework | None:
    """Whose settings are planned where a command of another framework than the job's runs; None
    where the job's own are."""
    if config.backend is not Backend.COMMAND or framework_of(config) == OTHER:
        return None
    return Framework(framework_of(config))


def machine_of(config: RunConfig) -> Machine:
    """The machine that trials run on. A command may start its ranks elsewhere (srun, ssh): with
    device=cuda the GPUs that are asked for are believed where there are fewer here."""
    if config.backend is not Backend.COMMAND or config.device != Device.CUDA:
        return find_machine(config.device)
    count, name = parse_gpus(config.gpus or str(config.experiment.get("gpus", "")))
    try:
        here = find_machine(config.device)
    except UserError:
        here = Machine(device=Device.CUDA)
    known = here.gpu_names[:1] if len(here.gpu_names) >= count else ()
    return here if known else Machine(device=Device.CUDA, gpu_names=(name,) * count)


def with_command(setting: PlannedSetting, config: RunConfig, job: Job, gpu: str) -> PlannedSetting:
    """A planned setting with the command that runs it; skipped where it cannot be put in words."""
    framework = framework_of(config)
    try:
        put_in = words(framework, setting.spec, job)
        wanted = variables(framework, setting.spec, job)
    except UserError as error:
        return setting if setting.skip else replace(setting, rank=None, skip=str(error))
    command = Command(
        template=config.command,
        framework=framework,
        words=put_in,
        gpu=gpu,
        variables=wanted,
    )
    return replace(setting, trial=replace(setting.trial, command=command))
