"""The fingerprint: JSON, complete, and without names or secrets."""

import json
import socket
import subprocess
from pathlib import Path

from harness.measure.fingerprint import cpu_model, fingerprint, git_commit
from harness.trial.trial import Device


def test_it_is_json_and_names_the_software() -> None:
    environment = fingerprint(Device.CPU)
    assert json.loads(json.dumps(environment)) == environment
    assert environment["software"]["torch"]
    assert environment["software"]["python"]
    assert environment["gpus"] == []
    assert environment["host"]["cpu"] == cpu_model() != ""
    assert environment["host"]["torch_threads"] >= 1


def test_it_is_the_same_twice() -> None:
    assert fingerprint(Device.CPU) == fingerprint(Device.CPU)


def test_the_hosts_name_is_hashed_and_other_variables_are_not_read(monkeypatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    environment = fingerprint(Device.CPU)
    text = json.dumps(environment)
    assert "hunter2" not in text
    assert environment["variables"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert environment["host"]["name_hash"] != socket.gethostname()
    assert len(environment["host"]["name_hash"]) == 12


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True)


def test_the_commit_says_whether_files_differ_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "one")
    commit = git_commit(tmp_path)
    assert len(commit) == 40
    (tmp_path / "file").write_text("two")
    assert git_commit(tmp_path) == f"{commit}+changes"


def test_outside_of_a_checkout_there_is_no_commit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path) is None, "nor without git"
