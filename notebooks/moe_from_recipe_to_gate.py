# %% [markdown]
# # A mixture-of-experts job, from recipe to gate
#
# **The question.** Mixtral 8x7B is to be trained on 64 H100 with twice the recipe's sequence
# length. Which activations should be computed again, does the measurement agree, and how does CI
# notice when a later change makes it slower or larger?
#
# **What you need.** `pip install -e '.[harness,report]'` in the checkout. No GPU, no torch. The
# answer for 64 H100 is *predicted*. The measurement is *stored*: five layers of Mixtral on one
# H200, in `results/measured`. Where a result is edited to show a failure, the text says so.

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

# %% [markdown]
# ## 1. From a recipe to an answer
#
# The published recipe for 64 H100 gives layout and batch. Its sequences have 4,096 tokens; ours
# have 8,192.

# %%
JOB = {"model": "mixtral_8x7b", "gpus": "64xH100", "seq_length": 8192}
advice = advisor.advise(**JOB, quick=True)
print("recipe:", advice.recipe.name)
layout = advice.job.layout
print(f"layout: EP {layout.expert_model_parallel_size}, PP {layout.pipeline_model_parallel_size}")
advice

# %% [markdown]
# ## 2. What experts add: an uneven load
#
# The router may send more tokens to one rank's experts than to another's. The busiest rank decides
# memory. `moe_load_imbalance` is the tokens of the busiest rank over the mean.

# %%
shown = [one.recompute.spec for one in advice.candidates if not one.folded]
loads = (1.0, 1.25, 1.5, 2.0)
probability = pd.DataFrame(
    {
        load: {
            one.recompute.spec: one.fit_probability
            for one in advisor.advise(
                **JOB, quick=True, recompute=shown, overrides={"job.moe_load_imbalance": load}
            ).candidates
        }
        for load in loads
    }
).loc[shown]
figure, axes = plt.subplots(figsize=(9.5, 0.4 * len(shown) + 1.4), layout="constrained")
axes.imshow(probability, cmap="Blues", vmin=0, vmax=2, aspect="auto")
axes.set_xticks(range(len(loads)), [f"{load:g}" for load in loads])
axes.set_yticks(range(len(shown)), shown)
for row in range(len(shown)):
    for column in range(len(loads)):
        axes.text(column, row, f"{probability.iloc[row, column]:.0%}", ha="center", va="center")
axes.set(xlabel="tokens of the busiest rank over the mean", title="How likely it is to fit")
axes.spines[:].set_visible(False)
axes.tick_params(length=0)
plt.show()

# %% [markdown]
# The choice is the same for every load: `selective:moe` computes the experts again, so it frees the
# tensors that grow with the load.
#
# ## 3. A measurement of a part of the job
#
# One GPU cannot hold the model, but it can hold five of its layers. Such a run measures the *cost
# of recompute* and the *bytes of a layer*; the choice rests on these two.

# %%
RUN = Path("../results/measured/h200/runs/mixtral_8x7b_l5_s4096_b4")
run = harness.load_run(RUN)
trials = run.to_dataframe().set_index("recompute").sort_values("step_time_seconds")
for kind in ("", "predicted_"):
    time = trials[f"{kind}step_time_seconds"]
    trials[f"{kind}cost"] = time / time["none"] - 1
    memory = trials[f"{kind}peak_allocated_bytes"]
    trials[f"{kind}saved"] = (memory["none"] - memory) / GIB
table = trials[["saved", "predicted_saved", "cost", "predicted_cost"]]
table.columns = ["GiB saved, measured", "GiB saved, predicted", "cost, measured", "cost, predicted"]
table.round(3)

# %%
figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
names = [name for name in trials.index if name != "none"]
places = range(len(names))
for axes, name, unit, words in (
    (panels[0], "saved", 1, "GiB saved"),
    (panels[1], "cost", 100, "% added step time"),
):
    axes.barh(
        [y - 0.2 for y in places],
        trials[name][names] * unit,
        0.4,
        color=kit.GREEN,
        label="measured",
    )
    axes.barh(
        [y + 0.2 for y in places],
        trials[f"predicted_{name}"][names] * unit,
        0.4,
        color=kit.BLUE,
        hatch="//",
        edgecolor="white",
        label="predicted",
    )
    axes.set_yticks(list(places), names if axes is panels[0] else [""] * len(names))
    axes.invert_yaxis()
    axes.set(xlabel=words)
    kit.soften(axes, "x")
panels[1].legend()
figure.suptitle("Mixtral 8x7B, five layers, one H200")
plt.show()

# %% [markdown]
# ## 4. A golden: the numbers to hold
#
# A golden is a file that a reviewer can read. It is made on purpose, with a reason. In a shell:
# `harness golden update --reason "…" runs/NAME`.

# %%
goldens = Path(tempfile.mkdtemp()) / "golden"
files = harness.update_goldens(RUN, reason="first baseline of Mixtral on an H200", to=goldens)
for file in files:
    print(file.name)

# %% [markdown]
# ## 5. The gate
#
# We compare the same results with their own golden: everything passes, and the exit code is 0.

# %%
verdict = harness.compare(RUN, golden=goldens)
print("exit code", verdict.exit_code, "·", len(verdict.rows), "numbers compared")

# %% [markdown]
# Now results that must not pass. They are **not measured**: they are copies of the stored
# results, edited here.


# %%
def edited(change):
    """A copy of the stored results, each changed by `change`; its verdict."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(RUN / "trials", folder / "trials")
    for file in sorted(folder.glob("trials/*/result.json")):
        values = json.loads(file.read_text())
        change(values)
        file.write_text(json.dumps(values))
    return harness.compare(folder, golden=goldens)


def slower(values):
    """As if every step of `selective:moe` took 20 % longer."""
    if values["trial"]["workload"]["recompute"] == "selective:moe":
        values["times"]["seconds"] = [1.2 * second for second in values["times"]["seconds"]]


def larger(values):
    """As if a change kept 4 % more memory."""
    for peak in values["memory"]:
        for name in ("allocated", "active", "reserved", "nvml_used"):
            peak[name] = int(1.04 * peak[name])


def hot(values):
    """As if the GPU had been held back by heat: its times are not to be trusted."""
    values["status"] = "unstable"
    values["concerns"] = [
        {
            "name": "throttling",
            "seen": "hw_thermal_slowdown",
            "limit": "none",
            "advice": "cool it",
            "fatal": True,
        }
    ]


def out_of_memory(values):
    """As if one setting did not fit any more."""
    if values["trial"]["workload"]["recompute"] == "none":
        values |= {"status": "oom", "times": None, "memory": [], "loss": []}
        values["evidence"] = {"phase": "backward", "message": "CUDA out of memory"}


cases = {
    "as stored": verdict,
    "20 % slower": edited(slower),
    "4 % more memory": edited(larger),
    "a GPU too hot": edited(hot),
    "out of memory": edited(out_of_memory),
    "no golden": harness.compare(RUN, golden=goldens / "nowhere"),
}
MEANING = {0: "pass", 1: "regression", 3: "no verdict", 4: "a run failed"}
pd.DataFrame(
    [
        {
            "what CI sees": name,
            "exit code": found.exit_code,
            "meaning": MEANING[found.exit_code],
            "worst row": " ".join((found.rows[0].label.split("/")[-1], found.rows[0].metric)),
            "change": "" if found.rows[0].change is None else f"{found.rows[0].change:+.1%}",
        }
        for name, found in cases.items()
    ]
).set_index("what CI sees")

# %%
regression = cases["20 % slower"]
rows = [row for row in regression.rows if row.metric == "step_time_seconds"]
figure, axes = plt.subplots(figsize=(9.5, 3.2), layout="constrained")
for place, row in enumerate(rows):
    colour = kit.VERMILION if row.verdict == "regression" else kit.GREEN
    low, high = row.interval.low * 100, row.interval.high * 100
    axes.plot([low, high], [place, place], color=colour, linewidth=3)
    axes.plot(row.change * 100, place, "o", color=colour, markersize=8)
axes.axvline(0, color=kit.INK, linewidth=0.8)
axes.axvline(rows[0].limit * 100, color=kit.INK, linestyle="--", linewidth=1)
axes.set_yticks(range(len(rows)), [row.label.split("/")[-1] for row in rows])
axes.invert_yaxis()
axes.set(
    xlabel="% step time over the golden, with its 95 % interval; dashed: the limit",
    title="One edited setting is caught, the others pass",
)
kit.soften(axes, "x")
plt.show()

# %% [markdown]
# The intervals are wide here because each side has only one process of one day. Five repeats
# (`measure.repeats=5`) and more sessions (`harness golden update --append`) make them narrow.
#
# ## The same in CI
#
# ```
# advise --model mixtral_8x7b --gpus 64xH100 --seq-length 8192     # exit 0: something fits
# harness run experiment=mixtral_8x7b_1xh200 name=today            # needs the GPU
# harness compare runs/today --golden results/golden               # exit 0, 1, 3 or 4, as above
# ```
#
# `examples/ci` has files for GitHub and GitLab to copy.
