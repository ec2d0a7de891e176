/* The page: one sentence that answers, the controls, and pictures that follow them. */

function App({ D }) {
  const rows = useMemo(() => rowsOf(D), []), axes = useMemo(() => axisValues(D), []), verdict = useMemo(() => verdictOf(D, rows), []);
  const [state, setState] = useState(() => initial(D, axes, rows));
  const change = useCallback(some => setState(before => ({ ...before, ...some })), []);
  const visible = useMemo(() => rows.filter(row => matches(axes, state, row)), [state.filters, state.kind, state.offload]);
  const list = useMemo(() => ranked(D, visible, state.budget).filter(one => !state.only || one.tier === 0), [visible, state.budget, state.only]);
  const frontRows = useMemo(() => frontOf(list.map(one => one.row)), [list]), front = useMemo(() => new Set(frontRows), [frontRows]);
  const chosen = chosenOf(rows, state, list, verdict, D), other = otherOf(rows, state, chosen);
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
      [axis, isPlace(axis) || axes[axis].own[row.job] === axes[axis].own[beside.job] ? axes[axis].own[row.job] : ""])) }));
  const inUpdate = chosen && D.pool[D.rows.cycle[chosen.index]].length ? " in the update" : "";
  const show = row => setState(before => ({ ...before, row: row.index, kind: "", offload: "", only: false,
    filters: Object.fromEntries(Object.keys(axes).map(axis => [axis, (isPlace(axis) || before.filters[axis]) && axes[axis].own[row.job]])) }));
  const home = () => setState(() => fresh(D, axes));
  const of = { D, axes, rows, state, list, visible, front, frontRows, chosen, other, verdict, budget: state.budget, choose, change, show, home, compare };
  return html`<${Head} ...${of} /><${Controls} ...${of} />
    <main>
      <div class="stack most"><${Card} id="h-rows" title="Settings"><${Rows} ...${of} /><//>
        ${chosen && html`<${Card} id="h-faster" title="What would be faster"><${Faster} ...${of} /><//>
        ${PLACES.filter(axis => axes[axis].values.length > 1).map(axis => html`<${Card} id=${`h-${axis}`} title=${PLACE_TITLES[axis]} shape="late"><${Scale} axis=${axis} ...${of} /><//>`)}`}
        ${D.samples.length > 0 && chosen === verdict && html`<${Card} id="h-samples" title="Samples of several lengths"><${Samples} said=${D.samples} /><//>`}
        <${Card} id="h-sure" title="What the predictions rest on" shape="late"><${Basis} D=${D} />
          ${D.rejected.length > 0 && html`<${Rejected} D=${D} />`}<//></div>
      <div class="stack rest"><${Card} id="h-front" title="Peak memory and step time"><${Pareto} ...${of} /><//>
        ${inUpdate && html`<${Card} id="h-cycle" title="Phases of a cycle"><${Cycle} ...${of} /><//>`}
        ${chosen && html`<${Card} id="h-memory" title=${`Where the memory of the worst rank goes${inUpdate}`}><${Waterfall} ...${of} /><//>
        <${Card} id="h-stages" title=${`Memory of ${chosen.fixed.length > 1 ? "every pipeline stage" : "the only stage"}${inUpdate}`}><${Stages} ...${of} /><//>
        <${Card} id="h-time" title=${`Where the time goes${inUpdate}`}><${Time} ...${of} /><//>`}</div>
      ${chosen && html`
      <${Card} id="h-step" title=${`One ${inUpdate ? "update" : "step"}: passes and live memory of every stage`} shape="wide"><${Step} ...${of} /><//>
      <${Card} id="h-layer" title="What one layer keeps for the backward" shape="wide"><${Layer} ...${of} /><//>
      <${Card} id="h-flags" title="Flags to paste"><${Flags} ...${of} /><//>
      <${Card} id="h-measure" title=${other ? "Measure both rows" : "Measure this row"}><${Measure} ...${of} /><//>`}
    </main><${Tips} />`;
}

/* The row asked for where the controls leave it; else the verdict's, as long as the budget is that of the answer; else the best. */
function chosenOf(rows, state, list, verdict, D) {
  const left = row => row && list.some(one => one.row === row), asked = state.row === null ? null : rows[state.row];
  if (left(asked)) return asked;
  if (state.budget === D.budget && left(verdict)) return verdict;
  return list.length ? list[0].row : asked;
}

/* The row to compare with: the one asked for, else no recompute of the same job. -1 is nothing. */
function otherOf(rows, state, chosen) {
  if (!chosen || state.other === -1) return null;
  if (state.other !== null && rows[state.other] !== chosen) return rows[state.other];
  const none = rows.find(row => row.job === chosen.job && row.spec === "none");
  return none && none !== chosen ? none : null;
}

function Head({ D, rows, state, list, chosen, verdict, budget, show, home }) {
  const typed = D.typed && rows.find(row => row.job === D.typed[0] && row.spec === D.typed[1]);
  const best = list.find(one => one.tier === 0), p = chosen && fits(D, chosen, budget), job = chosen ? chosen.job : 0;
  const said = [D.parameters + " parameters", `${chosen ? gpusOf(D, chosen) : D.gpus} × ${D.gpu}`, D.precision];
  return html`<header><div class="top"><h1>${D.model}</h1><${Copy} text=${() => location.href} label="link of this view" words="Copy link" /></div>
    <p class="sub">${said.join(" · ")}</p>
    <p class="sub"><b class="layout">${broken([D.pool[D.jobs.layout[job]], ...D.pool[D.jobs.row[job]]].join(" · "), "| ")}</b>${[D.recipe && html`recipe ${broken(D.recipe, "_")}`, D.framework, ...D.pool[D.jobs.runs[job]]].filter(Boolean).map(text => html` · ${text}`)}</p>
    <p class="verdict" role="status">${chosen ? html`<b class=${["good", "edge", "bad"][tierOf(p)]}>${nameOf(D, chosen)}</b>
      ${` ${tierOf(p) === 0 ? "fits" : tierOf(p) === 1 ? "may fit" : "does not fit"}: ${peakWords(chosen)} of ${gib(budget)} GiB, ${percent(p)} likely. One step takes ${seconds(chosen.seconds)} s ${band(chosen)}, ${Math.round(tokensOf(D, chosen)).toLocaleString("en")} tokens/s per GPU.`}` : "No row matches the controls."}
      ${chosen && !best && html` <b class="bad">No row that matches the controls fits.</b>`}
      ${best && tierOf(p) > 0 && html` <button type="button" onClick=${() => show(best.row)}>Fastest that fits: ${nameOf(D, best.row)}, ${seconds(best.row.seconds)} s</button>`}</p>
    <p class="note">${D.verdict}${typed && typed !== verdict && typed !== chosen && html` <button type="button" onClick=${() => show(typed)}>Show the job as typed</button>`}
      ${chosen !== verdict && html` <button type="button" onClick=${home}>Back to the answer</button>`}</p>
    ${chosen && chosen.measured && html`<p class="note">${chosen.measured}; predicted: ${seconds(chosen.seconds)} s, ${peakWords(chosen)} GiB</p>`}
    ${chosen && D.pool[D.rows.notes[chosen.index]].map(note => html`<p class="note" key=${note}>${note}</p>`)}</header>`;
}

function Basis({ D }) {
  const said = D.basis.map(([name, texts]) => [name, texts.filter(Boolean)]).filter(([, texts]) => texts.length);
  return html`<dl class="basis">${said.map(([name, texts]) => html`<dt key=${name}>${name}</dt>${texts.map(text => html`<dd key=${text}>${broken(text, "_ ")}</dd>`)}`)}
    <dt>Rows</dt><dd>${many(D.rows.job.length, "row")}, one per recompute setting of ${many(D.jobs.seq.length, "job")}. ~ marks an estimate; peaks without ~ come from a simulation of torch's allocator.</dd>
    <dt>Command</dt><dd><code>${D.command}</code> (${D.version})</dd></dl>`;
}

function Rejected({ D }) {
  return html`<${Figures} summary=${`${D.rejected.length} settings that ${D.framework} refuses`} text head=${["setting", "why", "fix", "source"]} rows=${D.rejected} />`;
}

(async () => {
  const D = await unpacked(document.getElementById("data").textContent);
  UNIT = D.unit;
  namePlaces(D);
  document.getElementById("static").remove();
  render(html`<${App} D=${D} />`, document.getElementById("app"));
  document.documentElement.dataset.ready = "yes";
})();
