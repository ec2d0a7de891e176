/* Numbers in words. */

const GIB = 2 ** 30;
let UNIT = 65536;

const gib = units => (units * UNIT / GIB).toFixed(1);
const gib2 = units => (units * UNIT / GIB).toFixed(2);
const seconds = s => s < 1 ? s.toFixed(3) : s.toFixed(2);
const millis = s => s < 0.01 ? `${(s * 1e3).toFixed(2)} ms` : s < 1 ? `${(s * 1e3).toFixed(1)} ms` : `${s.toFixed(2)} s`;
const signed = (x, digits = 1) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(digits);

/* ±12 %, or −43 % to +74 %. */
const band = row => row.below === row.error ? `±${(row.error * 100).toFixed(0)} %`
  : `${signed(-row.below * 100, 0)} % to ${signed(row.error * 100, 0)} %`;

/* A moment in the unit that suits the last one. */
const clock = (s, last) => last < 1 ? `${(s * 1e3).toFixed(last < 0.1 ? 2 : 1)} ms` : `${s.toFixed(last < 10 ? 3 : 2)} s`;
const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/* What a verdict begins with only where it is reached (advisor/base/units.py). */
function percent(p) {
  if (p >= 0.995) return ">99 %";
  if (p < 0.005) return "<1 %";
  const whole = Math.round(p * 100);
  return `${whole - ([50, 90, 95, 99].includes(whole) && p * 100 < whole)} %`;
}

function bytes(n) {
  if (n >= GIB) return `${(n / GIB).toFixed(2)} GiB`;
  if (n >= 2 ** 20) return `${(n / 2 ** 20).toFixed(1)} MiB`;
  return `${(n / 1024).toFixed(1)} KiB`;
}

/* Short names of options, by path; of any other option, its field in words. */
const OPTION_WORDS = {
  "job.attn_implementation": "attention", "job.compile_components": "torch.compile of", "job.copies_gradients": "copy of gradients",
  "job.create_attention_mask": "attention mask", "job.cuda_graph_impl": "CUDA graphs", "job.cuda_graph_modules": "CUDA graphs of",
  "job.deterministic_mode": "deterministic kernels", "job.exp_avg_dtype": "first moment in", "job.exp_avg_sq_dtype": "second moment in",
  "job.main_grads_dtype": "main gradients in", "job.main_params_dtype": "main weights in", "job.moe_load_imbalance": "load imbalance",
  "job.optimizer_cpu_offload": "optimizer on the host", "job.optimizer_in_backward": "optimizer in the backward", "job.param_cpu_offload": "weights on the host",
  "job.sync_each_batch": "gradients synchronised each batch", "job.tiled_mlp": "tiled MLP", "job.torch_compile": "torch.compile",
  "job.use_liger_kernel": "Liger kernels", "job.use_precision_aware_optimizer": "precision-aware Adam", "job.weights_dtype": "weights in",
  "layout.account_for_embedding_in_pipeline_split": "embedding counted as a layer", "layout.account_for_loss_in_pipeline_split": "loss counted as a layer",
  "layout.data_parallel_replicate_size": "replicas", "layout.delay_wgrad_compute": "late weight gradients", "layout.outer_dp_sharding_strategy": "outer sharding",
  "layout.overlap_grad_reduce": "overlap of gradients", "layout.overlap_moe_expert_parallel_comm": "EP overlap", "layout.overlap_param_gather": "overlap of weights",
  "layout.pipeline_model_parallel_layout": "own split of layers", "layout.tp_comm_overlap": "TP overlap", "layout.use_distributed_optimizer": "distributed optimizer",
  "model.cross_entropy_fusion": "fused cross entropy", "model.cross_entropy_loss_fusion": "fused cross entropy", "model.moe_token_dispatcher_type": "dispatcher", "model.moe_flex_dispatcher_backend": "flex backend",
};
/* Options whose value says no more than that they are on. */
const SWITCHES = ["job.cuda_graph_impl", "layout.pipeline_model_parallel_layout"];
const OFF = ["", "none", "false", "null"];

function optionWords(path, value) {
  const name = OPTION_WORDS[path] || path.split(".").pop().replaceAll("_", " ");
  if (OFF.includes(value)) return `no ${name.replace(/ (of|in)$/, "")}`;
  return value === "true" || SWITCHES.includes(path) ? name : `${name} ${value.replaceAll(",", ", ")}`;
}

/* `layout.a=b job.c=d` as short names. */
const optionNames = text => !/=/.test(text) ? [] : text.split(/ (?=[a-z]+\.\w+=)/).map(one => {
  const [path, ...value] = one.split("=");
  return optionWords(path, value.join("="));
});

const cellWords = (axis, cell) => `${axis === "mbs" ? "micro batch" : axis} ${cell}`;

/* In what a job differs from the answer's: degrees and options; with `all` also its place, which is the same for all rows that are shown. */
function changesOf(D, job, all) {
  const cell = axis => D.pool[D.jobs[axis][job]], found = [];
  for (const axis of D.axes) {
    if (axis === "options" || isPlace(axis) || D.jobs[axis][job] === D.jobs[axis][0] || cell(axis) === "—") continue;
    found.push(cellWords(axis, cell(axis)));
  }
  found.push(...optionNames(cell("options")));
  if (!all) return found;
  const apart = (axis, words) => D.jobs[axis][job] === D.jobs[axis][0] ? [] : [words];
  return [...apart("GPUs", `${cell("GPUs")} GPUs`), ...found, ...apart("seq", `${D.jobs.seq[job].toLocaleString("en")} tokens`),
    ...apart("rank", rankWords(cell("rank"))), ...apart("engine", `engine ${cell("engine")}`)];
}

const rankWords = cell => +cell ? `rank ${cell}` : cell;

/* The degrees of a job above 1: `TP 4`, `PP 4`. */
function degreesOf(D, job) {
  const found = D.axes.filter(axis => !["options", "mbs", "sharding"].includes(axis) && !isPlace(axis))
    .map(axis => [axis, D.pool[D.jobs[axis][job]]]).filter(([, cell]) => !["1", "—"].includes(cell)).map(pair => pair.join(" "));
  const dp = D.jobs.DP[job];
  return found.length ? found : [dp > 1 ? `DP ${dp}` : cellWords("mbs", D.pool[D.jobs.mbs[job]])];
}

/* A row in words: the setting, and in what its job differs from the answer's. */
const nameOf = (D, row) => [row.spec, changesOf(D, row.job, true).join(", ")].filter(Boolean).join(" · ");

const peakWords = row => `${row.simulated ? "" : "~"}${gib(row.reserved)}`;

const gpusOf = (D, row) => +D.pool[D.jobs.GPUs[row.job]];
/* Tokens of a second on each GPU, without padding. */
const tokensOf = (D, row) => D.jobs.tokens[row.job] / row.seconds / gpusOf(D, row);
/* What recompute adds to the step of the same job. */
const overheadOf = (D, row) => D.rows.overhead[row.index] / 1e6;
const overheadWords = (D, row) => `${signed(overheadOf(D, row) * 100).replace(/^\D0\.0$/, "0")} %`;
