# %% [markdown]
# # Choose a recompute setting for Llama 3 70B
#
# **The question.** We train Llama 3 70B on 32 H100 GPUs. The backward pass needs the activations
# of the forward pass. Keeping all of them costs memory; computing some of them again costs time.
# Which ones should be kept?
#
# **What you need.** `pip install -e '.[report]'` in the checkout (pandas and matplotlib). No GPU,
# no torch. The notebook runs in seconds: everything in it is *predicted*, nothing is measured
# here.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import advisor
from advisor.report.figures import kit
from advisor.report.figures.point_labels import label_points

GIB = 2**30
plt.rcParams.update({**kit.STYLE, "figure.dpi": 90})

# %% [markdown]
# ## Ask
#
# The model and the GPUs are enough. Layout and batch come from a published recipe, and the answer
# says so. The first line of the output is the verdict. `quick=True` asks about this job alone;
# without it the verdict also names the fastest job that is found near it.

# %%
short = advisor.advise(model="llama3_70b", gpus="32xH100", quick=True)
print(short.verdict)
for text in short.assumptions:
    print("assumed:", text)

# %% [markdown]
# At 4,096 tokens the job fits without recompute, which is the fastest setting. Twice the sequence
# length doubles the activations, and the answer changes. `quick=True` asks about this job as it
# stands; the last cell asks for a faster job nearby.

# %%
advice = advisor.advise(model="llama3_70b", gpus="32xH100", seq_length=8192, quick=True)
advice

# %% [markdown]
# ## Where the memory goes
#
# Weights, gradients and optimizer states are the same in every row. Only the activations (and the
# working set of the backward pass) change. A setting fits if its bar ends left of the line.


# %%
def draw_memory(candidates, budget_bytes, title):
    """One bar a setting: bytes of its fullest GPU, by what they are for."""
    figure, axes = plt.subplots(figsize=(9.5, 0.42 * len(candidates) + 1.6), layout="constrained")
    parts = kit.memory_parts([candidate.peak.memory_bytes for candidate in candidates])
    kit.stacked_bars(axes, parts, labelled=True)
    axes.set_yticks(range(len(candidates)), [one.recompute.spec for one in candidates])
    kit.draw_budget(axes, budget_bytes)
    kit.soften(axes, "x")
    axes.invert_yaxis()
    axes.set(xlabel="GiB on the fullest GPU", title=title)
    figure.legend(loc="outside lower center", ncols=7)


shown = [one for one in advice.candidates if not one.folded]
draw_memory(shown, shown[0].budget_bytes, "Predicted memory at 8,192 tokens")
plt.show()

# %% [markdown]
# ## What it costs
#
# Each point is a setting: memory to the right, time upwards. The points on the line are worth
# considering: no other setting is both smaller and faster than one of them.

# %%
table = advice.to_dataframe()
table["peak GiB"] = table.peak_reserved_bytes / GIB
figure, axes = plt.subplots(figsize=(9.5, 4.2), layout="constrained")
front = table[table.pareto].sort_values("peak GiB")
look = {"color": kit.SKY, "drawstyle": "steps-post", "zorder": 1}
axes.plot(front["peak GiB"], front.step_time_seconds, **look)
for fits, colour, marker, label in (
    (True, kit.BLUE, "o", "fits"),
    (False, kit.VERMILION, "X", "does not"),
):
    rows = table[table.fits == fits]
    points = zip(rows["peak GiB"], rows.step_time_seconds, strict=True)
    kit.draw_points(axes, points, s=60, color=colour, marker=marker, label=label)
kit.draw_budget(axes, table.budget_bytes[0])
kit.soften(axes)
axes.margins(x=0.22, y=0.12)
axes.set(xlabel="peak GiB of the fullest GPU", ylabel="seconds per step")
axes.set_title("Memory against time")
axes.legend()
places = zip(table["peak GiB"], table.step_time_seconds, strict=True)
names = {number: [spec] for number, spec in enumerate(table.recompute, start=1)}
label_points(axes, dict(enumerate(places, start=1)), names=names)
plt.show()

# %% [markdown]
# ## Why: the tensors of a layer
#
# `explain=1` names every tensor behind the first row. The largest ones are what recompute can
# save.

# %%
kept = advisor.advise(
    model="llama3_70b", gpus="32xH100", seq_length=8192, recompute="none", explain=1, quick=True
)
tensors = pd.DataFrame(
    {
        "tensor": item.name,
        "shape on one GPU": item.shape,
        "MiB each": item.unit_bytes / 2**20,
        "copies": item.count,
        "GiB": item.num_bytes / GIB,
    }
    for item in kept.explain.memory
    if item.component == "activations" and item.shape
)
tensors.set_index("tensor").sort_values("GiB", ascending=False).head(8).round(2)

# %% [markdown]
# `fc1_out` and `activation_out` are tensors inside the MLP: more than half of what is kept. That is
# why it pays to compute only the MLP again (`selective:mlp`). `full:block:2` computes the first 2
# of the 4 layers of every pipeline chunk again, and nothing in the other 2. It saves enough at a
# lower cost.
#
# ## The choice in three numbers
#
# How likely the choice is to fit, how long its step takes, and what recompute costs compared with
# a GPU of unlimited memory.

# %%
best = advice.best
print(f"setting            {best.recompute.spec}")
print(f"likely to fit      {best.fit_probability:.0%}")
print(
    f"peak               {best.peak_reserved_bytes / GIB:.1f} of {best.budget_bytes / GIB:.1f} GiB"
)
low, high = best.step_time_low_seconds, best.step_time_high_seconds
print(f"step               {best.step_time_seconds:.2f} s (nine of ten: {low:.2f} to {high:.2f} s)")
print(f"cost of recompute  {best.recompute_overhead:+.1%}")

# %% [markdown]
# ## Take it
#
# The flags to paste, in the words of the framework. `job_flags` are layout and batch, `flags` the
# recompute setting.

# %%
print("Megatron-LM      ", best.flags["megatron_lm"])
print("Megatron Bridge  ", best.flags["megatron_bridge"])

# %% [markdown]
# ## A faster job nearby
#
# Without `quick=True` the answer also tries other degrees, micro batches and options, of those that
# you did not give. `best` is then the fastest that it finds, and `fastest_found.changes` says what
# it changes.

# %%
near = advisor.advise(model="llama3_70b", gpus="32xH100", seq_length=8192)
print(near.verdict)

# %% [markdown]
# **Next.** `reproduce_korthikanti` shows where the bytes come from, `optimum_against_the_menu`
# searches settings beyond this list, and `calibrate_from_runs` shows how your measurements make the
# times more accurate.
