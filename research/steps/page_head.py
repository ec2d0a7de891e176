"""How docs/times.md begins: what a step time is made of, and what the words of its tables mean."""

from typing import Final

HEAD: Final = """\
# Step times: parts, constants and errors

This page says what a predicted step time is made of, which constants it uses, and how far off it
is for published runs. It is for readers who want to judge a predicted time or to improve it. The
formulas are on [how the model works](model.md), other comparisons on
[how accurate it is](accuracy.md), and words of the field in the [glossary](glossary.md).

`python -m research.steps.page` writes this page. A test compares it with the fit.

## What is a step time made of?

A step (`advisor/time/job_time.py`) is the passes of the slowest pipeline stage, the pipeline
bubble, the communication of data parallelism that nothing hides, and the optimizer.
A pass is the sum of its operators:

| part | what its time depends on | code |
|---|---|---|
| matrix products (GEMMs) | shape: tiles and waves over the SMs, inner dimension, memory traffic \
of thin shapes; the clock that the power limit leaves; casts to 8 and 4 bits. GEMMs of several \
experts share waves. Under lasting load the rate follows the board's power by an exponent below \
one: at a lower clock a FLOP takes less energy | `advisor/time/gemm.py` |
| attention | length, head sizes, mask, direction and kernel: FlashAttention-2, or the kernels of \
cuDNN and FlashAttention-3; exponentials run beside the products | `advisor/time/attention.py` |
| everything else | the bytes that it moves. torch's own kernels reach less bandwidth than fused \
ones, and `torch.compile` fuses them | |
| communication | the bytes on each link. By its size, a collective runs as a ring, as a tree or \
in NVLink's switches. For all-to-all and the flex dispatchers it matters where the experts are. A \
step waits for the slowest of many GPUs | \
`advisor/time/communication.py`, `rank_links.py` |
| host | the launches of kernels: operations, modules, quantized tensors, results that a \
dispatcher waits for. A CUDA graph is one launch. Under EP \
overlap, DeepEP alone still keeps the processor waiting | `advisor/time/launches.py` |
| overlap | work that runs beside other work still costs a part of its time, since it takes SMs \
and memory bandwidth. `overlap_moe_expert_parallel_comm` puts the experts' exchange beside the \
kernels of another microbatch | |

## How are the constants found?

- **Isolated kernels and collectives**: fitted on published benchmarks of single kernels and
  collectives (`results/published/kernels`): the
  [second table of constants](#constants-of-kernels-and-collectives).
- **Datasheets**: peaks, bandwidths, and the power of the board, which says how far the clock falls.
- **Whole steps**: what such benchmarks leave open is fitted on published training runs: the
  [first table of constants](#constants-fitted-on-whole-steps).

| word in the tables | meaning |
|---|---|
| row | one published training run |
| fitted | rows that the constants are fitted on, and the error there |
| judged | rows that are only compared with predictions, since something in them is not modelled \
or not known |
| without the model, GPU, source, release | the error of a fit without any row of the row's own \
model (on any GPU), GPU, table of `results/published`, or release of the software (by one linear \
step from the full fit, or by a fit of its own where a constant moves by nearly its prior's width) |
| band | nine of ten fitted rows of the GPU lie inside, whether their model, source or release is \
left out of the fit. A GPU without rows of its own has the band of errors without the GPU |
| inside | the share of rows within their band |
| mean, worst | the mean size of the errors, and the largest error; a minus sign means \
predicted too fast |
"""
