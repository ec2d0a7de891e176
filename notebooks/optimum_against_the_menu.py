# %% [markdown]
# # The optimum under a budget, against the menu
#
# **The question.** Guides and recipes offer a short menu: recompute nothing, one module, or whole
# layers. A framework accepts much more: any set of modules, modules that are moved to the host
# (offload), and how many layers are on each pipeline stage. Is a setting beyond the menu faster,
# and how do we know that no other is faster still?
#
# **What you need.** `pip install -e '.[report]'` in the checkout. No GPU. All times and bytes are
# *predicted*, and the proof holds for the predictions. It runs in about ten seconds.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import advisor
from advisor.report.figures import kit

GIB = 2**30
plt.rcParams.update({**kit.STYLE, "figure.dpi": 90})

# %% [markdown]
# ## One budget
#
# Llama 3 70B on 32 H100, with a budget of 68 GiB per GPU. First the menu, on the job's own layout
# (`quick=True`).

# %%
JOB = {"model": "llama3_70b", "gpus": "32xH100"}
menu = advisor.advise(**JOB, memory_budget="68GiB", quick=True)
print(menu.verdict)

# %% [markdown]
# Now all settings that the framework accepts with the same tensor and pipeline parallelism.
# `search="optimum"` returns the best one, with a proof.

# %%
best = advisor.advise(**JOB, memory_budget="68GiB", search="optimum")
print(best.verdict)
print(f"searched   {best.optimum.num_points:,} combinations: {'; '.join(best.optimum.space)}")
print(f"computed   {best.optimum.evaluated}; all others are excluded by a bound")
print(f"gap        {best.optimum.gap:.0%} between the best and the bound: nothing is faster")
print(f"saved      {best.optimum.gain:.1%} of the menu's step time")

# %% [markdown]
# The optimum differs in two ways. It moves the inputs of two modules of every layer to the host
# while they are not needed. And it takes one layer from the first chunk of the pipeline, which
# keeps the most microbatches at a time. Nothing is computed twice.

# %%
rows = {"menu": menu.best, "optimum": best.best}
pd.DataFrame(
    {
        name: {
            "setting": one.recompute.spec,
            "layers on the pipeline": one.changes.get(
                "layout.pipeline_model_parallel_layout", "as in the recipe"
            ),
            "peak GiB": f"{one.peak_reserved_bytes / GIB:.1f}",
            "step": f"{one.step_time_seconds:.2f} s",
            "recompute": f"{one.time_seconds.recompute:.2f} s of it",
        }
        for name, one in rows.items()
    }
)

# %% [markdown]
# ## Many budgets
#
# The same question for GPUs with more and with less room. Where a number is missing, nothing fits.

# %%
BUDGETS = (60, 62, 64, 66, 68, 70, 72, 74, 76)


def step_and_spec(budget, **search):
    """Step time and setting of the fastest that fits; None where nothing does."""
    advice = advisor.advise(**JOB, memory_budget=f"{budget}GiB", **search)
    found = advice.best
    return (
        (found.step_time_seconds, found.recompute.spec) if advice.fits else (None, "nothing fits")
    )


answers = pd.DataFrame(
    [(b, *step_and_spec(b, quick=True), *step_and_spec(b, search="optimum")) for b in BUDGETS],
    columns=["GiB", "menu, s", "menu", "optimum, s", "optimum"],
).set_index("GiB")
won = (1 - answers["optimum, s"] / answers["menu, s"]).map("{:.1%}".format)
answers.round(2).assign(won=won.replace("nan%", "it fits"))

# %%
figure, axes = plt.subplots(figsize=(9.5, 4), layout="constrained")
for column, colour, marker in (("menu", kit.VERMILION, "s"), ("optimum", kit.BLUE, "o")):
    line = answers[f"{column}, s"]
    axes.step(line.index, line, where="post", color=colour, marker=marker, label=column)
axes.fill_between(
    answers.index,
    answers["optimum, s"],
    answers["menu, s"],
    step="post",
    color=kit.GREEN,
    alpha=0.2,
)
free = advisor.evaluate("none", **JOB).step_time_seconds
axes.axhline(free, color=kit.GREY, linestyle=":", label="no recompute, unlimited memory")
axes.set(
    xlabel="GiB that a GPU may use",
    ylabel="seconds per step",
    title="Llama 3 70B on 32 H100: what a byte is worth",
)
axes.legend()
kit.soften(axes)
plt.show()

# %% [markdown]
# The menu has steps: between them, more memory does not make the job faster. The optimum falls in
# smaller steps, and needs less memory to reach the time of an unlimited GPU. At some budgets the
# menu has the optimum; then the search proves it.
#
# ## What no release can express yet
#
# The search also says what a separate setting for each pipeline stage would save, if the framework
# accepted one.

# %%
tight = advisor.advise(model="gpt3_175b", gpus="64xA100", tp=8, pp=8, vpp=3, search="optimum")
print(tight.verdict)
for text in tight.optimum.beyond:
    print("beyond:", text)

# %% [markdown]
# **Take it with you.** `best.best.flags["megatron_lm"]` and `best.job_flags["megatron_lm"]` are
# what to paste. The same from a shell: `advise --model llama3_70b --gpus 32xH100 --memory-budget
# 68GiB --search optimum`.
