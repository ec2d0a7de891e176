"""From a request to a plan: the job, the best settings, each trial's prediction and command."""

import os
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import counted, human_bytes, parse_gpus
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import default_framework, parts_of
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job
from advisor.layers.parameters import parameter_count
from advisor.plan.recompute_plan import Setting
from advisor.request.differences import bare_experiment
from advisor.request.given import Given
from advisor.request.recipes import Experiment, named_experiment, read_experiment
from advisor.request.resolve import Resolution, resolve_given
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import rank
from harness.backends import command_flags, jobs
from harness.planner.device import Machine, find_machine
from harness.planner.forecast import differences, predict
from harness.planner.launcher_options import LauncherKind
from harness.planner.run_request import RunConfig
from harness.trial.trial import (
    Backend,
    Device,
    PlannedSetting,
    RunPlan,
    TrainingCommand,
    Trial,
    variables_of_trials,
)

_HOST_BYTES_PER_PARAMETER: Final = 16  # weights, gradients, two moments, in fp32


class Target(Struct, frozen=True, kw_only=True):
    """The job on the GPU whose times are predicted, how it came about, what was assumed of it."""

    resolution: Resolution
    job: Job
    calibration: Calibration
    assumptions: tuple[str, ...]


def machine_of(config: RunConfig, *, dry_run: bool = False) -> Machine:
    """The machine that trials run on. What a cluster will give, and what a command with device=cuda
    uses where there are fewer GPUs here (it may start its ranks by srun or ssh), is believed as it
    is asked for. So is, where nothing will run, what is asked for by gpus= or device=cuda, and the
    job's own where this machine cannot run it."""
    cluster = config.launcher.kind is LauncherKind.SLURM and config.device != Device.CPU
    elsewhere = config.backend is Backend.COMMAND and config.device == Device.CUDA
    if cluster or (dry_run and _is_for_another(config)):
        return _as_asked(config)
    if not elsewhere:
        here = find_machine(config.device)
        return replace(here, gpu_names=here.gpu_names * config.launcher.nnodes)
    asked = _as_asked(config)
    with suppress(UserError):
        here = find_machine(config.device)
        if len(here.gpu_names) >= len(asked.gpu_names):
            return here
    return asked


def _as_asked(config: RunConfig) -> Machine:
    count, name = parse_gpus(config.gpus or _experiment(config).gpus)
    return Machine(device=Device.CUDA, gpu_names=(name,) * count)


def _is_for_another(config: RunConfig) -> bool:
    """Whether a plan is not meant for this machine, or cannot be."""
    if config.device == Device.CPU:
        return False
    if config.gpus or config.device == Device.CUDA:
        return True
    try:
        find_target(config, find_machine(config.device))
    except UserError:
        return True
    return False


def make_plan(config: RunConfig, machine: Machine) -> RunPlan:
    """Trials of the settings asked for, else of the advisor's best; each with its prediction.
    Raises UserError where the job is illegal or this machine cannot hold it."""
    target = find_target(config, machine)
    job = target.job
    framework = job.config.framework
    own = tuple(text for text in config.recompute.settings if jobs.is_backends_own(text, framework))
    settings, skipped = choose(config, target)
    run_as = jobs.as_run(job, bare_trial(config, machine, job, "none").workload)
    evaluator = Evaluator(run_as, target.calibration)
    ranked = rank([evaluator.evaluate(setting) for setting in settings])
    planned = []
    for one in ranked:
        bare = bare_trial(config, machine, job, one.evaluation.setting.spec)
        trial = replace(bare, prediction=predict(bare.workload, one.evaluation.simulated))
        planned.append(PlannedSetting(trial=trial, rank=one.rank))
    for setting, reason in skipped.items():
        bare = bare_trial(config, machine, job, setting.spec)
        planned.append(PlannedSetting(trial=bare, skip=reason))
    for spec in own:
        bare = bare_trial(config, machine, job, spec)
        planned.append(PlannedSetting(trial=replace(bare, prediction=predict(bare.workload))))
    if config.command:
        gpu = machine.gpu_names[0] if machine.gpu_names else ""
        planned = [with_command(one, config, job, gpu) for one in planned]
    return RunPlan(
        experiment=config.experiment_name,
        device_name=device_name(job, machine.device),
        settings=tuple(planned),
        assumptions=(*target.assumptions, *differences(job, run_as, config.backend)),
    )


def choose(config: RunConfig, target: Target) -> tuple[tuple[Setting, ...], dict[Setting, str]]:
    """Settings to run, and those asked for that a rule forbids, with the reason."""
    job = target.job
    stack = parts_of(job.config.framework)
    if not config.recompute.settings:
        legal = stack.settings.candidates(job)
        evaluator = Evaluator(job, target.calibration)
        of = {setting.spec: setting for setting in legal}
        best = rank([evaluator.evaluate(setting) for setting in legal])[: config.recompute.top]
        return tuple(of[candidate.evaluation.setting.spec] for candidate in best), {}
    framework = job.config.framework
    named = (
        text for text in config.recompute.settings if not jobs.is_backends_own(text, framework)
    )
    asked = tuple(dict.fromkeys(stack.settings.parse(text) for text in named))
    refused = {setting: stack.settings.check(setting, job) for setting in asked}
    reasons = {setting: found[0].reason for setting, found in refused.items() if found}
    if reasons and len(reasons) == len(config.recompute.settings):
        (first, *_) = next(iter(refused.values()))
        relation = first.reason.rstrip(".")
        raise UserError("recompute.settings", first.setting.spec, relation, first.fix.rstrip("."))
    return tuple(setting for setting in asked if setting not in reasons), reasons


def find_target(config: RunConfig, machine: Machine) -> Target:
    """The job of `config` on `machine`: the recipe, what is laid over it, the GPU at hand."""
    experiment = _experiment(config)
    num_gpus, gpu_type = parse_gpus(config.gpus or experiment.gpus)
    gpu, assumptions = _gpu(config, machine, gpu_type)
    # a command may be of another framework than the job, whose settings are then planned
    of_command = config.backend is Backend.COMMAND and framework_of(config) != command_flags.OTHER
    own = {"framework": Framework(framework_of(config))} if of_command else {}
    given = Given(
        model=experiment.model,
        gpus=f"{num_gpus}x{gpu.name}",
        model_fields=config.model,
        layout_fields=config.layout,
        job_fields=config.job | own,
        recipe=experiment,
        config_dir=config.config_dir,
    )
    resolution = resolve_given(given)
    jobs.check_layers(config.backend, resolution.config.framework)
    assert resolution.layout is not None, "a recipe has a layout"
    job = resolution.job(resolution.layout)
    _check_room(job, machine)
    calibration = load_calibration(gpu, config.config_dir)
    return Target(resolution=resolution, job=job, calibration=calibration, assumptions=assumptions)


def _experiment(config: RunConfig) -> Experiment:
    """The recipe that is named, else the experiment that was composed."""
    if config.recipe:
        return named_experiment(config.recipe, config.config_dir)
    if config.preset:
        if config.gpus is None:
            needed = f"must be given with model={config.preset}"
            raise UserError("gpus", "(none)", needed, "e.g. gpus=8xH100")
        return bare_experiment(config.preset, config.gpus)
    name = config.experiment_name
    return read_experiment(name, config.experiment, f"experiment {name}")


def _gpu(config: RunConfig, machine: Machine, gpu_type: str) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU that predictions are for: the one at hand where its type is known."""
    wanted = load_gpu(gpu_type, config.config_dir)
    if machine.device is Device.CPU:
        order = f"Settings are in the advisor's order for {wanted.name}"
        return wanted, (f"CPU times are shown but not judged. {order}",)
    name = machine.gpu_names[0]
    try:
        found = load_gpu(name, config.config_dir)
    except UserError:
        return wanted, (f"{name} is not in configs/hardware: predictions are for {wanted.name}",)
    if found.name == wanted.name:
        return found, ()
    which = f"predictions are for {found.name}, not for {wanted.name}"
    return found, (f"this GPU is {found.name}: {which}",)


def _check_room(job: Job, machine: Machine) -> None:
    """Refuse what cannot run here before anything is built."""
    if machine.device is Device.CUDA:
        here = len(machine.gpu_names)
        if job.num_gpus > here:
            relation = f"this machine has {counted(here, 'GPU')}"
            hint = f"e.g. gpus={here}x{job.gpu.name}, with a layout that fits"
            raise UserError("gpus", job.num_gpus, relation, hint)
        return
    needed = parameter_count(job.model).total * _HOST_BYTES_PER_PARAMETER
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > room:
        what = f"{job.model.name} needs {human_bytes(needed)} for weights, gradients and optimizer"
        relation = f"{what}, but this machine has {human_bytes(room)}"
        hint = "use experiment=tiny_cpu, or cut the model with model.num_layers=2"
        raise UserError("device", Device.CPU, relation, hint)


def device_name(job: Job, device: Device) -> str:
    """The GPU's type, or ``cpu``."""
    return job.gpu.name if device is Device.CUDA else "cpu"


def bare_trial(config: RunConfig, machine: Machine, job: Job, spec: str) -> Trial:
    """The trial of a setting, with no prediction."""
    workload = jobs.workload_of_job(job, spec, config.backend, machine.device)
    return Trial(
        workload=workload,
        measurement=config.measure,
        variables=variables_of_trials(job.config, machine.device, os.environ),
        as_run=jobs.differences_as_run(jobs.as_run(job, workload), workload),
    )


def check_request(config: RunConfig) -> None:
    """UserError where command and backend do not belong together, or the command is no template."""
    if config.backend is not Backend.COMMAND:
        given = next((key for key in ("command", "framework") if getattr(config, key)), None)
        if given is not None:
            relation = f"needs backend={Backend.COMMAND}"
            raise UserError(given, getattr(config, given), relation, f"backend is {config.backend}")
        return
    framework = framework_of(config)
    command_flags.check_framework(framework)
    command_flags.check_template(config.command, framework)


def framework_of(config: RunConfig) -> str:
    """The framework given, else the job's."""
    return config.framework or str(config.job.get("framework", default_framework(None)))


def with_command(setting: PlannedSetting, config: RunConfig, job: Job, gpu: str) -> PlannedSetting:
    """A planned setting with the command that runs it; skipped where it cannot be put in words."""
    framework = framework_of(config)
    try:
        put_in = command_flags.placeholder_texts(framework, setting.spec, job)
        wanted = command_flags.variables(framework, setting.spec, job)
    except UserError as error:
        return setting if setting.skip else replace(setting, rank=None, skip=str(error))
    command = TrainingCommand(
        template=config.command, framework=framework, words=put_in, gpu=gpu, variables=wanted
    )
    return replace(setting, trial=replace(setting.trial, command=command))
