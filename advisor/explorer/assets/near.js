/* What would be faster, and what other sequence lengths and numbers of GPUs cost. */

/* Of rows, the fastest that fits; null where none does. */
const fastest = rows => rows.reduce((best, row) => !best || row.seconds < best.seconds ? row : best, null);

/* Jobs of the same length on as many GPUs that are faster and fit: the fastest with one change, and of all. */
function Faster({ D, rows, axes, chosen, verdict, budget, show, compare }) {
  const sure = tierOf(fits(D, chosen, budget)) === 0;
  const found = useMemo(() => {
    const bar = sure ? chosen.seconds * 0.99 : Infinity;
    const better = rows.filter(row => row.seconds < bar && samePlace(axes, row.job, chosen.job) && fits(D, row, budget) >= LIKELY);
    const own = changesOf(D, chosen.job), apart = row => {
      const theirs = changesOf(D, row.job);
      return Math.max(own.filter(one => !theirs.includes(one)).length, theirs.filter(one => !own.includes(one)).length);
    };
    const all = [["same job", fastest(better.filter(row => row.job === chosen.job))], ["one change", fastest(better.filter(row => apart(row) === 1))], ["all", fastest(better)]];
    return all.filter(([, row], i) => row && !all.slice(0, i).some(([, before]) => before && before.seconds <= row.seconds));
  }, [chosen, budget]);
  const words = { "same job": "another recompute of this job", "one change": "one change of the job", all: "several changes of the job" };
  const gain = row => sure ? `${signed((row.seconds / chosen.seconds - 1) * 100)} % step time` : `${seconds(row.seconds)} s`;
  const changes = chosen.job === verdict.job ? D.remedies : [];
  return html`${found.length > 0 && html`<ul class="faster">${found.map(([name, row], i) => html`<li key=${name}>${i === found.length - 1 ? "Fastest of all, with" : "With"} ${words[name]}:${" "}<button type="button" onClick=${() => show(row)}>${nameOf(D, row)}</button> <b>${gain(row)}</b>, ${peakWords(row)} GiB</li>`)}</ul>`}
    ${!found.length && html`<p>${sure ? `No row of this page with ${lengthWords(D, chosen)} fits and is faster than ${nameOf(D, chosen)} by 1 % or more.` : `No row of this page with ${lengthWords(D, chosen)} fits.`}</p>`}
    <${Toss} ...${{ D, rows, compare }} />
    ${changes.length > 0 && html`<h3>Options that help</h3><ul class="faster">${changes.map(text => html`<li key=${text}>${broken(text, "_= ")}</li>`)}</ul>`}`;
}

const lengthWords = (D, row) => `${D.jobs.seq[row.job].toLocaleString("en")} tokens${D.packs ? " per GPU" : ""} on ${many(gpusOf(D, row), "GPU")}`;

/* Two rows of the answer that only a measurement tells apart. */
function Toss({ D, rows, compare }) {
  if (!D.toss) return null;
  const [first, second] = D.toss.rows.map(([job, spec]) => rows.find(row => row.job === job && row.spec === spec));
  return html`<p>${nameOf(D, first)} and ${nameOf(D, second)}: ${D.toss.why}.
    <button type="button" onClick=${() => compare(first, second)}>Compare the two, and see how to measure them</button></p>`;
}

/* Of each value of a place the fastest row that fits, else the smallest; the other place as it is. */
function bestOfEach(D, rows, axes, axis, chosen, budget) {
  const found = new Map(), others = PLACES.filter(one => one !== axis);
  for (const row of rows) {
    if (others.some(one => axes[one].own[row.job] !== axes[one].own[chosen.job])) continue;
    const value = axes[axis].own[row.job], best = found.get(value), fit = fits(D, row, budget) >= LIKELY;
    if (!best || (fit ? !best.fit || row.seconds < best.row.seconds : !best.fit && row.reserved < best.row.reserved)) found.set(value, { row, fit });
  }
  return axes[axis].values.filter(value => found.has(value)).map(value => ({ value, ...found.get(value) }));
}

const PLACE_TITLES = { seq: "Other sequence lengths", GPUs: "Other numbers of GPUs", rank: "Other ranks, or all weights", engine: "Other shares for the engine" };
const PLACE_WORDS = { seq: "tokens", GPUs: "GPUs", rank: "LoRA rank", engine: "share" };

/* A token budget stands where other jobs have the length of a sequence. */
function namePlaces(D) {
  if (D.packs) [AXIS_WORDS.seq, PLACE_TITLES.seq] = ["Tokens per GPU", "Other token budgets"];
}

/* What the best rows of several values say. */
function saidOf(D, axis, fit) {
  const solve = axis === "GPUs" ? "gpus" : D.packs ? "tokens" : "seq_length", word = D.packs ? "budgets" : axis === "seq" ? "lengths" : "numbers";
  if (axis === "rank") return "The job with another rank of its adapters, and without adapters: all weights are trained.";
  if (axis === "engine") return `${fit.length ? `Largest of these shares that fits: ${Math.max(...fit)}.` : "None of these shares fits."} A smaller share leaves less for the KV cache: fewer sequences are generated at once.`;
  if (!fit.length) return `No row with any of these ${word} fits with the job's options. advise --solve ${solve} looks further.`;
  if (axis === "GPUs") return `Of these numbers, ${Math.min(...fit)} is the fewest that fits with the job's options. advise --solve gpus looks further, and may change options.`;
  return `${D.packs ? "Largest" : "Longest"} of these that fits, on any layout with the job's options: ${Math.max(...fit).toLocaleString("en")} tokens. advise --solve ${solve} finds the ${D.packs ? "largest" : "longest"} of the job's own layout.`;
}

function Scale({ D, rows, axes, axis, chosen, budget, show }) {
  const found = useMemo(() => bestOfEach(D, rows, axes, axis, chosen, budget), [chosen, budget]);
  const fit = found.filter(one => one.fit).map(one => +one.value);
  return html`<p>${saidOf(D, axis, fit)}</p><div class="scroll" tabindex="0" role="region" aria-label=${`The best row of each: ${PLACE_WORDS[axis]}`}><table>
    <thead><tr><th scope="col">${PLACE_WORDS[axis]}</th><th scope="col" class="left">best row that fits</th><th scope="col">peak\u00a0GiB</th><th scope="col">step\u00a0s</th>
      <th scope="col" class="spare">tokens/s per GPU</th><th scope="col" class="spare">GPU\u2011hours per 10¹² tokens</th></tr></thead>
    <tbody>${found.map(({ value, row, fit }) => html`<tr key=${value} class=${axes[axis].own[chosen.job] === value ? "own" : ""}><th scope="row">${+value ? (+value).toLocaleString("en") : value}</th>
      <td class="left"><button type="button" class="row" onClick=${() => show(row)}>${broken(row.spec)}</button> ${changesOf(D, row.job).length > 0 && html`<${Chips} words=${changesOf(D, row.job)} />`}
        ${!fit && html`<span class="bad"> no row fits${row.reserved > budget ? "; this is the smallest" : ""}</span>`}</td>
      <td>${peakWords(row)}</td><td>${seconds(row.seconds)}</td><td class="spare">${Math.round(tokensOf(D, row)).toLocaleString("en")}</td>
      <td class="spare">${fit ? (+(1e12 / 3600 / tokensOf(D, row)).toPrecision(3)).toLocaleString("en") : "—"}</td></tr>`)}</tbody></table></div>`;
}

/* Samples of several lengths: what a microbatch is, and the longest row that some steps meet. */
const Samples = ({ said }) => html`<dl class="basis">${said[0].map(([name, words]) => html`<dt key=${name}>${name[0].toUpperCase()}${name.slice(1)}</dt><dd>${words}</dd>`)}</dl>
  ${said[1].length > 0 && html`<p>Longest row of all ranks by a step (half of the runs have a longer one):</p><div class="scroll" tabindex="0" role="region" aria-label="Longest row by a step"><table>
    <thead><tr>${["step", "longest row", "peak\u00a0GiB", "fits"].map(cell => html`<th scope="col" key=${cell}>${cell}</th>`)}</tr></thead>
    <tbody>${said[1].map(({ step, tokens, peak_reserved_bytes, fit_probability }) => html`<tr key=${step}><th scope="row">${step.toLocaleString("en")}</th><td>${tokens.toLocaleString("en")}</td><td>${gib(peak_reserved_bytes / UNIT)}</td><td>${percent(fit_probability)}</td></tr>`)}</tbody></table></div>`}
  ${said[2].map(words => html`<p class="bad" key=${words}>${words}</p>`)}`;
