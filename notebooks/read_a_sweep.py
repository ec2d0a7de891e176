# %% [markdown]
# # Read a sweep
#
# **The question.** Many settings were run on a GPU. Which was the fastest, what did recompute
# cost, was the memory as predicted, and which numbers deserve trust?
#
# **What you need.** `pip install -e '.[harness,report]'` in the checkout. No GPU and no torch: the
# results lie in `results/measured`. They were *measured* on one H100 on 22 November 2026: Llama 3
# 8B with as many layers as fit, at four sequence lengths; torch 2.11, `harness`'s own training
# step. The predictions beside them were made *before* the runs.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import harness
from advisor.report.figures import kit
from advisor.report.figures.point_labels import label_points

GIB = 2**30
plt.rcParams.update({**kit.STYLE, "figure.dpi": 90})
RUNS = Path("../results/measured/h100/runs")

# %% [markdown]
# ## Load
#
# `harness.load_run` reads the folder of a run, `to_dataframe` gives one row per trial. Here four
# runs make one table. Nothing is lost: a trial that gave no measurement is a row as well, with its
# reason.

# %%
NAMES = {
    "llama3_8b_l17_s2048_b1": "2,048 tokens, 17 layers",
    "llama3_8b_l12_s8192_b1": "8,192 tokens, 12 layers",
    "llama3_8b_l8_s8192_b2": "8,192 tokens x 2, 8 layers",
    "llama3_8b_l4_s32768_b1": "32,768 tokens, 4 layers",
}
trials = pd.concat(
    [harness.load_run(RUNS / run).to_dataframe().assign(job=job) for run, job in NAMES.items()],
    ignore_index=True,
)
print(f"{len(trials)} trials, {(trials.status == 'ok').sum()} of them ok")
for row in trials[trials.status != "ok"].itertuples():
    print(f"{row.job}, {row.recompute}: {row.status}, {row.reason}")
trials.groupby("job", sort=False).agg(
    settings=("recompute", "count"),
    fastest_step_seconds=("step_time_seconds", "min"),
    largest_peak_GiB=("peak_reserved_bytes", lambda sizes: sizes.max() / GIB),
).round(2)

# %% [markdown]
# ## One job: memory against time
#
# Twelve layers at 8,192 tokens. Settings on the line are worth considering; for each of the others,
# a setting on the line is no slower and no larger.

# %%
job = trials[trials.job == "8,192 tokens, 12 layers"].sort_values("peak_reserved_bytes")
best_so_far = job.step_time_seconds.cummin()
front = job[(job.step_time_seconds <= best_so_far) & ~best_so_far.duplicated()]
figure, axes = plt.subplots(figsize=(9.5, 4.2), layout="constrained")
look = {"color": kit.SKY, "drawstyle": "steps-post", "zorder": 1}
axes.plot(front.peak_reserved_bytes / GIB, front.step_time_seconds, **look)
places = list(zip(job.peak_reserved_bytes / GIB, job.step_time_seconds, strict=True))
kit.draw_points(axes, places, color=kit.BLUE, s=55)
kit.soften(axes)
axes.margins(x=0.22, y=0.14)
axes.set(
    xlabel="peak GiB reserved, measured",
    ylabel="seconds per step, measured",
    title="Llama 3 8B, 12 layers, 8,192 tokens, one H100",
)
names = {number: [spec] for number, spec in enumerate(job.recompute, start=1)}
label_points(axes, dict(enumerate(places, start=1)), names=names)
plt.show()

# %% [markdown]
# `selective:core_attn` takes time and saves nothing: flash attention keeps no scores that this
# setting could free.
#
# ## What recompute costs, by length
#
# The bars show the step time that a setting adds to the same job without recompute. At 32,768
# tokens most of the step is attention, which `selective:mlp` does not repeat: there it costs half
# as much.

# %%
base = trials[trials.recompute == "none"].set_index("job").step_time_seconds
trials["overhead"] = trials.step_time_seconds / trials.job.map(base) - 1
kinds = trials.recompute.replace(r"full:block:.*", "full:block, half of the layers", regex=True)
shown = ["selective:mlp", "full:block, half of the layers", "full:uniform:1"]
overheads = trials.pivot_table("overhead", "job", kinds, sort=False)[shown]
axes = overheads.plot.bar(
    figsize=(9.5, 3.8),
    color=[kit.SKY, kit.ORANGE, kit.VERMILION],
    rot=0,
    width=0.75,
    edgecolor="white",
)
axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
axes.set(xlabel="", ylabel="added step time", title="Cost of recompute, measured (a gap: not run)")
axes.legend(title="")
kit.soften(axes, "y")
axes.figure.set_layout_engine("constrained")
plt.show()

# %% [markdown]
# ## Was it as predicted?
#
# The plots compare memory and time, as predicted before the run, with the measurements. On the
# diagonal both are equal.

# %%
figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
COLOURS = dict(zip(NAMES.values(), (kit.BLUE, kit.ORANGE, kit.GREEN, kit.PINK), strict=True))
for axes, name, unit, words in (
    (panels[0], "peak_allocated_bytes", GIB, "peak GiB allocated"),
    (panels[1], "step_time_seconds", 1, "seconds per step"),
):
    for label, rows in trials.groupby("job", sort=False):
        points = zip(rows[name] / unit, rows[f"predicted_{name}"] / unit, strict=True)
        kit.draw_points(axes, points, color=COLOURS[label], s=34, label=label)
    ends = [trials[name].min() / unit * 0.95, trials[name].max() / unit * 1.05]
    axes.plot(ends, ends, color=kit.GREY, linewidth=1, zorder=0)
    axes.set(xlabel=f"{words}, measured", ylabel=f"{words}, predicted", title=words)
    kit.soften(axes)
panels[0].legend(fontsize=8)
plt.show()

# %%
errors = pd.DataFrame(
    {
        "peak allocated": trials.predicted_peak_allocated_bytes / trials.peak_allocated_bytes - 1,
        "step time": trials.predicted_step_time_seconds / trials.step_time_seconds - 1,
    }
)
pd.DataFrame({"mean size of the error": errors.abs().mean(), "largest": errors.abs().max()}).map(
    "{:.2%}".format
)

# %% [markdown]
# Memory was predicted to within a fraction of a percent. The times of the two jobs above the
# diagonal were predicted before the H100 had its current calibration (`calibrate_from_runs`
# continues from here).
#
# ## Which numbers deserve trust?
#
# Every trial lists the concerns about its measurement. A fatal concern makes the trial `unstable`,
# and its times are then not judged. Here the GPU ran at its power limit, as it does under full
# load, and some short runs had not quite settled.

# %%
concerns = trials.concerns.fillna("").str.split("; ").explode()
concerns[concerns != ""].value_counts().rename("trials").to_frame()

# %% [markdown]
# **On your own results.** `harness.load_run("runs/NAME").to_dataframe()` reads the results of
# `harness run`, `sweep` or `ingest`; `harness report runs/NAME` writes the report.
