/* Everything follows these: the budget, the layout, the kind of recompute, the row to compare with. */

function Controls({ D, axes, rows, state, change, other }) {
  const values = axis => isPlace(axis) ? axes[axis].values : valuesOn(axes, state.filters.GPUs, axis);
  const shown = Object.keys(axes).filter(axis => values(axis).length > 1), free = shown.filter(axis => !isPlace(axis));
  const setAxis = (axis, value) => change({ filters: relaxed(axes, state.filters, axis, value) });
  const isOwn = free.every(axis => state.filters[axis] === axes[axis].own[0]), isAny = free.every(axis => !state.filters[axis]);
  const preset = any => {
    const filters = Object.fromEntries(Object.keys(axes).map(axis => [axis, isPlace(axis) ? state.filters[axis] : any ? "" : axes[axis].own[0]]));
    change({ filters: axes.seq.own.some((_, job) => jobMatches(axes, filters, job)) ? filters : Object.fromEntries(Object.keys(axes).map(axis => [axis, axes[axis].own[0]])) });
  };
  const kinds = [...new Set(rows.map(row => row.kind))], what = free.every(axis => ["mbs", "options"].includes(axis)) ? ["This job", "All jobs"] : ["This layout", "All layouts"];
  const select = axis => html`<div class="control" key=${axis}><label for=${`axis-${axis}`}>${AXIS_WORDS[axis]}</label>
      <select id=${`axis-${axis}`} value=${state.filters[axis]} onChange=${event => setAxis(axis, event.target.value)}>
        ${!isPlace(axis) && html`<option value="">any</option>`}
        ${values(axis).map(value => html`<option value=${value} selected=${state.filters[axis] === value}>${valueWords(axis, value)}</option>`)}
      </select></div>`;
  return html`<form class="controls" aria-label="Controls" onSubmit=${event => event.preventDefault()}>
    <div class="control budget"><label for="budget">Memory budget per GPU</label>
      <input id="budget" type="range" min=${Math.round(D.card * 0.3)} max=${D.card} step="16"
        value=${state.budget} aria-valuetext=${`${gib(state.budget)} GiB`}
        onInput=${event => change({ budget: D.card - event.target.value < 16 ? D.card : +event.target.value })} />
      <output for="budget">${gib(state.budget)} of ${gib(D.card)} GiB</output>
      ${state.budget !== D.budget && html`<button type="button" onClick=${() => change({ budget: D.budget })}>Reset</button>`}
    </div>
    ${free.length > 0 && html`<div class="control presets" role="group" aria-label="Which layouts">
      <button type="button" aria-pressed=${isOwn} onClick=${() => preset(false)}>${what[0]}</button>
      <button type="button" aria-pressed=${isAny} onClick=${() => preset(true)}>${what[1]}</button>
    </div>`}
    <label class="control tick"><input type="checkbox" id="only" checked=${state.only} onChange=${event => change({ only: event.target.checked })} /> Fits only</label>
    ${PLACES.filter(axis => shown.includes(axis)).map(select)}
    <div class="control"><label for="kind">Recompute</label>
      <select id="kind" value=${state.kind} onChange=${event => change({ kind: event.target.value })}>
        <option value="">any</option>${kinds.map(kind => html`<option value=${kind}>${kind}</option>`)}</select></div>
    ${rows.some(row => row.offload) && html`<div class="control"><label for="offload">Offload</label>
      <select id="offload" value=${state.offload} onChange=${event => change({ offload: event.target.value })}>
        <option value="">any</option><option value="with">with offload</option><option value="without">without</option></select></div>`}
    <div class="control"><label for="other">Compare with</label>
      <select id="other" value=${other === null ? "" : other.index} onChange=${event => change({ other: event.target.value === "" ? -1 : +event.target.value })}>
        <option value="">no other row</option>
        ${compared(rows, state, other).map(row => html`<option value=${row.index} selected=${other === row}>${nameOf(D, row).replace(/^none/, "none (no recompute)")}</option>`)}
      </select></div>
    ${free.length < 3 ? free.map(select) : html`<details class="degrees" open=${innerWidth > 900}><summary>Degrees and options</summary><div>${free.map(select)}</div></details>`}
  </form>`;
}

/* What jobs on so many GPUs have of an axis. */
const valuesOn = (axes, gpus, axis) => axes[axis].values.filter(value => axes[axis].own.some((own, job) => own === value && axes.GPUs.own[job] === gpus));

const valueWords = (axis, value) => axis === "seq" ? (+value).toLocaleString("en")
  : axis === "options" ? optionNames(value).join(", ") || "those of the answer" : value;

/* Rows to compare with: those of the chosen row's job, the answer's own, and the one that is. */
function compared(rows, state, other) {
  const job = state.row === null ? 0 : rows[state.row].job;
  return rows.filter(row => row.job === job || row.job === 0 || row === other);
}
