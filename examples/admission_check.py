"""Asked before a training job starts: does its recompute setting fit? Else, which one does?

python examples/admission_check.py
"""

from typing import Unpack

import advisor
from advisor import JobKeywords


def admitted(recompute: str, model: str, gpus: str, **job: Unpack[JobKeywords]) -> str:
    """`recompute` where the job fits with it, else the fastest setting with which it does.

    Raises MemoryError, with the nearest miss, where it fits with none.
    """
    if advisor.evaluate(recompute, model=model, gpus=gpus, **job).fits:
        return recompute
    advice = advisor.advise(model=model, gpus=gpus, quick=True, **job)
    if advice.best is None or not advice.fits:
        raise MemoryError(advice.verdict)
    return advice.best.recompute.spec


if __name__ == "__main__":
    setting = admitted(
        "none", model="llama3_70b", gpus="32xH100", tp=4, pp=4, vpp=5, seq_length=8192
    )
    print(f"--recompute {setting}")
