"""A trial that takes 20 ms and ends as it is told: ``python -I -S stub_trial.py FOLDER``.

The file named by STUB_FAULTS maps a trial's name to its fault; no name, no fault. Standard library
only, and little of it: seventy of these are started in one test.
"""

import json
import os
import signal
import sys
import time


def result(folder: str, status: str, rank: int | None, evidence: object = None) -> None:
    with open(f"{folder}/trial.json") as file:
        trial = json.load(file)
    name = f"{os.path.basename(folder)}"
    seconds = 0.010 + 0.001 * (sum(name.encode()) % 10)
    values = {
        "schema_version": 1,
        "name": name,
        "status": status,
        "trial": trial,
        "environment": {"nonce": os.urandom(8).hex()},
        "started_at": "2026-01-01T00:00:00+00:00",
        "wall_seconds": 0.02,
        "evidence": evidence,
        "memory": [
            {
                "rank": rank or 0,
                "stage": rank or 0,
                "allocated": 1000 + (rank or 0),
                "saved_bytes_per_layer": 100,
            }
        ],
        "times": {"seconds": [seconds] * 3, "warmup_seconds": [1.0], "clock": "host"},
        "loss": [3.0, 2.5, 2.0],
    }
    target = f"{folder}/result.json" if rank is None else f"{folder}/rank{rank}.json"
    with open(f"{folder}/.stub.{os.getpid()}.tmp", "w") as file:
        json.dump(values, file)
    os.replace(file.name, target)


def grandchild() -> None:
    """A process that leaves the group and ignores the polite signal; its id goes to a file."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(f"{sys.argv[1]}/grandchild", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not os.path.exists(f"{sys.argv[1]}/grandchild"):
        time.sleep(0.005)


def fail(fault: str, folder: str, rank: int | None) -> int:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        open(f"{folder}/hangs", "w").close()  # for a test that waits for it
        time.sleep(60)
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    if fault == "family":
        grandchild()
        time.sleep(60)
    if fault == "garbage":
        os.write(1, os.urandom(50_000) + b"\n\x1b[31mlast words\x1b[0m\r\n")
        return 3
    if fault == "half_result":
        with open(f"{folder}/result.json", "w") as file:
            file.write('{"schema_version": 1, "na')
        return 0
    if fault == "full_disk":
        with open("/dev/full", "w") as file:  # the real thing: ENOSPC on the first flush
            file.write("x" * 100_000)
    if fault == "oom":
        print(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 139.80 GiB of which 512.00 MiB is free."
        )
        return 1
    if fault == "nccl":
        print("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2000")
        return 1
    if fault == "oom_result":
        evidence = {
            "phase": "backward",
            "message": "CUDA out of memory",
            "over_bytes": 5,
            "rank": rank or 0,
        }
        result(folder, "oom", rank, evidence)
        return 1
    if fault == "late_crash":
        result(folder, "ok", rank)
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"silent": 0, "exit_7": 7}[fault]


def main() -> int:
    folder = sys.argv[1]
    rank = int(os.environ["RANK"]) if "RANK" in os.environ else None
    with open(os.environ["STUB_FAULTS"]) as file:
        faults = json.load(file)
    name = os.path.basename(folder)
    fault = faults.get(name if rank is None else f"{name}/{rank}", faults.get("default", "ok"))
    if fault.startswith("slow"):
        time.sleep(0.05)
        fault = "ok"
    if fault == "third_hangs":  # so that a run of many is stopped after its second trial
        runs = os.path.dirname(folder)
        done = [one for one in os.listdir(runs) if os.path.exists(f"{runs}/{one}/result.json")]
        time.sleep(60 if len(done) >= 2 else 0)
        fault = "ok"
    if fault != "ok":
        return fail(fault, folder, rank)
    result(folder, "ok", rank)
    return 0


if __name__ == "__main__":
    sys.exit(main())
