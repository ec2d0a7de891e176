"""Whether first answers are the best by the advisor's own simulation: random requests in seven
frameworks, every row of each answer asked for by itself.

    python scripts/check_first_answers.py --requests 500 --seed 1
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

from advisor.answer.answer import SAME_TIME, Answer, RankedEvaluation
from advisor.base.errors import UserError
from advisor.base.units import GIB, percent
from advisor.frameworks.registry import framework_names
from advisor.models.presets import model_names
from advisor.report.ranking_table import Rows
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import evaluate
from advisor.search.ranking import UNFIT, tier

_GPUS = (1, 2, 4, 8, 8, 16, 32, 64, 128)
_TYPES = ("H100", "H100", "H200", "A100", "A100-40GB", "B200")


def random_requests(number: int, seed: int) -> Iterator[Request]:
    """Requests as users make them, of all models; some of them no framework can run."""
    random = Random(seed)
    for _ in range(number):
        fields: dict[str, Any] = {
            "model": random.choice(model_names()),
            "gpus": f"{random.choice(_GPUS)}x{random.choice(_TYPES)}",
            "framework": random.choice(framework_names()),
        }
        if random.random() < 0.4:
            fields["seq_length"] = random.choice((2048, 4096, 8192, 16384, 32768))
        if random.random() < 0.3:
            fields["memory_budget"] = f"{random.choice((24, 36, 48, 60, 70))}GiB"
        if random.random() < 0.2:
            fields["global_batch_size"] = random.choice((64, 256, 512, 1024))
        if random.random() < 0.25:
            fields["micro_batch_size"] = random.choice((1, 2, 4))
        yield Request(**fields)


def failures(answer: Answer) -> Iterator[tuple[str, str]]:
    """What is wrong with an answer: of which kind, and its rows in words."""
    first = answer.candidates[0].evaluation
    shown = Rows().shown(answer.candidates)
    for row in answer.candidates:
        one = row.evaluation
        if row not in shown and first.fits and one.step_time_seconds >= first.step_time_seconds:
            continue
        alone = evaluate(one.job, one.setting, one.calibration)
        words = f"{one.setting.spec}: {_words(row)} is by itself {alone.fit_probability:.3f}"
        same = tier(alone) == tier(first)
        faster = alone.step_time_seconds < first.step_time_seconds * (1 - SAME_TIME)
        if tier(alone) < tier(first) or (same and tier(first) < UNFIT and faster):
            yield "beats row 1", f"{words}, {alone.step_time_seconds:.3f} s"
        if row in shown and tier(alone) != tier(one):
            yield "another verdict", words
    for small, large in permutations(shown, 2):
        if _is_surer_though_larger(small, large):
            yield "probability rises", f"{_words(small)} against {_words(large)}"
    for row in shown:
        if percent(row.evaluation.fit_probability) == "90 %" and not row.evaluation.fits:
            yield "90 % does not fit", _words(row)


def _is_surer_though_larger(small: RankedEvaluation, large: RankedEvaluation) -> bool:
    """As printed, within one job."""
    one, other = small.evaluation, large.evaluation
    larger = round(other.peak_reserved_bytes / GIB, 1) > round(one.peak_reserved_bytes / GIB, 1)
    likely = round(one.fit_probability, 2), round(other.fit_probability, 2)
    return one.job is other.job and larger and likely[1] > likely[0]


def _words(row: RankedEvaluation) -> str:
    one = row.evaluation
    mark = "~" if one.requests is None else ""
    return f"{mark}{one.peak_reserved_bytes / GIB:.1f} GiB {one.fit_probability:.3f}"


def check(requests: Sequence[Request]) -> Counter[str]:
    """How many answers there are, and how many fail in which way; failures are printed."""
    totals: Counter[str] = Counter()
    for number, request in enumerate(requests, start=1):
        began = time.process_time()
        try:
            answer = advise(request)
        except UserError:
            continue
        seconds = time.process_time() - began
        found = list(failures(answer))
        totals.update({"answers": 1, **dict.fromkeys(dict(found), 1)})
        totals["CPU ms"] += round(seconds * 1000)
        name = f"{request.model} {request.gpus} {request.framework}"
        for kind, words in found:
            print(f"{number:4} {name}: {kind}: {words}\n     {request}", flush=True)
        if number % 20 == 0:
            print(f"{number:4} of {len(requests)}: {dict(totals)}", flush=True)
    return totals


def main() -> None:
    """Exit status 1 where an answer fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    totals = check(list(random_requests(given.requests, given.seed)))
    print(dict(totals))
    raise SystemExit(bool(set(totals) - {"answers", "CPU ms"}))


if __name__ == "__main__":
    main()
