/* What to paste: the flags of each framework, and the line that measures. */

function Flags({ D, chosen }) {
  const [tab, setTab] = useState(0);
  const layout = D.pool[D.jobs.flags[chosen.job]], recompute = D.pool[D.rows.flags[chosen.index]];
  const unsaid = D.pool[D.jobs.unsaid[chosen.job]], variables = D.pool[D.rows.environment[chosen.index]];
  const words = [layout[tab], recompute[tab]].filter(Boolean).join(" ");
  const move = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (tab + step + D.frameworks.length) % D.frameworks.length;
    setTab(next);
    event.currentTarget.children[next].focus();
  };
  return html`<div role="tablist" aria-label="Framework" class="tabs" onKeyDown=${move}>${D.frameworks.map((name, i) =>
      html`<button type="button" role="tab" id=${`tab-${i}`} aria-selected=${i === tab} aria-controls="flags-panel" tabindex=${i === tab ? 0 : -1} onClick=${() => setTab(i)}>${name}</button>`)}</div>
    <div role="tabpanel" id="flags-panel" aria-labelledby=${`tab-${tab}`}>
      ${words ? html`<${Block} text=${words} label=${`flags for ${D.frameworks[tab]}`} />` : html`<p class="note">No flag is needed: the defaults do this.</p>`}
      ${unsaid[tab] && html`<p class="note">${unsaid[tab]}</p>`}</div>
    ${variables && html`<h3>Environment</h3><${Block} text=${`export ${variables}`} label="environment variables" />`}`;
}

function Block({ text, label }) {
  return html`<div class="paste"><pre tabindex="0" aria-label=${label}>${text.split(/([ \n]+)/).map((part, i) => i % 2 ? part : html`<span>${part}</span>`)}</pre><${Copy} text=${text} label=${label} /></div>`;
}

/* What Hydra's grammar reads as text without quotes (advisor/request/differences.py). */
const PLAIN = /^[A-Za-z_][\w.:=+-]*$/;

/* One `harness run` where both settings are of one job, else one each. */
function Measure({ D, list, front, chosen, other, change }) {
  const line = (job, rows, name) => {
    const around = D.pool[D.jobs.measure[job]];
    if (!around.length) return "";
    const specs = rows.map(row => PLAIN.test(row.spec) ? row.spec : `'${row.spec}'`).join(",");
    const quote = specs.includes("'") ? '"' : "'";
    return `${around[0]}${quote}recompute.settings=[${specs}]${quote}${around[1]}${name ? ` name=${name}` : ""}`;
  };
  const together = other && other.job === chosen.job && other !== chosen;
  const lines = together ? [line(chosen.job, [chosen, other])] : [line(chosen.job, [chosen]), other && line(other.job, [other])];
  const text = lines.filter(Boolean).join("\n");
  if (!text) return html`<p>No line of harness run makes this job.</p>`;
  const gate = [line(chosen.job, [chosen], "baseline"), 'harness golden update --reason "first baseline" runs/baseline',
    "RUN=gate-$(date +%s)", line(chosen.job, [chosen], "$RUN"), "harness compare runs/$RUN"].join("\n");
  const lost = D.pool[D.jobs.measure[chosen.job]][2];
  const runner = list.find(one => one.tier === 0 && one.row !== chosen && front.has(one.row));
  return html`<${Block} text=${text} label="harness line" />
    <p class="note">${lost && `harness run differs from this job: it sets ${lost}. `}Add <code>--dry-run</code> to see the options and the predictions without a run.</p>
    ${!D.toss && runner && runner.row !== other && html`<p class="note">The answer proposes no rows to measure. To measure a second row, take the fastest other one that fits and is not dominated:${" "}<button type="button" class="runner" onClick=${() => change({ other: runner.row.index })}>${nameOf(D, runner.row)}</button></p>`}
    <h3>Gate this row in CI</h3><${Block} text=${gate} label="harness lines of a gate" />
    <p class="note">Run the first two lines once, and the other three in every CI job. Exit codes of <code>harness compare</code>: 0 as fast and as small as the baseline, 1 a regression, 3 no verdict, 4 a run failed.</p>`;
}
