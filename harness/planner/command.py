"""From a request to the commands of its trials."""

from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import default_framework
from advisor.job.job import Job
from harness.backends.command_flags import (
    OTHER,
    check_framework,
    check_template,
    placeholder_texts,
    variables,
)
from harness.planner.run_request import RunConfig
from harness.trial.run_plan import PlannedSetting
from harness.trial.trial import Backend, Command

_OWN_KEYS: Final = ("command", "framework")


def check_request(config: RunConfig) -> None:
    """UserError where command and backend do not belong together, or the command is no template."""
    if config.backend is not Backend.COMMAND:
        given = next((key for key in _OWN_KEYS if getattr(config, key)), None)
        if given is not None:
            raise UserError(
                given,
                getattr(config, given),
                f"needs backend={Backend.COMMAND}",
                f"backend is {config.backend}",
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


def with_command(setting: PlannedSetting, config: RunConfig, job: Job, gpu: str) -> PlannedSetting:
    """A planned setting with the command that runs it; skipped where it cannot be put in words."""
    framework = framework_of(config)
    try:
        put_in = placeholder_texts(framework, setting.spec, job)
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
