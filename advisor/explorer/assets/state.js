/* What is chosen, and the link that says it: #tp=4&…&set=selective:mlp&with=none&budget=70.0 */

const AXIS_WORDS = {
  GPUs: "Number of GPUs", TP: "Tensor parallel (TP)", CP: "Context parallel (CP)", PP: "Pipeline parallel (PP)",
  VPP: "Virtual stages (VPP)", EP: "Expert parallel (EP)", ETP: "Expert tensor parallel (ETP)",
  mbs: "Micro batch", sharding: "Sharding", options: "Other options", seq: "Sequence length",
};

/* Axes of which one value is always set: jobs that differ in them are not ranked together. */
const isPlace = axis => axis === "GPUs" || axis === "seq";
const samePlace = (axes, job, other) => Object.keys(axes).filter(isPlace).every(axis => axes[axis].own[job] === axes[axis].own[other]);

function axisValues(D) {
  const found = {};
  for (const axis of [...D.axes, "seq"]) {
    const own = D.jobs[axis].map(n => axis === "seq" ? String(n) : D.pool[n]);
    const values = [...new Set(own)].sort((a, b) => parseFloat(a) - parseFloat(b) || a.localeCompare(b));
    found[axis] = { own, values };
  }
  return found;
}

function initial(D, axes, rows) {
  const filters = {};
  for (const axis in axes) filters[axis] = axes[axis].own[0];
  const state = { budget: D.budget, filters, kind: "", offload: "", row: null, other: null };
  return fromHash(D, axes, rows, state);
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

/* The row of a setting in a job that is written as its cells. */
const jobKey = (axes, job) => Object.keys(axes).map(axis => axes[axis].own[job]).join("/");

function toHash(D, axes, rows, state) {
  const parts = [];
  for (const axis in axes) {
    if (state.filters[axis] !== axes[axis].own[0]) parts.push([axis, state.filters[axis] || "any"]);
  }
  if (state.kind) parts.push(["kind", state.kind]);
  if (state.offload) parts.push(["offload", state.offload]);
  if (state.budget !== D.budget) parts.push(["budget", gib2(state.budget)]);
  for (const [name, index] of [["set", state.row], ["with", state.other]]) {
    if (index === null) continue;
    const row = rows[index];
    parts.push([name, row.spec + (row.job ? `@${jobKey(axes, row.job)}` : "")]);
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
  const budget = parseFloat(given.get("budget")) * GIB / UNIT;
  if (budget > 0) next.budget = Math.min(budget, 2 * D.card);
  for (const [name, key] of [["set", "row"], ["with", "other"]]) {
    const [spec, cells] = (given.get(name) || "").split("@");
    if (!spec) continue;
    const row = rows.find(one => one.spec === spec && (cells ? jobKey(axes, one.job) === cells : one.job === 0));
    if (row) next[key] = row.index;
  }
  return next;
}
