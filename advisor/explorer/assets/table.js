/* The rows that the controls leave, best first or by a column. */

const SHOWN = 25;

/* What a click on a title sorts by; where it is wide, a column for large screens only. */
const COLUMNS = [
  { key: "set", words: "recompute", of: row => row.spec },
  { key: "layout", words: "", of: (row, D) => changesOf(D, row.job).join(", ") },
  { key: "peak", words: "peak GiB", of: row => row.reserved },
  { key: "step", words: "step s", of: row => row.seconds },
  { key: "overhead", words: "overhead", wide: "spare", title: "step time over that of no recompute of the same job", of: (row, D) => overheadOf(D, row) },
  { key: "tokens", words: "tokens/s per GPU", wide: "spare", of: (row, D) => tokensOf(D, row) },
  { key: "flops", words: "TFLOP/s per GPU", wide: "roomy", of: row => row.flops },
  { key: "band", words: "band", wide: "roomy", alone: true, title: "9 of 10 measured runs lie within it", of: row => row.error },
  { key: "fits", words: "fits", title: "probability that no rank runs out of memory", of: (row, D, p) => p },
];

function sorted(D, list, sort) {
  const column = COLUMNS.find(one => one.key === sort.replace("-", "")), sign = sort.startsWith("-") ? -1 : 1;
  if (!column) return list;
  const keyed = list.map(one => [column.of(one.row, D, one.p), one]);
  keyed.sort(([a], [b]) => sign * (typeof a === "string" ? a.localeCompare(b) : a - b));
  return keyed.map(([, one]) => one);
}

function Rows({ D, state, list, front, chosen, budget, choose, change }) {
  const [more, setMore] = useState(0), ordered = useMemo(() => sorted(D, list, state.sort), [list, state.sort]);
  const shown = ordered.slice(0, SHOWN + more), away = ordered.findIndex(one => one.row === chosen);
  if (away >= shown.length) shown.push(ordered[away]);
  const layouts = list.some(one => one.row.job !== list[0].row.job);
  const base = degreesOf(D, 0).join(" ");
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
  const by = key => change({ sort: state.sort === key ? `-${key}` : state.sort === `-${key}` ? "" : key });
  const title = ({ key, words, wide, title }) => html`<th scope="col" key=${key} class=${[wide, key === "layout" ? "left layouts" : ""].join(" ")}
    aria-sort=${state.sort === key ? "ascending" : state.sort === `-${key}` ? "descending" : "none"}>
    <button type="button" class="sort" data-tip=${title} onClick=${() => by(key)}>${words || `changes from ${base}`}${key === "set" && layouts && html`<span class="narrow">, changes from ${base}</span>`}</button></th>`;
  return html`<div class="scroll rows" tabindex="0" role="region" aria-label="Settings, best first"><table>
    <caption class="unseen">Settings, ${state.sort ? "sorted" : "best first"}. Choose a row with its button, sort by the buttons of the titles.</caption>
    <thead><tr>${COLUMNS.filter(one => layouts ? !one.alone : one.key !== "layout").map(title)}</tr></thead>
    <tbody onKeyDown=${onKey}>${shown.map(({ row, p, tier }) => html`<tr key=${row.index}
        class=${[front.has(row) ? "" : "dominated", tier === 2 ? "over" : ""].join(" ")}
        aria-selected=${row === chosen} onClick=${() => choose(row)}>
      <th scope="row"><button type="button" class="row" aria-pressed=${row === chosen}>${broken(row.spec)}</button>
        ${layouts && html`<span class="narrow"><${Chips} words=${changesOf(D, row.job)} /></span>`}
        ${row.measured && html`<span class="measured">${row.measured}</span>`}</th>
      ${layouts && html`<td class="left layouts"><${Chips} words=${changesOf(D, row.job)} /></td>`}
      <td data-tip=${`${row.simulated ? "from a simulation of torch's allocator" : "an estimate"}, budget ${gib(budget)} GiB`}>${peakWords(row)}<svg class="bar" width="56" height="6" aria-hidden="true">
        <rect class="rest" width="56" height="6" rx="2" /><rect class=${tier === 2 ? "c-over" : "c-fits"} width=${Math.max(1, 56 * row.reserved / widest)} height="6" rx="2" />
        <line class="limit" x1=${56 * budget / widest} x2=${56 * budget / widest} y1="0" y2="6" /></svg></td>
      <td>${seconds(row.seconds)}</td><td class="spare">${overheadWords(D, row)}</td><td class="spare">${Math.round(tokensOf(D, row)).toLocaleString("en")}</td>
      <td class="roomy">${row.flops.toFixed(0)}</td>${!layouts && html`<td class="roomy">${band(row)}</td>`}
      <td class=${["good", "edge", "bad"][tier]}>${percent(p)}</td></tr>`)}</tbody></table>
    ${list.length === 0 && html`<p>No row matches the controls. ${state.only ? "Show also those that do not fit, or set" : "Set"} a control to “any”.</p>`}
    </div>
    <p class="note">${many(shown.length, "row")} of ${list.length.toLocaleString("en")}. Grey: dominated (another row is no larger and no slower).
    ${list.length > shown.length && html` <button type="button" onClick=${() => setMore(more + 100)}>Show 100 more</button>`}</p>`;
}

/* Words that are never broken, next to each other. */
const Chips = ({ words }) => words.length ? html`<ul class="chips">${words.map(text => html`<li key=${text}>${text.split(" ").map((word, i) => [i ? " " : "", html`<span>${word}</span>`])}</li>`)}</ul>` : html`<span class="soft as-is">as it is</span>`;

/* A setting that may be broken behind its commas only; a name behind its underscores. */
const broken = (text, at = ",+") => text.split(new RegExp(`(?<=[${at}])`)).map((part, i) => [i ? html`<wbr />` : "", html`<span>${part}</span>`]);
