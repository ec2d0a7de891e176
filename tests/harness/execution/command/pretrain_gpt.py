"""A training command for tests: Megatron-LM's flags in, its lines out, real time in between.

Pure Python; steps take longer the more is recomputed, so that the setting can be seen to arrive.
"""

import argparse
import os
import sys
import time
from datetime import datetime

OOM = (
    "Traceback (most recent call last):\n"
    '  File "pretrain_gpt.py", line 1, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.50 GiB is free."
)


def arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser()
    made.add_argument("--recompute-granularity", choices=["selective", "full"])
    made.add_argument("--recompute-modules", nargs="+")
    made.add_argument("--recompute-method", choices=["uniform", "block"])
    made.add_argument("--recompute-num-layers", type=int)
    made.add_argument("--train-iters", type=int, default=30)
    made.add_argument("--fault", default="")
    return made.parse_args()


def header(args: argparse.Namespace) -> None:
    print(
        "using world size: 1, data-parallel size: 1, context-parallel size: 1, "
        "tensor-model-parallel size: 1, pipeline-model-parallel size: 1"
    )
    print("------------------------ arguments ------------------------")
    known = {**vars(args), "seq_length": 512, "global_batch_size": 2}
    if args.fault == "deaf":
        known["recompute_granularity"] = None
    for name in sorted(known):
        print(f"  {name} {'.' * (48 - len(name))} {known[name]}")
    print("-------------------- end of arguments ---------------------")


def step(number: int, args: argparse.Namespace, loss: float) -> None:
    seconds = {None: 0.02, "selective": 0.03, "full": 0.04}[args.recompute_granularity]
    began = time.perf_counter()
    time.sleep(seconds)
    took = (time.perf_counter() - began) * 1e3
    now = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    print(
        f" [{now}] iteration {number:8d}/{args.train_iters:8d} | consumed samples: "
        f"{number * 2:12d} | elapsed time per iteration (ms): {took:.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): {100 / took:.1f} | learning rate: 1.500000E-04 | global batch size: "
        f"{2:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 | number of skipped "
        f"iterations: {0:3d} | number of nan iterations: {int(loss != loss):3d} |"
    )
    if number in (1, 2):
        peak = {None: 3000.25, "selective": 2000.5, "full": 1000.75}[args.recompute_granularity]
        print(
            f"[Rank 0] (after {number} iterations) memory (MB) | allocated: 500.00 | "
            f"max allocated: {peak * number / 2:.2f} | reserved: 4000.00 | "
            f"max reserved: 4000.00"
        )


def main() -> int:
    args = arguments()
    header(args)
    fault = args.fault if args.recompute_granularity != "full" else ""
    for number in range(1, args.train_iters + 1):
        if number == 5 and fault == "oom":
            print(OOM)
            return 1
        if number == 5 and fault == "hang":
            print(f"hanging {os.getpid()}")
            time.sleep(600)
        if number == 5 and fault == "crash":
            raise AssertionError("You must specify a recompute method")
        if number == 5 and fault == "silent":
            return 3
        step(number, args, float("nan") if number == 5 and fault == "nan" else 9.0 - number / 10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
