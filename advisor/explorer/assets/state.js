/* What is chosen, and the link that says it: #tp=4&…&set=selective:mlp&with=none&budget=70.0 */

const AXIS_WORDS = {
  GPUs: "Number of GPUs", TP: "Tensor parallel (TP)", CP: "Context parallel (CP)", PP: "Pipeline parallel (PP)",
  VPP: "Virtual stages (VPP)", EP: "Expert parallel (EP)", ETP: "Expert tensor parallel (ETP)",
  mbs: "Micro batch", sharding: "DP sharding", options: "Other options", seq: "Sequence length", rank: "LoRA rank", engine: "Engine's share of the GPU",
};

/* Axes of which one value is always set: jobs that differ in them are not ranked together. */
const PLACES = ["GPUs", "seq", "rank", "engine"];
const isPlace = axis => PLACES.includes(axis);
const samePlace = (axes, job, other) => PLACES.every(axis => axes[axis].own[job] === axes[axis].own[other]);

function axisValues(D) {
  const found = {};
  for (const axis of [...D.axes, "seq", "rank", "engine"]) {
    const own = D.jobs[axis].map(n => axis === "seq" ? String(n) : D.pool[n]);
    const values = [...new Set(own)].sort((a, b) => parseFloat(a) - parseFloat(b) || a.localeCompare(b));
    found[axis] = { own, values };
  }
  return found;
}

/* A search opens on all layouts, any other page on that of its answer. */
const opened = (D, axes) => Object.fromEntries(Object.keys(axes).map(axis => [axis, D.searched && !isPlace(axis) ? "" : axes[axis].own[0]]));

const fresh = (D, axes) => ({ budget: D.budget, filters: opened(D, axes), kind: "", offload: "", only: false, sort: "", row: null, other: null });
const initial = (D, axes, rows) => fromHash(D, axes, rows, fresh(D, axes));

/* The row of the answer's verdict: the best of its job. */
const verdictOf = (D, rows) => ranked(D, rows.filter(row => row.job === 0), D.budget)[0].row;

/* One axis set; where no row is left, the others are set free, and at last the length and the GPUs. */
function relaxed(axes, filters, axis, value) {
  const next = { ...filters, [axis]: value }, any = () => axes[axis].own.findIndex((_, job) => jobMatches(axes, next, job));
  if (any() >= 0) return next;
  for (const one in next) if (one !== axis && !isPlace(one)) next[one] = "";
  if (any() >= 0) return next;
  const job = axes[axis].own.indexOf(value);
  for (const one in next) if (one !== axis && isPlace(one)) next[one] = axes[one].own[job];
  return next;
}

function jobMatches(axes, filters, job) {
  for (const axis in filters) if (filters[axis] && axes[axis].own[job] !== filters[axis]) return false;
  return true;
}

function matches(axes, state, row) {
  return (!state.kind || row.kind === state.kind)
    && (!state.offload || row.offload === (state.offload === "with"))
    && jobMatches(axes, state.filters, row.job);
}

const NOTHING = "nothing";

/* The row of a setting in a job that is written as its cells. */
const jobKey = (axes, job) => Object.keys(axes).map(axis => axes[axis].own[job]).join("/");

function toHash(D, axes, rows, state) {
  const parts = [], usual = opened(D, axes);
  for (const axis in axes) if (state.filters[axis] !== usual[axis]) parts.push([axis, state.filters[axis] || "any"]);
  if (state.kind) parts.push(["kind", state.kind]);
  if (state.offload) parts.push(["offload", state.offload]);
  if (state.only) parts.push(["only", "fits"]);
  if (state.sort) parts.push(["sort", state.sort]);
  if (state.budget !== D.budget) parts.push(["budget", gib2(state.budget)]);
  for (const [name, index] of [["set", state.row], ["with", state.other]]) {
    if (index === null) continue;
    const row = rows[index];
    parts.push([name, row ? row.spec + (row.job ? `@${jobKey(axes, row.job)}` : "") : NOTHING]);
  }
  return parts.map(([k, v]) => `${k}=${encodeURIComponent(v).replace(/%3A/g, ":").replace(/%2F/g, "/").replace(/%2C/g, ",")}`).join("&");
}

function fromHash(D, axes, rows, state) {
  const given = new URLSearchParams(location.hash.slice(1)), next = { ...state, filters: { ...state.filters } };
  for (const axis in axes) {
    const value = given.get(axis);
    if (value === "any" && !isPlace(axis)) next.filters[axis] = "";
    else if (axes[axis].values.includes(value)) next.filters[axis] = value;
  }
  if (rows.some(row => row.kind === given.get("kind"))) next.kind = given.get("kind");
  if (["with", "without"].includes(given.get("offload")) && rows.some(row => row.offload)) next.offload = given.get("offload");
  next.only = given.get("only") === "fits";
  if (COLUMNS.some(one => one.key === (given.get("sort") || "").replace("-", ""))) next.sort = given.get("sort");
  const budget = parseFloat(given.get("budget")) * GIB / UNIT;
  if (budget > 0) next.budget = Math.min(budget, 2 * D.card);
  for (const [name, key] of [["set", "row"], ["with", "other"]]) {
    const [spec, cells] = (given.get(name) || "").split("@");
    if (spec === NOTHING && key === "other") next.other = -1;
    if (!spec) continue;
    const row = rows.find(one => one.spec === spec && (cells ? jobKey(axes, one.job) === cells : one.job === 0));
    if (row) next[key] = row.index;
  }
  return next;
}
