/* The page's data as advisor/explorer/explorer_data.py packs it, and rows made of it. */

const COMPONENTS = ["weights", "gradients", "optimizer", "activations", "transient", "overhead"];
const COMPONENT_WORDS = {
  weights: "weights", gradients: "gradients", optimizer: "optimizer states",
  activations: "kept activations", transient: "transient (running pass)",
  overhead: "overhead (allocator, NCCL…)",
};
const TIME_WORDS = {
  forward: "forward", backward: "backward", recompute: "replay (recompute)",
  exposed_communication: "exposed communication", pipeline_bubble: "pipeline bubble",
  optimizer: "optimizer", offload: "offload", host: "waiting for the host", stragglers: "waiting for stragglers",
};
const timeKey = name => [`t-${name}`, TIME_WORDS[name]];
let LIKELY; // the certainty that the request asks for
const EDGE = 0.5;

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const D = JSON.parse(await new Response(stream).text());
  LIKELY = D.certainty;
  return D;
}

/* Every row as an object; bytes in units of D.unit, times in seconds. */
function rowsOf(D) {
  const { rows, jobs, settings, pool } = D, found = [];
  const fixed = jobs.fixed.map(number => pool[number]);
  for (let i = 0; i < rows.job.length; i++) {
    const job = rows.job[i], setting = rows.setting[i], seconds = rows.seconds[i].map(us => us / 1e6);
    const total = seconds.reduce((a, b) => a + b, 0);
    found.push({
      index: i, job, spec: settings.spec[setting], kind: settings.kind[setting],
      offload: settings.offload[setting], reserved: rows.reserved[i],
      simulated: rows.simulated[i], clear: rows.clear[i], sigma: rows.sigma[i],
      most: rows.most[i],
      seconds: total, times: seconds, flops: rows.flops[i] / 1e6,
      below: rows.below[i] / 1e6, error: rows.error[i] / 1e6,
      peak: rows.peak_stage[i], fixed: fixed[job], measured: pool[rows.measured[i]],
    });
  }
  return found;
}

/* Memory of one stage of a row: components in units, microbatches in flight, and the phase. */
function stageOf(D, row, stage) {
  const n = D.rows.stages[row.index], [activations, transient, overhead, flight] = n.slice(4 * stage, 4 * stage + 4);
  const [weights, gradients, optimizer] = row.fixed[stage];
  const parts = { weights, gradients, optimizer, activations, transient, overhead };
  return {
    stage, parts, flight: flight / 100,
    total: COMPONENTS.reduce((sum, name) => sum + parts[name], 0),
    phase: D.pool[D.pool[D.rows.phases[row.index]][stage]],
  };
}

/* Probability that no rank runs out of memory under a budget in units. */
function fits(D, row, budget) {
  return Math.min(row.most, normal(row.clear + (budget - D.budget) / row.sigma));
}

/* Distribution function of the standard normal: Abramowitz and Stegun 7.1.26, error below 1.5e-7. */
function normal(z) {
  const t = 1 / (1 + 0.3275911 * Math.abs(z) / Math.SQRT2);
  const poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  const tail = poly * Math.exp(-z * z / 2);
  return z < 0 ? tail / 2 : 1 - tail / 2;
}

/* 0: fits, 1: at the edge, 2: does not fit (advisor/search/ranking.py). */
function tierOf(probability) {
  return probability >= LIKELY ? 0 : probability >= EDGE ? 1 : 2;
}

/* Rows best first, as the ranking of `advise` has them. */
function ranked(D, rows, budget) {
  const keyed = rows.map(row => {
    const p = fits(D, row, budget), tier = tierOf(p);
    return { row, p, tier, first: tier === 2 ? row.reserved : row.seconds, none: row.kind === "none" ? 0 : 1 };
  });
  keyed.sort((a, b) => a.tier - b.tier || a.first - b.first || a.none - b.none || a.row.reserved - b.row.reserved);
  return keyed;
}

/* Rows that no other undercuts in memory and time, the smallest first. */
function frontOf(rows) {
  const front = [];
  let fastest = Infinity;
  for (const row of [...rows].sort((a, b) => a.reserved - b.reserved || a.seconds - b.seconds)) {
    if (row.seconds < fastest) { fastest = row.seconds; front.push(row); }
  }
  return front;
}
