"""`--verify`: the best candidates rehearsed by the framework itself, predicted next to rehearsed.

The advisor loads no torch. A program of its own does the work and is spoken to in JSON: jobs on its
stdin, figures on its stdout, talk on stderr (harness/rehearsal/verify.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from advisor.answer.answer import Answer, RankedEvaluation, Verification
from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.base.record import as_dict
from advisor.frameworks.registry import parts_of

PROGRAM: Final = (sys.executable, "-m", "harness.rehearsal.verify")


def verify(advice: Answer, top: int, config_dir: Path | None = None) -> Answer:
    """`advice` with the `top` best candidates verified, each on its worst pipeline stage.

    Raises UserError where what rehearses the framework's layers is not installed, or nothing does.
    """
    parts_of(advice.job.config.framework).harness.rehearsed_by(top)
    chosen = advice.candidates[:top]
    answers = _answers([_question(candidate) for candidate in chosen], config_dir)
    verified = [
        replace(candidate, verification=read_record(Verification, answer, "verification"))
        for candidate, answer in zip(chosen, answers, strict=True)
    ]
    return replace(advice, candidates=(*verified, *advice.candidates[top:]))


def _question(candidate: RankedEvaluation) -> dict[str, Any]:
    evaluation = candidate.evaluation
    job = evaluation.job
    return {
        "model": as_dict(job.model),
        "layout": as_dict(job.layout),
        "config": as_dict(job.config),
        "gpu": job.gpu.name,
        "num_gpus": job.num_gpus,
        "recompute": evaluation.setting.spec,
        "stage": evaluation.peak.stage,
    }


def _answers(questions: list[dict[str, Any]], config_dir: Path | None) -> list[dict[str, Any]]:
    """What the program says of each; its last words as a UserError where it says nothing."""
    asked = {"config_dir": str(config_dir) if config_dir else None, "candidates": questions}
    done = subprocess.run(
        PROGRAM,
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        answers = json.loads(done.stdout)["candidates"]
    except (ValueError, KeyError, TypeError):
        reason = f"the rehearsal ended with exit code {done.returncode} and gave no answer"
        raise UserError("--verify", None, reason) from None
    if answers is None:
        raise UserError("--verify", None, *json.loads(done.stdout)["refused"])
    found: list[dict[str, Any]] = answers
    return found
