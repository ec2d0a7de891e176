/* Memory against time of every row that the controls leave. */

const PAD = { left: 52, right: 16, top: 20, bottom: 40 };

function Pareto({ D, list, frontRows, chosen, other, budget, choose }) {
  const [ref, width] = useWidth(560), height = Math.max(280, Math.min(440, width * 0.8)), canvas = useRef(null);
  const scale = useMemo(() => scaleOf(frontRows, chosen, other, budget, width, height), [frontRows, chosen, other, budget, width, height]);
  const { x, y } = scale;
  useLayoutEffect(() => drawDots(canvas.current, list, scale, width, height, budget, D), [list, scale, budget]);
  const inside = row => scale.holds(row), onFront = useMemo(() => new Set(frontRows), [frontRows]);
  const near = event => {
    const box = event.currentTarget.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 22 * 22;
    for (const { row } of list) {
      const away = (x(row.reserved) - px) ** 2 + (y(row.seconds) - py) ** 2 - (onFront.has(row) ? 30 : 0);
      if (away < least) { least = away; best = row; }
    }
    return best;
  };
  const [tip, setTip] = useState("");
  const point = event => { const row = near(event); setTip(row ? tipOf(D, row, budget) : ""); };
  const onKey = event => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!step || !frontRows.length) return;
    event.preventDefault();
    const at = frontRows.indexOf(chosen);
    choose(frontRows[Math.max(0, Math.min(frontRows.length - 1, (at < 0 ? 0 : at + step)))]);
  };
  const drawn = frontRows.filter(inside), labels = useMemo(() => placed(D, list, drawn, [chosen, other].filter(row => row && inside(row)), scale, budget, width, height), [list, scale]);
  const line = drawn.map((row, i) => `${i ? `H${x(row.reserved)}V` : `M${x(row.reserved)},`}${y(row.seconds)}`).join("");
  const away = list.filter(one => !inside(one.row)), slower = away.filter(one => one.row.seconds > scale.slow).length;
  const edge = Math.max(PAD.left, Math.min(width - PAD.right, x(budget)));
  return html`<div class="plot" ref=${ref} style=${`height:${height}px`}>
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} tabindex="0" role="application" data-tip=${tip}
      aria-label=${`Peak memory against step time: ${many(frontRows.length, "row")} on the Pareto front. Arrow keys move along the front. ${chosen ? tipOf(D, chosen, budget) : ""}`}
      onPointerMove=${point} onPointerLeave=${() => setTip("")} onKeyDown=${onKey}
      onClick=${event => { const row = near(event); if (row) choose(row); }}>
      <rect class="beyond" x=${edge} y=${PAD.top} width=${width - PAD.right - edge} height=${height - PAD.top - PAD.bottom} />
      ${scale.xs.map(t => html`<g key=${`x${t}`}><line class="grid" x1=${x(t * GIB / UNIT)} x2=${x(t * GIB / UNIT)} y1=${PAD.top} y2=${height - PAD.bottom} />
        <text class="soft" text-anchor="middle" x=${x(t * GIB / UNIT)} y=${height - PAD.bottom + 16}>${t}</text></g>`)}
      ${scale.ys.map(t => html`<g key=${`y${t}`}><line class="grid" x1=${PAD.left} x2=${width - PAD.right} y1=${y(t)} y2=${y(t)} />
        <text class="soft" text-anchor="end" x=${PAD.left - 6} y=${y(t) + 4}>${t}</text></g>`)}
      <text class="soft" text-anchor="middle" x=${(PAD.left + width - PAD.right) / 2} y=${height - 6}>peak reserved memory of the worst rank, GiB</text>
      <text class="soft" text-anchor="middle" transform=${`translate(13 ${(height - PAD.bottom) / 2}) rotate(-90)`}>step time, s</text>
      <line class="limit" x1=${x(budget)} x2=${x(budget)} y1=${PAD.top} y2=${height - PAD.bottom} />
      <text class="soft" x=${x(budget)} y=${PAD.top - 5} text-anchor=${x(budget) > width - 90 ? "end" : "middle"}>budget ${gib(budget)} GiB</text>
      <path class="front" d=${line} />
      ${drawn.map(row => html`<${Mark} key=${row.index} x=${x(row.reserved)} y=${y(row.seconds)} tier=${tierOf(fits(D, row, budget))} />`)}
      ${[[other, "other"], [chosen, "chosen"]].map(([row, name]) => row && inside(row) && html`<g key=${name} class=${name}>
        <line class="whisker" x1=${x(row.reserved)} x2=${x(row.reserved)} y1=${Math.max(PAD.top, y(row.seconds * (1 + row.error)))} y2=${Math.min(height - PAD.bottom, y(row.seconds * (1 - row.below)))} />
        <circle cx=${x(row.reserved)} cy=${y(row.seconds)} r="9" /></g>`)}
      ${labels.map(one => html`<text key=${one.row.index} class=${one.row === chosen ? "label strong" : "label"} x=${one.x} y=${one.y} text-anchor=${one.anchor}>${one.text}</text>`)}
    </svg></div>
    <${Key} items=${[["s-fits", `fits: at least ${Math.round(LIKELY * 1000) / 10} % likely`], ["s-edge", "may fit: at least 50 %"], ["s-over", "does not fit"], ["s-dot", "dominated: another row is no larger and no slower"], ["s-whisker", "band of the step time: 9 of 10 measured runs lie within it"]]} />
    ${away.length > 0 && html`<p class="note">${[[slower, "slower"], [away.length - slower, "larger"]].filter(([n]) => n).map(([n, word]) => `${many(n, word === "slower" ? "slower row" : "larger or smaller row")}`).join(" and ")} outside the picture.</p>`}`;
}

function Mark({ x, y, tier }) {
  return tier === 2 ? html`<path class="c-over" d=${`M${x - 5},${y - 5}l10,10m0,-10l-10,10`} stroke-width="2.5" />`
    : html`<circle class=${tier ? "c-edge" : "c-fits"} cx=${x} cy=${y} r=${tier ? 4 : 5} />`;
}

function tipOf(D, row, budget) {
  return `${nameOf(D, row)}: ${peakWords(row)} GiB, ${seconds(row.seconds)} s ${band(row)}, ${percent(fits(D, row, budget))} likely to fit`;
}

const FAR = 1.35, FAR_OVER = 1.25;

/* Axes around the fast end of the front, the budget and what is chosen: rows up to FAR times as slow as the fastest, and up to FAR_OVER times the budget where any fits. */
function scaleOf(front, chosen, other, budget, width, height) {
  const asked = [chosen, other].filter(Boolean), all = [...front, ...asked];
  const small = all.filter(row => row.reserved < budget * FAR_OVER), some = small.length ? small : all.slice(0, 3);
  const quick = Math.min(...some.map(row => row.seconds)), marked = [...some.filter(row => row.seconds <= quick * FAR), ...asked];
  let low = Math.min(budget, ...marked.map(row => row.reserved)), high = Math.max(budget, ...marked.map(row => row.reserved));
  let fast = Math.min(...marked.map(row => row.seconds)), slow = Math.max(...marked.map(row => row.seconds));
  const spare = (high - low) * 0.06 || high * 0.1, room = (slow - fast) * 0.12 || slow * 0.15;
  const names = (width < 480 ? 130 : 168) / (width - PAD.left - PAD.right);
  high += spare; low = Math.max(0, low - (high - low) * names / (1 - names)); fast -= room; slow += room;
  const x = units => PAD.left + (units - low) / (high - low) * (width - PAD.left - PAD.right);
  const y = s => height - PAD.bottom - (s - fast) / (slow - fast) * (height - PAD.top - PAD.bottom);
  const holds = row => row.reserved >= low && row.reserved <= high && row.seconds >= fast && row.seconds <= slow;
  return { x, y, holds, slow, xs: ticks(low * UNIT / GIB, high * UNIT / GIB, width < 480 ? 4 : 7), ys: ticks(fast, slow, 6) };
}

function drawDots(canvas, list, scale, width, height, budget, D) {
  const ratio = devicePixelRatio || 1, style = getComputedStyle(canvas), context = canvas.getContext("2d");
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  context.scale(ratio, ratio);
  context.fillStyle = style.getPropertyValue("--dot");
  for (const { row } of list) {
    if (!scale.holds(row)) continue;
    context.beginPath();
    context.arc(scale.x(row.reserved), scale.y(row.seconds), 2.5, 0, 7);
    context.fill();
  }
}

const measured = document.createElement("canvas").getContext("2d");

/* How wide a text of a plot is, in pixels. */
function wideOf(text, strong) {
  measured.font = `${strong ? "700 " : ""}12px system-ui, "DejaVu Sans", sans-serif`;
  return measured.measureText(text).width;
}

/* A row's name of at most so many letters: its setting and the first of its changes. */
function labelOf(D, row, most) {
  const changes = changesOf(D, row.job);
  for (let n = changes.length; n > 0; n--) {
    const text = `${row.spec} · ${changes.slice(0, n).join(", ")}${n < changes.length ? ` +${changes.length - n}` : ""}`;
    if (text.length <= most) return text;
  }
  return changes.length ? `${row.spec} +${changes.length}` : row.spec;
}

const MOST_LABELS = 9;
/* Where a label may stand, from its mark. */
const AROUND = [[-13, 4, "end"], [-12, 16, "end"], [15, 4, "start"], [15, 18, "start"], [15, -8, "start"], [-12, -10, "end"], [-12, 28, "end"]];

/* Labels of the front, the asked rows first, then from the fast end: where they touch no mark, no line and no other label. Nothing lies to the left of the front. */
function placed(D, list, drawn, asked, scale, budget, width, height) {
  const { x, y } = scale, taken = [...drawn, ...asked].map(row => [x(row.reserved) - 9, y(row.seconds) - 9, 18, 18]), found = [];
  const line = (x1, y1, x2, y2) => taken.push([Math.min(x1, x2) - 2, Math.min(y1, y2) - 2, Math.abs(x2 - x1) + 4, Math.abs(y2 - y1) + 4]);
  drawn.forEach((row, i) => {
    if (!i) return;
    const [px, py] = [x(drawn[i - 1].reserved), y(drawn[i - 1].seconds)];
    line(px, py, x(row.reserved), py);
    line(x(row.reserved), py, x(row.reserved), y(row.seconds));
  });
  for (const row of asked) line(x(row.reserved), y(row.seconds * (1 + row.error)), x(row.reserved), y(row.seconds * (1 - row.below)));
  line(x(budget), 0, x(budget), height);
  for (const { row } of list) if (scale.holds(row)) taken.push([x(row.reserved) - 3, y(row.seconds) - 3, 6, 6]);
  const hits = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];
  for (const row of new Set([...asked, ...[...drawn].reverse()])) {
    if (found.length >= MOST_LABELS) break;
    const px = x(row.reserved), py = y(row.seconds), names = new Set([labelOf(D, row, width < 480 ? 16 : 25), labelOf(D, row, 0)]);
    for (const [text, dx, dy, anchor] of [...names].flatMap(text => AROUND.map(place => [text, ...place]))) {
      const wide = wideOf(text, row === asked[0]), left = anchor === "start" ? px + dx : px + dx - wide, box = [left - 2, py + dy - 13, wide + 4, 18];
      if (left < PAD.left + 2 || left + wide > width - 2 || box[1] < PAD.top || box[1] + 15 > height - PAD.bottom) continue;
      if (taken.some(one => hits(one, box))) continue;
      taken.push(box);
      found.push({ row, text, x: px + dx, y: py + dy, anchor });
      break;
    }
  }
  return found;
}
