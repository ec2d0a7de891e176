/* The rows that the controls leave, best first. */

const SHOWN = 25;

function Rows({ D, list, front, chosen, budget, choose }) {
  const [more, setMore] = useState(0);
  const shown = list.slice(0, SHOWN + more);
  const many = new Set(list.map(one => one.row.job)).size > 1;
  const base = chosen && list.find(one => one.row.job === chosen.job && one.row.kind === "none");
  const widest = Math.max(D.card, ...shown.map(one => one.row.reserved));
  const onKey = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = shown.findIndex(one => one.row === chosen), next = shown[at + step];
    if (!next) return;
    choose(next.row);
    const body = event.currentTarget;
    setTimeout(() => body.querySelector('[aria-pressed="true"]')?.focus(), 0);
  };
  return html`<div class="scroll rows" tabindex="0" role="region" aria-label="Settings, best first"><table>
    <caption class="unseen">Settings, best first. Choose a row with its button.</caption>
    <thead><tr><th scope="col">recompute</th>${many && html`<th scope="col" class="left">layout</th>`}
      <th scope="col">peak GiB</th><th scope="col" class="barcell"><span class="unseen">bar</span></th>
      <th scope="col">step s</th><th scope="col" class="spare">band</th><th scope="col" class="spare">TFLOP/s/GPU</th><th scope="col">fits</th></tr></thead>
    <tbody onKeyDown=${onKey}>${shown.map(({ row, p, tier }) => html`<tr key=${row.index}
        class=${[front.has(row) ? "" : "dominated", tier === 2 ? "over" : ""].join(" ")}
        aria-selected=${row === chosen} onClick=${() => choose(row)}>
      <th scope="row"><button type="button" class="row" aria-pressed=${row === chosen}>${broken(row.spec)}</button>
        ${row.measured && html`<span class="measured">${row.measured}</span>`}</th>
      ${many && html`<td class="left">${D.pool[D.jobs.apart[row.job]] || "the answer's"}</td>`}
      <td data-tip=${row.simulated ? "from a simulation of torch's allocator" : "an estimate"}>${peakWords(row)}</td>
      <td class="barcell"><svg class="bar" width="90" height="10" aria-hidden="true">
        <rect class=${tier === 2 ? "c-over" : "c-fits"} width=${Math.max(1, 90 * row.reserved / widest)} height="10" rx="2" />
        <line class="limit" x1=${90 * budget / widest} x2=${90 * budget / widest} y1="0" y2="10" /></svg></td>
      <td>${seconds(row.seconds)}</td><td class="spare">${band(row)}</td><td class="spare">${row.flops.toFixed(0)}</td>
      <td class=${["good", "edge", "bad"][tier]}>${percent(p)}</td></tr>`)}</tbody></table>
    ${list.length === 0 && html`<p>No row matches the controls. Set one of them to “any”.</p>`}
    </div>
    <p class="note">${shown.length} of ${list.length} rows. Grey: dominated (another row is no larger and no slower).
    ${list.length > shown.length && html` <button type="button" onClick=${() => setMore(more + 100)}>Show 100 more</button>`}</p>`;
}

/* A setting that may be broken behind its commas. */
const broken = spec => spec.split(/(?<=[,+])/).map((part, i) => i ? html`<wbr />${part}` : part);
