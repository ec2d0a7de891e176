"""How near first answers come to a search of all layouts, and whether a search ever loses: to the
usual answer, to what is found near it, or to the proven optimum of its job.

    python scripts/check_searches.py --requests 100 --seed 1

Requests are jobs of published recipes and presets, some with another memory budget or sequence.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import framework_of_recipe
from advisor.models.presets import model_names
from advisor.request.recipes import load_recipes
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise

_NEAR, _FAR = 1.05, 1.2
"""Of the search's step time, what a first answer may take in 85 and in 95 of 100 requests."""


def requests_of_recipes(number: int, seed: int) -> Iterator[Request]:
    """Of a random model with recipes, one of its recipes on its GPUs."""
    random = Random(seed)
    models = [model for model in model_names() if load_recipes(model)]
    for _ in range(number):
        recipe = random.choice(load_recipes(random.choice(models)))
        fields: dict[str, Any] = {}
        if random.random() < 0.2:
            fields["seq_length"] = random.choice((4096, 8192, 16384))
        if random.random() < 0.2:
            fields["memory_budget"] = f"{random.choice((48, 60, 70))}GiB"
        yield Request(
            model=recipe.model,
            gpus=f"{recipe.num_gpus}x{recipe.gpu_types[0]}",
            framework=framework_of_recipe(recipe.framework),
            precision=recipe.precision,
            **fields,
        )


def first_of(answer: Answer) -> Evaluation:
    """What the first sentence of an answer names."""
    found = answer.fastest_found
    return found.candidate.evaluation if found else answer.candidates[0].evaluation


def _seconds(answer: Answer) -> float | None:
    first = first_of(answer)
    return first.step_time_seconds if first.fits else None


def check(number: int, request: Request, *, optimum: bool) -> set[str]:
    """What an answer and its search are; printed with the seconds that each gives."""
    answers, took = {}, {}
    scopes = [("plain", None), ("layout", SearchScope.LAYOUT)]
    for name, scope in scopes + [("optimum", SearchScope.OPTIMUM)] * optimum:
        began = time.process_time()
        answers[name] = advise(replace(request, search=scope))
        took[name] = time.process_time() - began
    seconds = {name: _seconds(answer) for name, answer in answers.items()}
    searched, plain = seconds["layout"], seconds["plain"]
    kinds = {"answers"}
    if searched is None:
        kinds |= {"loses"} if any(seconds.values()) else {"nothing fits"}
    else:
        others = [one for name, one in seconds.items() if one and name != "layout"]
        kinds |= {"loses"} if any(one * (1 + 1e-9) < searched for one in others) else set()
        ratio = plain / searched if plain else float("inf")
        kinds |= {"within 5 %"} if ratio <= _NEAR else set()
        kinds |= {"within 20 %"} if ratio <= _FAR else {"far"}
        note = answers["plain"].search
        if ratio > _NEAR and not (note and note.least_possible_seconds):
            kinds.add("far, and nothing said")
    words = ", ".join(
        f"{name} {value and round(value, 3)} s ({took[name]:.1f} CPU s)"
        for name, value in seconds.items()
    )
    name = f"{request.model} {request.gpus} {request.framework} {request.precision}"
    print(f"{number:4} {name} {request.seq_length or ''} {request.memory_budget or ''}: {words}")
    print(f"     {', '.join(sorted(kinds - {'answers'}))}", flush=True)
    return kinds


def main() -> None:
    """Exit status 1 where a search loses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimum", action="store_true", help="the proven optimum as well: slow")
    given = parser.parse_args()
    totals: Counter[str] = Counter()
    for number, request in enumerate(requests_of_recipes(given.requests, given.seed), start=1):
        try:
            totals.update(check(number, request, optimum=given.optimum))
        except UserError as refused:
            print(f"{number:4} {request.model} {request.gpus}: {refused}")
    print(dict(totals))
    raise SystemExit(totals["loses"] > 0)


if __name__ == "__main__":
    main()
