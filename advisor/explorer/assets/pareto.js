/* Memory against time of every row that the controls leave. */

const PAD = { left: 52, right: 16, top: 14, bottom: 40 };

function Pareto({ D, list, frontRows, chosen, other, budget, choose }) {
  const [ref, width] = useWidth(560), height = Math.max(280, Math.min(420, width * 0.68)), canvas = useRef(null);
  const scale = useMemo(() => scaleOf(frontRows, chosen, other, budget, width, height), [frontRows, chosen, other, budget, width, height]);
  const { x, y } = scale;
  useEffect(() => drawDots(canvas.current, list, scale, width, height, budget, D), [list, scale, budget]);
  const inside = row => scale.holds(row);
  const near = event => {
    const box = event.currentTarget.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 22 * 22;
    for (const { row } of list) {
      const away = (x(row.reserved) - px) ** 2 + (y(row.seconds) - py) ** 2 - (frontRows.includes(row) ? 30 : 0);
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
  const drawn = frontRows.filter(inside), labels = placed(D, drawn, chosen, scale, budget, width, height);
  const line = drawn.map((row, i) => `${i ? `H${x(row.reserved)}V` : `M${x(row.reserved)},`}${y(row.seconds)}`).join("");
  const outside = list.length - list.filter(one => inside(one.row)).length;
  return html`<div class="plot" ref=${ref} style=${`height:${height}px`}>
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} tabindex="0" role="application" data-tip=${tip}
      aria-label=${`Peak memory against step time: ${frontRows.length} rows on the Pareto front. Arrow keys move along the front. ${chosen ? tipOf(D, chosen, budget) : ""}`}
      onPointerMove=${point} onPointerLeave=${() => setTip("")} onKeyDown=${onKey}
      onClick=${event => { const row = near(event); if (row) choose(row); }}>
      ${scale.xs.map(t => html`<g key=${`x${t}`}><line class="grid" x1=${x(t * GIB / UNIT)} x2=${x(t * GIB / UNIT)} y1=${PAD.top} y2=${height - PAD.bottom} />
        <text class="soft" text-anchor="middle" x=${x(t * GIB / UNIT)} y=${height - PAD.bottom + 16}>${t}</text></g>`)}
      ${scale.ys.map(t => html`<g key=${`y${t}`}><line class="grid" x1=${PAD.left} x2=${width - PAD.right} y1=${y(t)} y2=${y(t)} />
        <text class="soft" text-anchor="end" x=${PAD.left - 6} y=${y(t) + 4}>${t}</text></g>`)}
      <text class="soft" text-anchor="middle" x=${(PAD.left + width - PAD.right) / 2} y=${height - 6}>peak reserved memory of the worst rank, GiB</text>
      <text class="soft" text-anchor="middle" transform=${`translate(13 ${(height - PAD.bottom) / 2}) rotate(-90)`}>step time, s</text>
      <line class="limit" x1=${x(budget)} x2=${x(budget)} y1=${PAD.top} y2=${height - PAD.bottom} />
      <text class="soft" x=${x(budget) - 5} y=${PAD.top + 10} text-anchor="end">budget</text>
      <path class="front" d=${line} />
      ${drawn.map(row => html`<${Mark} key=${row.index} x=${x(row.reserved)} y=${y(row.seconds)} over=${tierOf(fits(D, row, budget)) === 2} />`)}
      ${[[other, "other"], [chosen, "chosen"]].map(([row, name]) => row && inside(row) && html`<g key=${name} class=${name}>
        <line class="whisker" x1=${x(row.reserved)} x2=${x(row.reserved)} y1=${Math.max(PAD.top, y(row.seconds * (1 + row.error)))} y2=${Math.min(height - PAD.bottom, y(row.seconds * (1 - row.below)))} />
        <circle cx=${x(row.reserved)} cy=${y(row.seconds)} r="9" /></g>`)}
      ${labels.map(one => html`<text key=${one.text} class=${one.row === chosen ? "label strong" : "label"} x=${one.x} y=${one.y} text-anchor=${one.anchor}>${one.text}</text>`)}
    </svg></div>
    <${Key} items=${[["s-fits", "fits"], ["s-over", "does not fit"], ["s-dot", "dominated: another row is no larger and no slower"], ["s-whisker", "band of the step time: 9 of 10 measured runs lie within it"]]} />
    ${outside > 0 && html`<p class="note">${many(outside, "row")} outside the picture.</p>`}`;
}

function Mark({ x, y, over }) {
  return over ? html`<path class="c-over" d=${`M${x - 5},${y - 5}l10,10m0,-10l-10,10`} stroke-width="2.5" />`
    : html`<circle class="c-fits" cx=${x} cy=${y} r="5" />`;
}

function tipOf(D, row, budget) {
  return `${nameOf(D, row)}: ${peakWords(row)} GiB, ${seconds(row.seconds)} s ${band(row)}, ${percent(fits(D, row, budget))} likely to fit`;
}

/* Axes around the front, the budget and what is chosen. */
function scaleOf(front, chosen, other, budget, width, height) {
  const marked = [...front, chosen, other].filter(Boolean);
  const near = marked.filter(row => row.reserved < budget * 1.6 || row === chosen);
  const some = near.length ? near : marked;
  let low = Math.min(budget, ...some.map(row => row.reserved)), high = Math.max(budget, ...some.map(row => row.reserved));
  let fast = Math.min(...some.map(row => row.seconds)), slow = Math.max(...some.map(row => row.seconds));
  const spare = (high - low) * 0.06 || high * 0.1, room = (slow - fast) * 0.12 || slow * 0.15;
  low = Math.max(0, low - spare); high += spare; fast -= room; slow += room;
  const x = units => PAD.left + (units - low) / (high - low) * (width - PAD.left - PAD.right);
  const y = s => height - PAD.bottom - (s - fast) / (slow - fast) * (height - PAD.top - PAD.bottom);
  const holds = row => row.reserved >= low && row.reserved <= high && row.seconds >= fast && row.seconds <= slow;
  return { x, y, holds, xs: ticks(low * UNIT / GIB, high * UNIT / GIB, width < 480 ? 4 : 7), ys: ticks(fast, slow, 6) };
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

/* Labels of the front where they touch neither each other nor a mark: the chosen one first. */
function placed(D, drawn, chosen, scale, budget, width, height) {
  const taken = drawn.map(row => [scale.x(row.reserved) - 7, scale.y(row.seconds) - 7, 14, 14]), found = [];
  taken.push([scale.x(budget) - 50, PAD.top - 2, 52, 14]);
  const hits = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];
  const order = [...drawn].sort((a, b) => (b === chosen) - (a === chosen));
  for (const row of order) {
    const name = nameOf(D, row), text = name.length > 34 ? `${name.slice(0, 33)}…` : name;
    const wide = text.length * 6.7, px = scale.x(row.reserved), py = scale.y(row.seconds);
    for (const [dx, dy, anchor] of [[9, -9, "start"], [-12, 16, "end"], [-12, 4, "end"], [12, 18, "start"], [-9, -12, "end"]]) {
      const left = anchor === "start" ? px + dx : px + dx - wide, box = [left, py + dy - 11, wide, 15];
      if (left < PAD.left || left + wide > width || box[1] < 0 || box[1] + 15 > height - PAD.bottom) continue;
      if (taken.some(one => hits(one, box))) continue;
      taken.push(box);
      found.push({ row, text, x: px + dx, y: py + dy, anchor });
      break;
    }
  }
  return found;
}
