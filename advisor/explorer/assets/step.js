/* The step as a picture: passes of every stage, and what is alive beneath them. */

const PART_KEYS = ["recompute", "", "exposed_communication", "offload", "host", "stragglers"];

const digits = text => typeof text === "string" ? Array.from(text, c => parseInt(c, 36)) : text;

/* A pass with its seconds and bytes: see advisor/explorer/step_numbers.py. */
function chunkOf(D, number) {
  const [[layers, embedding, head], forward, backward, kept, most, mostBack, left] = D.pool[number];
  const passes = [forward, backward].map(parts => ({ parts: parts.map(us => us / 1e6), total: parts.reduce((a, b) => a + b, 0) / 1e6 }));
  return { layers, embedding, head, passes, kept, most: [most, mostBack], left };
}

/* The folds of advisor/step/timeline.py and live_memory.py. */
function stepOf(D, row) {
  const number = D.jobs.schedule[row.job];
  if (number < 0) return null;
  const schedule = D.pool[number], order = digits(schedule.order), vpp = D.jobs.vpp[row.job], pp = schedule.warmup.length;
  const chunks = D.pool[D.rows.chunks[row.index]].map(stage => stage.map(one => chunkOf(D, one)));
  const stages = folded(order, schedule.warmup, vpp, chunks);
  const tail = D.rows.tail[row.index].map(us => us / 1e6), behind = tail.reduce((a, b) => a + b, 0);
  const last = Math.max(...stages.map(passes => passes[passes.length - 1].end)), stretch = (row.seconds - behind) / last;
  for (const passes of stages) for (const one of passes) { one.start *= stretch; one.end *= stretch; }
  const fixed = D.pool[D.rows.static[row.index]], optimizer = D.pool[D.rows.optimizer[row.index]];
  const memory = stages.map((passes, s) => levels(passes, chunks[s], digits(schedule.held[s]), fixed[s], D.rows.sent[row.index], optimizer[s]));
  return { pp, vpp, chunks, stages, memory, tail, stretch, end: row.seconds, pipeline: row.seconds - behind };
}

function passesOf(order, warmup, vpp) {
  const back = chunk => vpp - 1 - chunk, found = order.slice(0, warmup).map(chunk => [0, chunk]);
  for (let k = warmup; k < order.length; k++) found.push([0, order[k]], [1, back(order[k - warmup])]);
  for (let k = order.length - warmup; k < order.length; k++) found.push([1, back(order[k])]);
  return found;
}

/* Start and end of every pass: it waits for its stage, and for what it starts from. */
function folded(order, warmups, vpp, chunks) {
  const pp = warmups.length, last = pp * vpp - 1, ends = new Map(), found = warmups.map(() => []);
  const waiting = warmups.map(warmup => passesOf(order, warmup, vpp)), at = warmups.map(() => 0);
  const begun = warmups.map(() => [new Int32Array(vpp), new Int32Array(vpp)]);
  for (let moved = true; moved;) {
    moved = false;
    for (let s = 0; s < pp; s++) {
      for (; at[s] < waiting[s].length; at[s]++, moved = true) {
        const [backward, chunk] = waiting[s][at[s]], microbatch = begun[s][backward][chunk], place = chunk * pp + s;
        const first = place === (backward ? last : 0), before = backward ? place + 1 : place - 1;
        const arrived = first ? 0 : ends.get((microbatch * (last + 1) + before) * 2 + backward);
        if (arrived === undefined) break;
        begun[s][backward][chunk]++;
        const free = found[s].length ? found[s][found[s].length - 1].end : 0, start = Math.max(arrived, free);
        const end = start + chunks[s][chunk].passes[backward].total;
        ends.set((microbatch * (last + 1) + place) * 2 + backward, end);
        found[s].push({ backward, chunk, microbatch, start, end });
      }
    }
  }
  return found;
}

/* Units before, in and after every pass, and the peak. */
function levels(passes, chunks, held, fixed, sent, [optimizer, optimizerPoint]) {
  const left = chunks.map(() => 0), found = [];
  let kept = fixed, peak = fixed + optimizer, place = null, point = optimizerPoint;
  passes.forEach(({ backward, chunk }, i) => {
    const own = chunks[chunk], states = held[i] * sent;
    left[chunk] = 0;
    const stays = left.reduce((a, b) => a + b, 0), before = kept + states + stays;
    const highest = kept - (backward ? own.kept : 0) + states + own.most[backward][0] + stays;
    kept += backward ? -own.kept : own.kept;
    left[chunk] = backward ? own.left : 0;
    found.push([before, highest, kept + states + stays + left[chunk]]);
    if (highest > peak || (place === null && highest === peak)) { peak = highest; place = i; point = own.most[backward][1]; }
  });
  return { levels: found, peak, place, point, fixed, last: fixed + optimizer };
}

/* The part of a step that is shown, in seconds: whole where it is short, else around its peak. */
function windows(step, shown) {
  const passes = step.stages[0], whole = [0, step.end], count = passes.length;
  if (count <= shown * 1.2) return { "Whole step": whole };
  const length = shown * (passes[count - 1].end - passes[0].start) / count;
  const stage = step.memory.reduce((a, b, s) => b.peak > step.memory[a].peak ? s : a, 0), { place } = step.memory[stage];
  const middle = place === null ? step.end : (step.stages[stage][place].start + step.stages[stage][place].end) / 2;
  const from = Math.max(0, Math.min(step.end - length, middle - length / 2));
  return { "Around the peak": [from, from + length], "Warm-up": [0, length], "End": [step.end - length, step.end], "Whole step": whole };
}

function Step({ D, chosen, other, budget }) {
  const step = useMemo(() => stepOf(D, chosen), [chosen]), beside = useMemo(() => other && stepOf(D, other), [other]);
  const [ref, width] = useWidth(1200), canvas = useRef(null), [asked, setAsked] = useState(null);
  const views = step ? windows(step, width < 600 ? 14 : 40) : {}, usual = Object.values(views)[0];
  useEffect(() => setAsked(null), [chosen]);
  const view = asked || usual;
  const many = step && step.pp > 8, lane = many ? { bar: 14, memory: 34, gap: 6 } : { bar: 22, memory: 66, gap: 12 };
  const limits = step && step.memory.map((_, s) => budget - stageOf(D, chosen, s).parts.overhead);
  const shape = step && { left: 64, right: 12, top: 6, lane, each: lane.bar + lane.memory + lane.gap, width, view,
    height: 6 + step.pp * (lane.bar + lane.memory + lane.gap) + 28, ...heights(step, beside, limits), limits, budget };
  const dark = useDark();
  useLayoutEffect(() => { if (step) drawStep(canvas.current, D, step, beside, shape); }, [step, beside, width, view, dark, budget]);
  useEffect(() => step && printed(() => drawStep(canvas.current, D, step, beside, shape)), [step, beside, width, view, budget]);
  const [tip, setTip] = useState("");
  if (!step) return html`<p>This step has too many passes to draw.</p>`;
  const shown = (Object.entries(views).find(([, span]) => view[0] === span[0] && view[1] === span[1]) || [])[0];
  const length = view[1] - view[0], whole = step.end;
  const moved = (from, long) => { const size = Math.max(whole * 1e-4, Math.min(long, whole)), start = Math.max(0, Math.min(whole - size, from)); setAsked([start, start + size]); };
  const onKey = event => {
    const act = { ArrowRight: () => moved(view[0] + length / 4, length), ArrowLeft: () => moved(view[0] - length / 4, length),
      "+": () => moved(view[0] + length / 4, length / 2), "-": () => moved(view[0] - length / 2, length * 2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
  const drag = event => {
    if (event.buttons !== 1 || event.pointerType === "touch") return;
    moved(view[0] - event.movementX * length / (width - shape.left - shape.right), length);
  };
  const worst = step.memory.reduce((a, b, s) => b.peak > step.memory[a].peak ? s : a, 0), peak = step.memory[worst];
  return html`<div class="buttons" role="group" aria-label="Part of the step">
      ${Object.entries(views).map(([name, span]) => html`<button type="button" key=${name} aria-pressed=${name === shown} onClick=${() => setAsked(span)}>${name}</button>`)}
      <button type="button" aria-label="Earlier" onClick=${() => moved(view[0] - length / 2, length)}>←</button>
      <button type="button" aria-label="Later" onClick=${() => moved(view[0] + length / 2, length)}>→</button>
      <button type="button" aria-label="Zoom in" onClick=${() => moved(view[0] + length / 4, length / 2)}>+</button>
      <button type="button" aria-label="Zoom out" onClick=${() => moved(view[0] - length / 2, length * 2)}>−</button>
      <span class="note">${clock(view[0], whole)} to ${clock(view[1], whole)} of ${clock(whole, whole)}</span></div>
    <div ref=${ref}><canvas ref=${canvas} class="step" tabindex="0" role="img" data-tip=${tip} onKeyDown=${onKey}
      onPointerMove=${event => { drag(event); setTip(stepTip(D, step, shape, event)); }} onPointerLeave=${() => setTip("")}
      aria-label=${`${step.pp} stages, ${D.jobs.microbatches[chosen.job]} microbatches, one step of ${seconds(whole)} s. Highest allocated memory: stage ${worst}, ${gib(peak.peak)} GiB, ${peak.place === null ? "in the optimizer's step" : `at ${millis(step.stages[worst][peak.place].start)}`}, ${D.pool[peak.point]}.`}></canvas></div>
    <${Key} items=${[...["forward", "backward", "recompute", "exposed_communication", "optimizer", "pipeline_bubble"].map(timeKey), ...(step.tail[1] || D.times.some((name, i) => name === "offload" && chosen.times[i]) ? [timeKey("offload")] : []), ...(chosen.times[D.times.indexOf("host")] ? [timeKey("host")] : []), ...(chosen.times[D.times.indexOf("stragglers")] ? [timeKey("stragglers")] : []), ["", `number: microbatch${step.vpp > 1 ? "; paler: a later virtual stage (chunk)" : ""}`], ["s-memory", `allocated memory above the ${gib(Math.min(...step.memory.map(one => one.fixed)))} GiB of weights, gradients and optimizer; dot: the peak`], ["s-dash", "dashed: the budget less what is reserved besides"], ...(beside ? [["s-line", `line: allocated memory of ${nameOf(D, other)}`]] : [])]} />
    <p class="note">Peak: ${gib2(peak.peak)} GiB allocated on stage ${worst}${peak.place === null ? ", in the optimizer's step" : `, in the ${step.stages[worst][peak.place].backward ? "backward" : "forward"} of microbatch ${step.stages[worst][peak.place].microbatch}`}: ${D.pool[peak.point]}.
      ${limits[worst] > shape.most ? ` The budget leaves ${gib2(limits[worst] - peak.peak)} GiB above it.` : ""}
      ${Math.abs(step.stretch - 1) > 0.005 && ` All passes are drawn ${(Math.abs(step.stretch - 1) * 100).toFixed(1)} % ${step.stretch > 1 ? "longer" : "shorter"}, so that the step ends at its predicted time.`}</p>
    <${Figures} summary=${`Passes of stage ${worst} as a table`} head=${["pass", "chunk", "microbatch", "start ms", "end ms", "highest GiB"]}
      rows=${step.stages[worst].slice(0, 400).map((one, i) => [one.backward ? "backward" : "forward", one.chunk, one.microbatch, (one.start * 1e3).toFixed(1), (one.end * 1e3).toFixed(1), gib2(peak.levels[i][1])])} />`;
}

/* Levels between which every curve is drawn: up to the limit where that is not far above the peaks. */
function heights(step, beside, limits) {
  const peaks = Math.max(...step.memory.map(one => one.peak), ...(beside ? beside.memory.map(one => one.peak) : [0]));
  const least = Math.min(...step.memory.map(one => one.fixed)), limit = Math.max(...limits);
  return { least, most: limit - least < 2.5 * (peaks - least) ? Math.max(peaks, limit) : peaks };
}

/* On paper everything is light: `draw` before printing and after it; gives what ends that. */
function printed(draw) {
  const print = on => () => { document.documentElement.toggleAttribute("data-print", on); draw(); };
  const before = print(true), after = print(false);
  addEventListener("beforeprint", before);
  addEventListener("afterprint", after);
  return () => { removeEventListener("beforeprint", before); removeEventListener("afterprint", after); };
}

function useDark() {
  const query = matchMedia("(prefers-color-scheme: dark)"), [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const act = () => setDark(query.matches);
    query.addEventListener("change", act);
    return () => query.removeEventListener("change", act);
  }, []);
  return dark;
}

function drawStep(canvas, D, step, beside, shape) {
  const ratio = devicePixelRatio || 1, { width, height, left, right, top, lane, each, view } = shape;
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const c = canvas.getContext("2d"), style = getComputedStyle(canvas), colour = name => style.getPropertyValue(`--${name}`);
  c.scale(ratio, ratio);
  c.font = '11px system-ui, "DejaVu Sans", sans-serif';
  const x = s => left + (s - view[0]) / (view[1] - view[0]) * (width - left - right);
  const { least, most, limits } = shape;
  const y = (s, units) => top + s * each + lane.bar + lane.memory - Math.max(0, units - least) / (most - least) * (lane.memory - 14);
  const colours = ["recompute", "", "communication", "offload", "host", "stragglers"].map(name => name && colour(name));
  for (let s = 0; s < step.pp; s++) {
    const base = top + s * each;
    c.save();
    c.beginPath(); c.rect(left, base - 2, width - left - right, each); c.clip();
    c.fillStyle = colour("bubble");
    c.fillRect(x(0), base, x(step.pipeline) - x(0), lane.bar);
    for (const one of step.stages[s]) {
      if (one.end < view[0] || one.start > view[1]) continue;
      const { parts, total } = step.chunks[s][one.chunk].passes[one.backward], scale = (one.end - one.start) / total;
      let at = one.start;
      parts.forEach((part, i) => {
        if (!part) return;
        const from = at;
        at += part * scale;
        c.globalAlpha = i === 1 ? 1 - 0.45 * (one.chunk / Math.max(1, step.vpp)) : 1;
        c.fillStyle = i === 1 ? colour(one.backward ? "backward" : "forward") : colours[i];
        c.fillRect(x(from), base, Math.max(0.5, x(at) - x(from)), lane.bar);
      });
      c.globalAlpha = 1;
      const room = x(one.end) - x(one.start);
      if (room > 4) { c.strokeStyle = colour("card"); c.lineWidth = 1; c.strokeRect(x(one.start), base, room, lane.bar); }
      if (room > 16) { c.fillStyle = one.backward ? "#fff" : "#0b2436"; c.textAlign = "center"; c.fillText(one.microbatch, (x(one.start) + x(one.end)) / 2, base + lane.bar / 2 + 4); }
    }
    tailBars(c, step, x, base, lane, colour);
    area(c, step.memory[s], step.stages[s], s, x, y, step, colour("memory"), true);
    if (beside && beside.memory[s]) area(c, beside.memory[s], beside.stages[s], s, x, y, beside, colour("ink"), false);
    budgetLine(c, s, y, colour, shape);
    c.restore();
    peakMark(c, step, s, x, y, colour, shape);
    c.fillStyle = colour("soft"); c.textAlign = "right";
    c.fillText(`stage ${s}`, left - 8, base + lane.bar / 2 + 4);
    if (lane.memory > 30) c.fillText(`${gib(step.memory[s].peak)} GiB`, left - 8, base + lane.bar + lane.memory / 2 + 6);
  }
  c.fillStyle = colour("soft"); c.textAlign = "center";
  for (const t of ticks(view[0], view[1], width < 600 ? 4 : 8)) c.fillText(clock(t, view[1]), Math.max(left + 20, Math.min(width - 30, x(t))), height - 8);
}

/* What a stage may allocate under the budget: less what is reserved besides. */
function budgetLine(c, s, y, colour, shape) {
  const { limits, most, least, left, right, width, budget } = shape;
  if (limits[s] > most * 1.0001 || limits[s] <= least) return;
  c.strokeStyle = colour("ink"); c.lineWidth = 1; c.setLineDash([4, 3]);
  c.beginPath(); c.moveTo(left, y(s, limits[s])); c.lineTo(width - right, y(s, limits[s])); c.stroke();
  c.setLineDash([]);
  haloed(c, `budget ${gib(budget)} GiB − ${gib(budget - limits[s])} overhead`, width - right - 4, y(s, limits[s]) - 3, "right", colour);
}

function haloed(c, text, x, y, align, colour) {
  c.textAlign = align; c.lineWidth = 3; c.strokeStyle = colour("card"); c.fillStyle = colour("ink");
  c.strokeText(text, x, y); c.fillText(text, x, y);
}

/* Behind the pipeline: gradients' reduction, sums on the host, optimizer. */
function tailBars(c, step, x, base, lane, colour) {
  let at = step.pipeline;
  ["communication", "offload", "optimizer"].forEach((name, i) => {
    if (!step.tail[i]) return;
    c.fillStyle = colour(name);
    c.fillRect(x(at), base, Math.max(0.5, x(at + step.tail[i]) - x(at)), lane.bar);
    at += step.tail[i];
  });
}

/* Rising to the highest level within each pass, and down to what is alive after it. */
function area(c, memory, passes, s, x, y, step, colour, filled) {
  c.beginPath();
  c.moveTo(x(0), y(s, memory.fixed));
  passes.forEach((one, i) => {
    const [before, highest, after] = memory.levels[i], middle = (one.start + one.end) / 2;
    c.lineTo(x(one.start), y(s, before)); c.lineTo(x(middle), y(s, highest)); c.lineTo(x(one.end), y(s, after));
  });
  for (const [back, level] of [[step.tail[2], memory.fixed], [step.tail[2] / 2, memory.last], [0, memory.fixed]]) c.lineTo(x(step.end - back), y(s, level));
  if (filled) {
    c.lineTo(x(step.end), y(s, 0)); c.lineTo(x(0), y(s, 0));
    c.fillStyle = colour; c.fill();
  } else { c.strokeStyle = colour; c.lineWidth = 1; c.stroke(); }
}

function peakMark(c, step, s, x, y, colour, shape) {
  const { place, peak } = step.memory[s], one = place === null ? null : step.stages[s][place];
  const px = x(one ? (one.start + one.end) / 2 : step.end - step.tail[2] / 2), py = y(s, peak);
  if (px < shape.left || px > shape.width - shape.right) return;
  c.fillStyle = colour("over");
  c.beginPath(); c.arc(px, py, 4, 0, 7); c.fill();
  const right = px < shape.width - shape.right - 70;
  haloed(c, `${gib(peak)} GiB`, px + (right ? 8 : -8), py + 12, right ? "left" : "right", colour);
}

const tailWords = step => ["gradient reduction", "sums on the host", "optimizer"]
  .map((words, i) => step.tail[i] ? `${words} ${millis(step.tail[i])}` : "").filter(Boolean).join(", ");

function stepTip(D, step, shape, event) {
  const box = event.currentTarget.getBoundingClientRect(), { left, right, width, view, top, each } = shape;
  const t = view[0] + (event.clientX - box.left - left) / (width - left - right) * (view[1] - view[0]);
  const s = Math.floor((event.clientY - box.top - top) / each);
  if (s < 0 || s >= step.pp || t < 0 || t > step.end) return "";
  const i = step.stages[s].findIndex(one => t >= one.start && t <= one.end);
  if (i < 0) return t > step.pipeline ? `stage ${s}: after the last pass: ${tailWords(step)}` : `stage ${s}: ${TIME_WORDS.pipeline_bubble}`;
  const one = step.stages[s][i], { parts } = step.chunks[s][one.chunk].passes[one.backward];
  const words = PART_KEYS.map(name => TIME_WORDS[name || (one.backward ? "backward" : "forward")]);
  const said = parts.map((part, k) => part ? `${words[k]} ${millis(part)}` : "").filter(Boolean).join(", ");
  return `stage ${s}, microbatch ${one.microbatch}${step.vpp > 1 ? `, chunk ${one.chunk}` : ""}: ${said}; highest ${gib2(step.memory[s].levels[i][1])} GiB in the ${D.pool[step.chunks[s][one.chunk].most[one.backward][1]]}`;
}
