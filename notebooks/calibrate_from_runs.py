# %% [markdown]
# # Calibrate from runs, and check the error
#
# **The question.** Predicted step times rest on how efficient GPUs were in published runs. Your
# GPU, with your software, may be faster or slower. What do two of your own runs say about settings
# that you did not run? And how large is the error for runs that the calibration has not seen?
#
# **What you need.** `pip install -e '.[harness,report]'` in the checkout. No GPU, no torch:
# results that were *measured* on an H200 and an H100 lie in `results/measured`. Everything else is
# *predicted*.

# %%
import json
import shutil
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import advisor
import harness
from advisor.report.figures import kit

GIB = 2**30
plt.rcParams.update({**kit.STYLE, "figure.dpi": 90})
MEASURED = Path("../results/measured")

# %% [markdown]
# ## The runs
#
# Llama 3 8B cut to 24 layers, 8,192 tokens, one H200: four settings, measured.

# %%
run = harness.load_run(MEASURED / "h200/runs/llama3_8b_l24_s8192_b1")
measured = run.to_dataframe().set_index("recompute")
pd.DataFrame(
    {
        "step, s": measured.step_time_seconds.round(3),
        "peak allocated, GiB": (measured.peak_allocated_bytes / GIB).round(2),
        "steps' spread": measured.step_spread.map("{:.2%}".format),
    }
)

# %% [markdown]
# ## The same job for the advisor
#
# The runs used the training step of `harness`, which differs from Megatron-LM's in a few options.
# With these options the advisor predicts the job that was run. New results name them in the field
# `as_run`; the stored results are older, so we add the field to copies of them.

# %%
AS_RUN = {
    "model": {
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "cross_entropy_fusion": "none",
    },
    "job": {"create_attention_mask": False, "copies_gradients": False, "expandable_segments": True},
}
JOB = {
    "model": "llama3_8b",
    "gpus": "1xH200",
    "seq_length": 8192,
    "micro_batch_size": 1,
    "global_batch_size": 2,
    "takes_recipe": False,
    "recompute": list(measured.index),
    "overrides": {
        "model.num_layers": 24,
        "model.transformer_impl": "local",
        "model.attention_backend": "flash",
        "job.main_grads_dtype": "bf16",
        **{f"{group}.{name}": value for group in AS_RUN for name, value in AS_RUN[group].items()},
    },
}


def copy_trials(settings):
    """A folder with the results of only these settings; each names the options of its run."""
    folder = Path(tempfile.mkdtemp())
    for name, result in run.results.items():
        if result.trial["workload"]["recompute"] in settings:
            shutil.copytree(run.folder / "trials" / name, folder / name)
            file = folder / name / "result.json"
            values = json.loads(file.read_text())
            values["trial"]["as_run"] = AS_RUN
            file.write_text(json.dumps(values))
    return folder


# %% [markdown]
# ## Before: the shipped calibration
#
# It was fitted to published step times and kernels, not to this job. Memory agrees to 0.1 %. Times
# are some percent too short, inside the band that the answer states.


# %%
def beside_measured(advice):
    """Predicted against measured, setting by setting."""
    rows = []
    for one in advice.candidates:
        truth = measured.loc[one.recompute.spec]
        rows.append(
            {
                "setting": one.recompute.spec,
                "measured, s": truth.step_time_seconds,
                "predicted, s": one.step_time_seconds,
                "low": one.step_time_low_seconds,
                "high": one.step_time_high_seconds,
                "error of time": one.step_time_seconds / truth.step_time_seconds - 1,
                "error of memory": one.peak_allocated_bytes / truth.peak_allocated_bytes - 1,
                "rests on": str(one.basis),
            }
        )
    return pd.DataFrame(rows).set_index("setting").loc[list(measured.index)]


def shown(table):
    """The table with few digits."""
    percents = {name: table[name].map("{:+.2%}".format) for name in table if "error" in name}
    return table.drop(columns=["low", "high"]).round(3).assign(**percents)


before = beside_measured(advisor.advise(**JOB, quick=True))
shown(before)

# %% [markdown]
# ## After: the advisor learns from two of the four settings
#
# The advisor learns from `none` and `selective:mlp`. The other two are *held out*: it has not seen
# them.

# %%
GIVEN = ("none", "selective:mlp")
learned = advisor.advise(**JOB, calibration=copy_trials(GIVEN))
after = beside_measured(learned)
shown(after)

# %%
figure, axes = plt.subplots(figsize=(9.5, 4), layout="constrained")
for shift, table, colour, label in (
    (-0.15, before, kit.ORANGE, "shipped calibration"),
    (0.15, after, kit.BLUE, "learned from two runs"),
):
    places = [number + shift for number in range(len(table))]
    spread = [table["predicted, s"] - table.low, table.high - table["predicted, s"]]
    axes.errorbar(
        places, table["predicted, s"], yerr=spread, fmt="o", color=colour, label=label, capsize=4
    )
axes.scatter(
    range(len(after)),
    after["measured, s"],
    marker="_",
    s=900,
    color=kit.INK,
    label="measured",
    zorder=3,
)
names = [f"{name}\n({'given' if name in GIVEN else 'held out'})" for name in after.index]
axes.set_xticks(range(len(after)), names)
axes.set(ylabel="seconds per step", title="Predicted step time with its band, and the measurement")
axes.legend(loc="upper left")
kit.soften(axes, "y")
plt.show()

# %%
held_out = ~after.index.isin(GIVEN)
for label, table in (("shipped", before), ("learned", after)):
    errors = table["error of time"][held_out].abs()
    print(f"{label}: held out {errors.mean():.1%} off on average, at most {errors.max():.1%}")

# %% [markdown]
# ## What was learned
#
# One factor for all step times, and one for replays, each with its standard deviation. `scatter`
# says whether the runs contradict each other or the model: the expected value is 1.

# %%
note = learned.calibration.learned
print("holds within:", note.within)
print("scatter:", {name: round(value, 2) for name, value in note.scatter.items()})
pd.DataFrame(
    {
        name: {
            "factor": f"{1 + term.mean:.3f}",
            "known to ±": f"{term.sigma:.1%}",
            "before ±": f"{term.shipped_sigma:.1%}",
        }
        for name, term in note.step_time.items()
    }
).T

# %% [markdown]
# ## All stored runs
#
# How large are the errors of all runs on both GPUs? These predictions were made *before* each run:
# dense layers and experts, 2,048 to 32,768 tokens.

# %%
folders = [path for gpu in ("h100", "h200") for path in sorted((MEASURED / gpu / "runs").iterdir())]
trials = pd.concat(
    [
        harness.load_run(path).to_dataframe().assign(run=path.name, gpu=path.parts[-3])
        for path in folders
    ],
    ignore_index=True,
)
good = trials[(trials.status == "ok") & trials.predicted_step_time_seconds.notna()].copy()
good["time"] = good.predicted_step_time_seconds / good.step_time_seconds - 1
good["memory"] = good.predicted_peak_allocated_bytes / good.peak_allocated_bytes - 1
good.groupby(["gpu", "run"]).agg(
    settings=("recompute", "count"),
    worst_time=("time", lambda errors: f"{max(errors, key=abs):+.1%}"),
    worst_memory=("memory", lambda errors: f"{max(errors, key=abs):+.2%}"),
)

# %%
figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
for axes, name, bins, words in (
    (panels[0], "memory", 21, "peak allocated memory"),
    (panels[1], "time", 21, "step time"),
):
    groups = [good[name][good.gpu == gpu] * 100 for gpu in ("h100", "h200")]
    axes.hist(
        groups,
        bins=bins,
        stacked=True,
        color=[kit.GREEN, kit.BLUE],
        label=["H100", "H200"],
        edgecolor="white",
    )
    axes.axvline(0, color=kit.INK, linewidth=0.8)
    axes.set(xlabel=f"error of {words}, %", ylabel="settings", title=words)
    kit.soften(axes)
panels[1].legend()
plt.show()

# %% [markdown]
# Memory is predicted well. The times furthest off are those of the first jobs on the H100, which
# were predicted before that GPU had its current calibration, and those of a job with 64 small
# experts, whose GPU waits for its processor, as predictions now say. `results/measured/README.md`
# has the errors of the current predictions.
#
# **With your runs.** `advise … --calibration runs/NAME` does the same from a shell. A run changes
# predictions only inside the range that was measured, and the answer says where this range ends
# (`docs/learning.md`).
