"""Which published recipe a job builds on: by model, GPU, number of GPUs, precision, framework and
sequence length."""

from collections.abc import Iterator
from math import log2
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.frameworks.registry import adapter_of, runs_recipes
from advisor.models.spec import ModelSpec
from advisor.request.experiments import (
    Experiment,
    Wanted,
    find_experiment,
    nearest_experiment,
    nearest_recipe,
)
from advisor.request.given import Given
from advisor.request.layout_fields import LONG_CONTEXT, open_degrees
from advisor.request.lent_options import LentOptions, in_another_precision, lent_options
from advisor.request.optimizer_change import under_optimizer
from advisor.request.recipes import Recipe

DEFAULT_SEQ_LENGTH: Final = 4096


class RecipeChoice(Struct, frozen=True, kw_only=True):
    """The recipe that was chosen, or none.

    whole: the framework runs it as it stands; else only its batch is taken.
    left_open: degrees that neither the request nor a recipe for so many GPUs says. borrowed: the
    recipe is for another number of GPUs. lends_optimizer: the nearest recipe, where none is built
    on and its optimizer is the usual one for the model. lent: what else the framework's recipes set
    there, or where the recipe says degrees alone. differs: in what the recipe is not the one
    for this job, in a line each.
    """

    preset: Experiment | None = None
    whole: bool = False
    left_open: tuple[str, ...] = ()
    borrowed: bool = False
    lends_optimizer: Recipe | None = None
    lent: LentOptions | None = None
    differs: tuple[str, ...] = ()

    @property
    def as_it_stands(self) -> Experiment | None:
        """The recipe where the framework runs it as it stands."""
        return self.preset if self.whole else None


def choose_recipe(
    given: Given,
    wanted: Wanted,
    model: ModelSpec,
    framework: str,
) -> RecipeChoice:
    """The recipe for the job, or for its GPUs in another number; where there is none, or it says
    degrees alone, what the recipes of `framework` have in common."""
    adapter = adapter_of(framework)
    runs = runs_recipes(adapter)
    choice = replace(_chosen(given, wanted, model, runs=runs), whole=runs)
    preset = choice.preset
    says_all = preset is not None and (preset.states_options or not runs)
    if says_all and preset is not None and runs and given.precision is not None:
        if preset.config.precision is given.precision:
            return choice
        frameworks = (framework,) if given.framework else adapter.shown
        lent = in_another_precision(given, given.precision, model, frameworks)
        return replace(choice, lent=lent)
    if says_all or not given.takes_recipe:
        return choice
    precision = preset.config.precision if preset and not given.precision else given.precision
    own = replace(wanted, framework=framework, precision=precision)
    return replace(choice, lent=lent_options(given, own, model, adapter))


def _chosen(given: Given, wanted: Wanted, model: ModelSpec, *, runs: bool) -> RecipeChoice:
    if given.recipe is not None:
        return _of(given.recipe, given, wanted)
    if not given.takes_recipe:
        return RecipeChoice()
    layout_fields = dict(given.layout_fields)
    preset = find_experiment(wanted, complete=not layout_fields)
    if preset is not None and runs and _too_short(preset, given):
        preset = _for_context(wanted, preset)
    if preset is not None or not runs:
        return _of(preset, given, wanted)
    left_open = open_degrees(layout_fields, model, given.seq_length or DEFAULT_SEQ_LENGTH)
    nearest = nearest_experiment(wanted) if left_open else None
    if nearest is None:
        return RecipeChoice(left_open=left_open, lends_optimizer=nearest_recipe(wanted))
    return replace(_of(nearest, given, wanted), left_open=left_open, borrowed=True)


def _too_short(preset: Experiment, given: Given) -> bool:
    """Whether a preset for short sequences stands in for one of long context."""
    asked = given.seq_length or 0
    return asked >= LONG_CONTEXT and log2(asked / preset.config.seq_length) >= _FAR


def _for_context(wanted: Wanted, preset: Experiment) -> Experiment:
    """A recipe for the sequence length that is asked for, on any number of these GPUs; else
    `preset`."""
    other = nearest_experiment(wanted)
    if other is None or other.config.seq_length != wanted.seq_length:
        return preset
    return other


_FAR: Final = 2.0
"""Doublings of the sequence from which another recipe's layout is no guide (a judgement)."""


def _of(preset: Experiment | None, given: Given, wanted: Wanted) -> RecipeChoice:
    """A choice with the recipe under the request's optimizer, and what sets it apart."""
    optimizer = given.job_fields.get("optimizer")
    if preset is not None and optimizer is not None:
        preset = under_optimizer(preset, optimizer)
    differs = () if preset is None else tuple(_differences(preset, wanted))
    return RecipeChoice(preset=preset, differs=differs)


def _differences(preset: Experiment, wanted: Wanted) -> Iterator[str]:
    """In what a recipe is for another job than the one that is asked for."""
    config = preset.config
    if wanted.precision not in (None, config.precision):
        yield f"recipe {preset.name} is for {config.precision}, not {wanted.precision}"
    if wanted.seq_length not in (None, config.seq_length):
        yield f"recipe {preset.name} is for {config.seq_length} tokens, not {wanted.seq_length}"
    if preset.framework and wanted.framework not in (None, preset.framework):
        yield f"recipe {preset.name} is {preset.framework}'s, not {wanted.framework}'s"
