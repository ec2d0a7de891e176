"""Against a real Slurm: what is submitted ends in a final status, whatever happens to it."""

import os
import re
import signal
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.cli.main import main
from harness.execution.launchers.slurm.runner import SlurmRunner
from harness.execution.runner import UNMEASURED
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.store import RunFolder, TrialFolder
from harness.trial.trial import RunPlan
from tests.harness.drive import until
from tests.harness.execution.launchers.slurm.cluster import Cluster

MakePlan = Callable[..., RunPlan]
MakeRunner = Callable[..., SlurmRunner]
Faults = Callable[[Mapping[str, str]], None]


def names_of(plan: RunPlan) -> list[str]:
    return [trial.name for _, trial in plan.trials()]


def job_of(runner: SlurmRunner, name: str) -> str:
    job = runner.folder.trial(name).job()
    return job.job


def started(runner: SlurmRunner, name: str) -> bool:
    """Whether the trial hangs as it was told."""
    return (runner.folder.trial(name).path / "hangs").exists()


def node_task(job: str) -> int:
    """The process of a job's node 0, by the environment that Slurm gave it."""
    array, _, task = job.partition("_")
    wanted = {f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}", "SLURM_PROCID=0"}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text().split("\0")
                variables = set((entry / "environ").read_text().split("\0"))
            except OSError:
                continue
            if "submitit.core._submit" in words and wanted <= variables:
                return int(entry.name)
    raise AssertionError(f"no process of job {job}")


def message(result: TrialResult) -> str:
    return result.evidence.message


def test_a_preempted_trial_starts_anew(cluster, make_plan, make_slurm_runner, faults) -> None:
    plan = make_plan(2)
    names = names_of(plan)
    faults({"default": "hang"})
    runner = make_slurm_runner(plan, wait=True)
    replace(runner, options=replace(runner.options, wait=False)).run()
    until(lambda: all(started(runner, name) for name in names))
    faults({})
    cluster.ask(
        "sbatch",
        "--partition=urgent",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    )
    results = runner.run()
    assert [result.status for result in results.values()] == [TrialStatus.OK] * 2
    for name in names:
        shown = cluster.ask("scontrol", "show", "job", "--oneliner", job_of(runner, name))
        assert " Restarts=1 " in shown


@pytest.mark.parametrize("max_requeues", [0, 3])
def test_a_trial_whose_node_is_lost_starts_anew_where_it_may(
    cluster: Cluster,
    make_plan: MakePlan,
    make_slurm_runner: MakeRunner,
    faults: Faults,
    max_requeues: int,
) -> None:
    plan = make_plan(1)
    (name,) = names_of(plan)
    faults({"default": "hang"})
    runner = make_slurm_runner(plan, max_requeues=max_requeues)
    runner.run()
    until(lambda: started(runner, name))
    faults({})
    shown = cluster.ask("scontrol", "show", "job", "--oneliner", job_of(runner, name))
    node = shown.partition(" NodeList=")[2].partition(" ")[0]
    cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
    try:
        (result,) = make_slurm_runner(plan, wait=True, max_requeues=max_requeues).run().values()
    finally:
        cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    if max_requeues:
        assert result.status is TrialStatus.OK
    else:
        assert result.status is TrialStatus.FAILED
        assert message(result) == f"Slurm job {job_of(runner, name)} lost its node on {node}"
    cluster.wait_for_nodes()


def test_the_notice_before_the_time_limit_is_a_timeout(
    cluster: Cluster, make_plan: MakePlan, make_slurm_runner: MakeRunner, faults: Faults
) -> None:
    plan = make_plan(1)
    (name,) = names_of(plan)
    faults({"default": "hang"})
    runner = make_slurm_runner(plan, time="1:00")
    runner.run()
    until(lambda: started(runner, name))
    cluster.ask("scancel", "--signal=USR2", job_of(runner, name))
    (result,) = make_slurm_runner(plan, wait=True).run().values()
    assert result.status is TrialStatus.TIMEOUT
    assert message(result) == "ended shortly before Slurm's time limit of 1 min"


def jobs_in_the_queue(cluster: Cluster) -> set[str]:
    return set(cluster.ask("squeue", "-h", "--format=%F").split())


def test_a_submission_that_was_cut_off_is_undone_and_made_again(
    cluster: Cluster,
    make_plan: MakePlan,
    make_slurm_runner: MakeRunner,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(2)
    faults({"default": "hang"})
    runner = make_slurm_runner(plan)
    others = jobs_in_the_queue(cluster)  # of the test before, still ending on a busy machine

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrialFolder, "write_job", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run()
    (lost,) = jobs_in_the_queue(cluster) - others
    faults({})
    results = make_slurm_runner(plan, wait=True).run()
    assert [result.status for result in results.values()] == [TrialStatus.OK] * 2
    assert not any(job_of(runner, name).startswith(f"{lost}_") for name in results)


def test_retry_submits_again_what_did_not_measure(
    cluster: Cluster, make_plan: MakePlan, make_slurm_runner: MakeRunner, faults: Faults
) -> None:
    plan = make_plan(2)
    names = names_of(plan)
    faults({names[0]: "exit_7"})
    first = make_slurm_runner(plan, wait=True).run()
    assert [result.status for result in first.values()] == [TrialStatus.FAILED, TrialStatus.OK]
    faults({})
    second = make_slurm_runner(plan, wait=True, retry=UNMEASURED).run()
    assert [result.status for result in second.values()] == [TrialStatus.OK] * 2
    assert second[names[1]] == first[names[1]]


def test_what_sbatch_refuses_is_one_line(cluster, make_plan, make_slurm_runner) -> None:
    with pytest.raises(UserError, match=r"nothing was submitted: .*invalid partition specified"):
        make_slurm_runner(make_plan(1), partition="absent").run()


def test_a_job_that_cannot_start_shows_what_it_printed(
    cluster: Cluster, make_plan: MakePlan, make_slurm_runner: MakeRunner
) -> None:
    runner = make_slurm_runner(make_plan(1), wait=True, setup=("echo no such module >&2; exit 3",))
    (result,) = runner.run().values()
    assert result.status is TrialStatus.FAILED
    assert (result.evidence.exit_code, result.evidence.log_tail) == (3, ("no such module",))


def test_ranks_of_two_nodes_train_together(cluster: Cluster, tmp_path, capsys) -> None:
    pytest.importorskip("hydra")
    asked = (
        "run --no-report launcher=slurm launcher.nodes=2 device=cpu launcher.poll_seconds=0.2 "
        "gpus=2xH100 recompute.settings=[full:uniform:1] experiment=tiny_cpu job.seq_length=64 "
        "measure.steps=2 measure.max_warmup_steps=3 name=x"
    )
    arguments = [*asked.split(), f"runs={tmp_path}"]
    assert main(arguments) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 trial submitted as job " in said.err
    assert "0 of 1 trials are finished" in said.err
    code = main([*arguments, "launcher.wait=true"])
    (result,) = RunFolder(tmp_path / "x").results().values()
    assert result.status in (TrialStatus.OK, TrialStatus.UNSTABLE), result.evidence
    assert code == 0
    assert [peak.rank for peak in result.memory] == [0, 1]
    assert "full:uniform:1" in capsys.readouterr().out
    logs = sorted(path.name for path in (tmp_path / "x" / "trials").glob("*/log*"))
    assert logs == ["log.node1.txt", "log.txt"], "each node has its own"


def test_a_job_that_meets_no_controller_is_submitted_again(
    cluster: Cluster, make_plan: MakePlan, make_slurm_runner: MakeRunner, tmp_path: Path
) -> None:
    plan = make_plan(1)
    (name,) = names_of(plan)
    begun, go = tmp_path / "begun", tmp_path / "go"
    runner = make_slurm_runner(
        plan, setup=(f"touch {begun}; until [ -e {go} ]; do sleep 0.1; done",)
    )
    runner.run()
    first = job_of(runner, name)
    output = runner.folder.path / "slurm" / f"{first}_0_log.err"
    until(begun.exists)
    cluster.end("slurmctld")
    go.touch()
    until(lambda: "Unable to contact slurm controller" in output.read_text())
    cluster.start_controller()
    stream = StringIO()
    (result,) = make_slurm_runner(plan, stream, wait=True).run().values()
    assert result.status is TrialStatus.OK
    assert job_of(runner, name) != first
    assert f"job {first} could not reach Slurm's controller and began nothing" in stream.getvalue()


# Last, as jobs that ended while the controller was away keep their nodes for some time.


def test_twenty_trials_some_cancelled_or_killed_and_the_controller_restarted(
    cluster: Cluster, make_plan: MakePlan, make_slurm_runner: MakeRunner, faults: Faults
) -> None:
    plan = make_plan(20, timeout_seconds=300.0)
    names = names_of(plan)
    cancelled, suicide, murdered = names[:3], names[3], names[4]
    faults(dict.fromkeys((*cancelled, murdered), "hang") | {suicide: "kill"})
    stream = StringIO()
    runner = make_slurm_runner(plan, stream)
    assert runner.run() == {}
    assert stream.getvalue().startswith("20 trials submitted as job ")
    until(lambda: all(started(runner, name) for name in (*cancelled[:2], murdered)))
    until(lambda: len(runner.folder.results()) >= 3)
    cluster.end("slurmctld")
    early = runner.folder.results()
    during = runner.run()
    assert {name: during[name] for name in early} == early
    assert len(during) < 20
    assert "Slurm's controller does not answer; its jobs continue" in stream.getvalue()
    os.kill(node_task(job_of(runner, murdered)), signal.SIGKILL)
    cluster.start_controller()
    for name in cancelled:
        until(lambda: not cluster.ask("scancel", "--verbose", job_of(runner, name)))  # noqa: B023
    results = make_slurm_runner(plan, stream, wait=True).run()
    assert list(results) == names
    assert {name: results[name] for name in during} == during
    others = [results[name] for name in names[5:]]
    assert [message(one) for one in others if one.status is not TrialStatus.OK] == []
    assert {results[name].status for name in (*cancelled, murdered)} == {TrialStatus.FAILED}
    for name in cancelled:
        assert message(results[name]).startswith(f"Slurm job {job_of(runner, name)} was cancelled")
    assert "ended by SIGKILL" in message(results[suicide])
    assert runner.folder.results() == results
    assert make_slurm_runner(plan).run() == results, "a third run submits nothing"
    submitted = re.findall(r"(\d+) trials? submitted", stream.getvalue())
    lost = stream.getvalue().count("its trial is submitted again")
    assert sum(map(int, submitted)) == 20 + lost
