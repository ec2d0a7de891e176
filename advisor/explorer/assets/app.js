/* The page: one sentence that answers, the controls, and pictures that follow them. */

function App({ D }) {
  const rows = useMemo(() => rowsOf(D), []), axes = useMemo(() => axisValues(D), []);
  const [state, setState] = useState(() => initial(D, axes, rows));
  const change = useCallback(some => setState(before => ({ ...before, ...some, row: "row" in some ? some.row : before.row })), []);
  const visible = useMemo(() => rows.filter(row => matches(axes, state, row)), [state.filters, state.kind, state.offload]);
  const list = useMemo(() => ranked(D, visible, state.budget), [visible, state.budget]);
  const frontRows = useMemo(() => frontOf(visible), [visible]), front = useMemo(() => new Set(frontRows), [frontRows]);
  const asked = state.row === null ? null : rows[state.row];
  const chosen = asked && visible.includes(asked) ? asked : list.length ? list[0].row : asked;
  const other = otherOf(rows, state, chosen);
  useEffect(() => {
    const hash = toHash(D, axes, rows, state);
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }, [state]);
  useEffect(() => {
    const back = () => setState(() => initial(D, axes, rows));
    addEventListener("hashchange", back);
    return () => removeEventListener("hashchange", back);
  }, []);
  const choose = useCallback(row => change({ row: row.index }), []);
  const compare = (row, beside) => setState(before => ({ ...initial(D, axes, rows), budget: before.budget,
    row: row.index, other: beside.index, filters: Object.fromEntries(Object.keys(axes).map(axis =>
      [axis, axes[axis].own[row.job] === axes[axis].own[beside.job] ? axes[axis].own[row.job] : ""])) }));
  const show = row => setState(before => ({ ...before, row: row.index, kind: "", offload: "",
    filters: Object.fromEntries(Object.keys(axes).map(axis => [axis, before.filters[axis] && axes[axis].own[row.job]])) }));
  const of = { D, axes, rows, state, list, visible, front, frontRows, chosen, other, budget: state.budget, choose, change, show, compare };
  return html`<${Head} ...${of} /><${Controls} ...${of} />
    <main>
      <${Card} id="h-front" title="Peak memory and step time"><${Pareto} ...${of} /><//>
      <${Card} id="h-rows" title="Settings"><${Rows} ...${of} /><//>
      ${chosen && html`
      <${Card} id="h-memory" title="Where the memory of the worst rank goes"><${Waterfall} ...${of} /><//>
      <${Card} id="h-stages" title="Memory of every pipeline stage"><${Stages} ...${of} /><//>
      <${Card} id="h-step" title="One step: passes and live memory of every stage" shape="wide"><${Step} ...${of} /><//>
      <${Card} id="h-layer" title="What one layer keeps for the backward" shape="wide"><${Layer} ...${of} /><//>
      <${Card} id="h-time" title="Where the time goes"><${Time} ...${of} /><//>
      <${Card} id="h-flags" title="Flags to paste" shape="tall"><${Flags} ...${of} /><//>`}
      <${Card} id="h-sure" title="What the predictions rest on"><${Basis} D=${D} />
        ${D.rejected.length > 0 && html`<${Rejected} D=${D} />`}<//>
    </main><${Tips} />`;
}

/* The row to compare with: the one asked for, else no recompute of the same job. -1 is nothing. */
function otherOf(rows, state, chosen) {
  if (!chosen || state.other === -1) return null;
  if (state.other !== null && rows[state.other] !== chosen) return rows[state.other];
  const none = rows.find(row => row.job === chosen.job && row.kind === "none");
  return none && none !== chosen ? none : null;
}

function Head({ D, rows, axes, state, list, chosen, budget, show, compare }) {
  const best = list.find(one => one.tier === 0), p = chosen && fits(D, chosen, budget);
  return html`<header><h1>${D.model} <span class="soft">${D.parameters} parameters · ${D.gpus} × ${D.gpu} · ${D.precision} · sequence ${D.seq_length} · global batch ${D.global_batch}</span></h1>
    <p class="sub">${[D.framework, ...D.runs].join(" · ")}</p>
    <p class="verdict" role="status">${chosen ? html`<b class=${["good", "edge", "bad"][tierOf(p)]}>${nameOf(D, chosen)}</b>
      ${` ${tierOf(p) === 0 ? "fits" : tierOf(p) === 1 ? "may fit" : "does not fit"}: ${peakWords(chosen)} of ${gib(budget)} GiB, ${percent(p)} likely. One step takes ${seconds(chosen.seconds)} s ${band(chosen)}.`}` : "No row matches the controls."}
      ${chosen && !best && html` <b class="bad">No row that matches the controls fits.</b>`}
      ${best && chosen !== best.row && html` <button type="button" onClick=${() => show(best.row)}>Fastest that fits: ${nameOf(D, best.row)}, ${seconds(best.row.seconds)} s</button>`}</p>
    ${chosen && chosen.measured && html`<p class="note">${chosen.measured}; predicted: ${seconds(chosen.seconds)} s, ${peakWords(chosen)} GiB</p>`}
    ${chosen && D.pool[D.rows.notes[chosen.index]].map(note => html`<p class="note" key=${note}>${note}</p>`)}
    <${Faster} ...${{ D, rows, axes, chosen, budget, show }} /><${Toss} ...${{ D, rows, compare }} />
    ${chosen && chosen.job === 0 && D.remedies.length > 0 && html`<details class="figures"><summary>Other changes that help: ${D.remedies[0]}</summary>
      <ul>${D.remedies.slice(1).map(text => html`<li key=${text}>${text}</li>`)}</ul></details>`}</header>`;
}

/* Jobs of the same sequence length that are faster and fit: the fastest with one change, and of all. */
function Faster({ D, rows, axes, chosen, budget, show }) {
  const found = useMemo(() => {
    if (!chosen) return [];
    const bar = tierOf(fits(D, chosen, budget)) === 0 ? chosen.seconds * 0.999 : Infinity;
    const better = rows.filter(row => row.seconds < bar && axes.seq.own[row.job] === axes.seq.own[chosen.job] && fits(D, row, budget) >= LIKELY);
    const apart = row => Object.keys(axes).filter(axis => axes[axis].own[row.job] !== axes[axis].own[chosen.job]).length;
    const fastest = some => some.reduce((a, b) => !a || b.seconds < a.seconds ? b : a, null);
    return [...new Set([fastest(better.filter(row => apart(row) <= 1)), fastest(better)])].filter(Boolean);
  }, [chosen, budget]);
  if (!found.length) return null;
  return html`<p class="faster">Faster: ${found.map(row => html`<button type="button" key=${row.index} onClick=${() => show(row)}>
    ${nameOf(D, row)}: ${tierOf(fits(D, chosen, budget)) === 0 ? `${signed((row.seconds / chosen.seconds - 1) * 100)} %` : `${seconds(row.seconds)} s`}, ${gib(row.reserved)} GiB</button> `)}</p>`;
}

/* Two rows of the answer that only a measurement tells apart. */
function Toss({ D, rows, compare }) {
  if (!D.toss) return null;
  const [first, second] = D.toss.rows.map(([job, spec]) => rows.find(row => row.job === job && row.spec === spec));
  return html`<p class="faster">${nameOf(D, first)} and ${nameOf(D, second)}: ${D.toss.why}.
    <button type="button" onClick=${() => compare(first, second)}>Compare the two, and see how to measure them</button></p>`;
}

function Basis({ D }) {
  const said = D.basis.map(([name, texts]) => [name, texts.filter(Boolean)]).filter(([, texts]) => texts.length);
  return html`<dl class="basis">${said.map(([name, texts]) => html`<dt key=${name}>${name}</dt>${texts.map(text => html`<dd key=${text}>${text}</dd>`)}`)}
    <dt>Rows</dt><dd>${many(D.rows.job.length, "row")}, one per recompute setting of ${many(D.jobs.seq.length, "job")}. ~ marks an estimate; peaks without ~ come from a simulation of torch's allocator.</dd>
    <dt>Command</dt><dd><code>${D.command}</code> (${D.version})</dd></dl>`;
}

function Rejected({ D }) {
  return html`<${Figures} summary=${`${D.rejected.length} settings that ${D.framework} refuses`} text head=${["setting", "why", "fix", "source"]} rows=${D.rejected} />`;
}

(async () => {
  const D = await unpacked(document.getElementById("data").textContent);
  UNIT = D.unit;
  document.getElementById("static").remove();
  render(html`<${App} D=${D} />`, document.getElementById("app"));
  document.documentElement.dataset.ready = "yes";
})();
