"""Where the numbers come from: workload, machine, calibration, and how to take them again."""

from advisor.base.configuration import Group, load_config
from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.base.units import DASH
from advisor.hardware.calibration import Calibration
from harness.report.document import Section, Table
from harness.report.facts import Facts


def environment(facts: Facts) -> Section:
    """Workload and machine, key by key."""
    workload = facts.plan.settings[0].trial.workload
    model, layout = workload.model, workload.layout
    degrees = {
        "TP": layout.tensor_model_parallel_size,
        "PP": layout.pipeline_model_parallel_size,
        "VPP": layout.virtual_pipeline_model_parallel_size,
        "CP": layout.context_parallel_size,
        "DP": layout.data_parallel_size,
    }
    shape = (
        f"{model.name}: {model.num_layers} layers, hidden {model.hidden_size}, "
        f"ffn {model.ffn_hidden_size}, {model.num_attention_heads} heads, "
        f"{model.num_query_groups} query groups, vocabulary {model.vocab_size}"
    )
    known = facts.place.environment if facts.place else {}
    rows = [("model", shape), ("layout", " ".join(f"{k} {v}" for k, v in degrees.items()))]
    rows += [("set for every trial", text) for text in facts.plan.settings[0].trial.variables]
    rows += [(key, DASH if value is None else str(value)) for key, value in sorted(known.items())]
    table = Table(columns=("what", "value"), rows=tuple(rows), left=2)
    return Section(title="Workload and machine", tables=(table,), folded=True)


def calibration(facts: Facts) -> Section:
    """Where the predicted times come from, with the rows that they were fitted on."""
    found = {name: find_calibration(name) for name in calibration_names(facts)}
    prose = tuple(calibration_line(name, one) for name, one in found.items())
    errors = [
        f"{one.name}: {words} {error}"
        for one in found.values()
        if one is not None
        for words, error in (
            ("error on fitted rows:", one.fit_error),
            ("error on rows left out of the fit:", one.left_out_error),
        )
        if error
    ]
    rows = [row for one in found.values() if one is not None for row in one.fitted_on]
    return Section(
        title="Calibration of the predictions",
        prose=prose or ("Nothing was predicted.",),
        lines=(*errors, *rows),
        folded=True,
    )


def calibration_names(facts: Facts) -> tuple[str, ...]:
    """Calibrations that the predictions rest on, each once."""
    predictions = (setting.trial.prediction for setting in facts.plan.settings)
    return tuple(dict.fromkeys(one.calibration for one in predictions if one is not None))


def calibration_line(name: str, found: Calibration | None) -> str:
    """Name, provenance and band in one sentence."""
    if found is None:
        what = "no time was predicted" if name == "none" else "its file is missing"
        return f"Calibration {name}: {what}."
    return f"Calibration {found.name}: {found.provenance}, {found.summary()}."


def find_calibration(name: str) -> Calibration | None:
    """The calibration of that name; None where there is no such file."""
    try:
        document = load_config(Group.CALIBRATION, name, None, "calibration")
        return read_record(Calibration, document.values, document.path)
    except UserError:
        return None


def commands(facts: Facts) -> Section:
    """What runs each trial again, alone."""
    lines = [
        line
        for setting in facts.plan.settings
        for line in (f"# {facts.name_of(setting)}", facts.command(setting.trial))
    ]
    prose = ("Each command runs every repeat of its setting into a new folder:",)
    return Section(title="Run a trial again", prose=prose, lines=tuple(lines), folded=True)
