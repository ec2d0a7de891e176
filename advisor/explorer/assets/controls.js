/* Everything follows these: the budget, the layout, the kind of recompute, the row to compare with. */

function Controls({ D, axes, rows, state, change, other }) {
  const selects = Object.keys(axes).filter(axis => axes[axis].values.length > 1);
  const setAxis = (axis, value) => change(relaxed(axes, rows, state, axis, value));
  const isOwn = selects.every(axis => state.filters[axis] === axes[axis].own[0]);
  const isAny = selects.every(axis => isPlace(axis) || !state.filters[axis]);
  const preset = any => change({ filters: Object.fromEntries(Object.keys(axes).map(axis =>
    [axis, any && !isPlace(axis) ? "" : axes[axis].own[0]])) });
  const kinds = [...new Set(rows.map(row => row.kind))];
  return html`<form class="controls" aria-label="Controls" onSubmit=${event => event.preventDefault()}>
    <div class="control budget"><label for="budget">Memory budget per GPU</label>
      <input id="budget" type="range" min=${Math.round(D.card * 0.3)} max=${D.card} step="16"
        value=${state.budget} aria-valuetext=${`${gib(state.budget)} GiB`}
        onInput=${event => change({ budget: +event.target.value })} />
      <output for="budget">${gib(state.budget)} of ${gib(D.card)} GiB</output>
      ${state.budget !== D.budget && html`<button type="button" onClick=${() => change({ budget: D.budget })}>Reset</button>`}
    </div>
    <div class="control presets" role="group" aria-label="Which layouts">
      <button type="button" aria-pressed=${isOwn} onClick=${() => preset(false)}>This layout</button>
      <button type="button" aria-pressed=${isAny} onClick=${() => preset(true)}>All layouts</button>
    </div>
    ${selects.map(axis => html`<div class="control" key=${axis}><label for=${`axis-${axis}`}>${AXIS_WORDS[axis]}</label>
      <select id=${`axis-${axis}`} value=${state.filters[axis]} onChange=${event => setAxis(axis, event.target.value)}>
        ${!isPlace(axis) && html`<option value="">any</option>`}
        ${axes[axis].values.map(value => html`<option value=${value} selected=${state.filters[axis] === value}>${value}</option>`)}
      </select></div>`)}
    <div class="control"><label for="kind">Recompute</label>
      <select id="kind" value=${state.kind} onChange=${event => change({ kind: event.target.value })}>
        <option value="">any</option>${kinds.map(kind => html`<option value=${kind}>${kind}</option>`)}</select></div>
    ${rows.some(row => row.offload) && html`<div class="control"><label for="offload">Offload</label>
      <select id="offload" value=${state.offload} onChange=${event => change({ offload: event.target.value })}>
        <option value="">any</option><option value="with">with offload</option><option value="without">without</option></select></div>`}
    <div class="control"><label for="other">Compare with</label>
      <select id="other" value=${other === null ? "" : other.index} onChange=${event => change({ other: event.target.value === "" ? -1 : +event.target.value })}>
        <option value="">nothing</option>
        ${compared(rows, state, other).map(row => html`<option value=${row.index} selected=${other === row}>${nameOf(D, row)}</option>`)}
      </select></div>
  </form>`;
}

/* Rows to compare with: those of the chosen row's job, the answer's own, and the one that is. */
function compared(rows, state, other) {
  const job = state.row === null ? 0 : rows[state.row].job;
  return rows.filter(row => row.job === job || row.job === 0 || row === other);
}

/* One axis set; where no row is left, the degrees are set free, then the other one of GPUs and
   sequence length. */
function relaxed(axes, rows, state, axis, value) {
  const filters = { ...state.filters, [axis]: value };
  const found = () => rows.filter(row => jobMatches(axes, filters, row.job));
  if (found().length) return { filters };
  for (const one in filters) if (one !== axis && !isPlace(one)) filters[one] = "";
  if (found().length) return { filters };
  for (const one in filters) if (one !== axis) filters[one] = "";
  const left = found()[0].job;
  for (const one in filters) if (isPlace(one)) filters[one] = axes[one].own[left];
  return { filters };
}
