# %% [markdown]
# # LoRA or full? GRPO on 8 H100
#
# **The question.** We train with GRPO on one server of 8 H100 GPUs. A vLLM engine shares the GPUs
# with the training. Does full fine-tuning fit, or do we need LoRA? And which phase runs out?
#
# **What you need.** `pip install -e '.[report]'` in the checkout. No GPU, no torch. Everything is
# *predicted*; step times are of the update, as rollouts depend on the samples.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import advisor
from advisor.report.figures import kit

GIB = 2**30
plt.rcParams.update({**kit.STYLE, "figure.dpi": 90})

# %% [markdown]
# ## Ask for both
#
# The engine takes 0.6 of each GPU while it generates, and sleeps while the model is trained (level
# 2: its weights are sent again in every cycle). Full fine-tuning needs a second model as reference;
# it waits in host memory. With LoRA the reference is the model with its adapter switched off.

# %%
ENGINE = {
    "rl.algorithm": "grpo",
    "rl.engine": "vllm",
    "rl.gpu_memory_utilization": 0.6,
    "rl.sleep_level": 2,
    "head.implementation": "trl",
}
WAYS = {
    "full": {"rl.reference": "host"},
    "LoRA": {"rl.reference": "adapter_off", "tuning.adapter": "lora"},
}


def ask(model, way, gpus="8xH100", **more):
    return advisor.advise(
        model=model,
        gpus=gpus,
        framework="huggingface",
        seq_length=8192,
        global_batch_size=64,
        overrides={**ENGINE, **WAYS[way], **more},
        quick=True,
    )


small = {way: ask("qwen3_8b", way) for way in WAYS}
for way, advice in small.items():
    print(f"{way}: {advice.verdict}\n")

# %% [markdown]
# ## Phases, not a sum
#
# A cycle has phases that follow one another. Their memory is never added up: the job needs what the
# highest phase needs. A bar ends left of the line if the phase fits.

# %%
WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "reference": "reference",
    "activations": "activations",
    "engine_weights": "engine's weights",
    "kv_cache": "KV cache",
    "rest": "rest",
}


def parts(phase):
    """GiB by the names of WORDS; what has none is the rest."""
    sizes = {name: getattr(phase.memory_bytes, name, 0) / GIB for name in WORDS}
    sizes["rest"] = phase.peak_reserved_bytes / GIB - sum(sizes.values())
    return sizes


def draw(answers):
    figure, all_axes = plt.subplots(
        1, len(answers), figsize=(10.5, 3.6), sharex=True, layout="constrained"
    )
    for axes, (title, advice) in zip(all_axes, answers.items(), strict=True):
        phases = advice.best.phases
        table = pd.DataFrame([parts(phase) for phase in phases], index=[p.name for p in phases])
        colours = plt.get_cmap("tab10").colors
        table.rename(columns=WORDS).plot.barh(
            stacked=True, ax=axes, legend=False, color=colours, width=0.7
        )
        axes.axvline(advice.best.budget_bytes / GIB, color="black", linestyle="--")
        axes.invert_yaxis()
        axes.set(title=title, xlabel="GiB reserved on a GPU")
        kit.soften(axes, "x")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    plt.show()


draw({f"Qwen3 8B, {way}": advice for way, advice in small.items()})


# %% [markdown]
# Both fit. The table says what decides: the phase, its peak, what waits in host memory, and how
# fast the update is.


# %%
def summary(answers):
    rows = {}
    for name, advice in answers.items():
        best = advice.best
        highest = max(best.phases, key=lambda phase: phase.peak_reserved_bytes)
        rows[name] = {
            "fits": best.fits,
            "recompute": best.recompute.spec,
            "highest phase": highest.name,
            "GiB": round(highest.peak_reserved_bytes / GIB, 1),
            "host GiB per server": round(8 * best.host_memory_bytes / GIB, 1),
            "update, s": round(best.step_time_seconds, 1),
        }
    return pd.DataFrame(rows).T


summary(small)

# %% [markdown]
# ## Four times the model
#
# Qwen3 32B is another matter. Its engine needs two GPUs for its weights to leave room for a KV
# cache. Between phases the optimizer waits on the host, and gradients are reduced with every
# microbatch, so that only shards of them are kept.

# %%
MORE = {
    "rl.engine_tensor_parallel_size": 2,
    "rl.offload_optimizer": True,
    "job.sync_each_batch": True,
}
large = {way: ask("qwen3_32b", way, **MORE) for way in WAYS}
draw({f"Qwen3 32B, {way}": advice for way, advice in large.items()})
summary(large)

# %% [markdown]
# Only LoRA fits: the states of all parameters are what the update of full fine-tuning cannot hold.
# On twice as many GPUs, each holds half of them:

# %%
print("8 GPUs:", large["full"].verdict)
print("16 GPUs:", ask("qwen3_32b", "full", gpus="16xH100", **MORE).verdict)
