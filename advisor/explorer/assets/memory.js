/* Where the memory goes: the worst rank by component, and every stage. */

function Waterfall({ D, chosen, other, budget }) {
  const [ref, width] = useWidth(560), a = stageOf(D, chosen, chosen.peak), b = other && stageOf(D, other, other.peak);
  const left = Math.min(190, width * 0.36), right = b ? 128 : 74, room = width - left - right;
  const most = Math.max(a.total, b ? b.total : 0, budget) * 1.02, x = units => left + room * units / most;
  const line = 30;
  let at = 0, under = 0;
  const bars = COMPONENTS.map((name, i) => {
    const bar = { name, i, from: at, size: a.parts[name], was: b ? [under, b.parts[name]] : null };
    at += bar.size; under += b ? b.parts[name] : 0;
    return bar;
  });
  const height = line * (COMPONENTS.length + 1) + 24;
  const delta = (now, before) => Math.abs(now - before) * UNIT / GIB < 0.05 ? "same" : signed((now - before) * UNIT / GIB);
  return html`<div ref=${ref}><${Picture} width=${width} height=${height} label=${`Memory of the worst rank, stage ${chosen.peak}: ` + bars.map(bar => `${COMPONENT_WORDS[bar.name]} ${gib(bar.size)} GiB`).join(", ")}>
    <line class="limit" x1=${x(budget)} x2=${x(budget)} y1="0" y2=${height - 18} />
    <text class="soft" x=${x(budget)} y=${height - 4} text-anchor="middle">budget ${gib(budget)} GiB</text>
    ${bars.map(({ name, i, from, size, was }) => html`<g key=${name} transform=${`translate(0 ${i * line})`}
        data-tip=${`${COMPONENT_WORDS[name]}: ${bytes(size * UNIT)}` + (was ? `; ${nameOf(D, other)}: ${bytes(was[1] * UNIT)}` : "") + (name === "transient" ? `; in the ${a.phase}` : name === "activations" ? `; ${a.flight} microbatches in flight` : "")}>
      <rect class="hit" width=${width} height=${line} />
      <text x=${left - 8} y="19" text-anchor="end">${wideOf(COMPONENT_WORDS[name]) < left - 8 ? COMPONENT_WORDS[name] : name}</text>
      <rect class=${`m-${name}`} x=${x(from)} y="5" width=${Math.max(1, x(from + size) - x(from))} height="20" />
      ${was && html`<rect class="ghost" x=${x(was[0])} y="3" width=${Math.max(1, x(was[0] + was[1]) - x(was[0]))} height="24" />`}
      <text x=${width - right + 6} y="19">${gib(size)}</text>
      ${was && html`<text class="soft" x=${width} y="19" text-anchor="end">${delta(size, was[1])}</text>`}</g>`)}
    <g transform=${`translate(0 ${COMPONENTS.length * line})`} data-tip=${`reserved: ${gib2(a.total)} GiB of ${gib2(budget)} GiB`}><text class="strong" x=${left - 8} y="19" text-anchor="end">reserved, GiB</text>
      <rect class=${a.total > budget ? "c-over" : "c-fits"} x=${x(0)} y="5" width=${x(a.total) - x(0)} height="20" />
      ${b && html`<rect class="ghost" x=${x(0)} y="3" width=${x(b.total) - x(0)} height="24" />`}
      <text class="strong" x=${width - right + 6} y="19">${gib(a.total)}</text>
      ${b && html`<text class="soft" x=${width} y="19" text-anchor="end">${delta(a.total, b.total)}</text>`}</g>
  <//></div>
  ${b && html`<p class="note">Outline: the row ${nameOf(D, other)}. Last column: difference from that row, GiB.</p>`}
  <p class="note">The peak is on stage ${chosen.peak}, in the ${a.phase}${a.flight ? `, with ${a.flight} ${a.flight === 1 ? "microbatch" : "microbatches"} in flight` : ""}. Largest there: ${largest(a)}.</p>
  <${Figures} summary="Memory as a table, GiB" head=${["component", nameOf(D, chosen), ...(b ? [nameOf(D, other)] : [])]}
    rows=${[...COMPONENTS.map(name => [COMPONENT_WORDS[name], gib2(a.parts[name]), ...(b ? [gib2(b.parts[name])] : [])]), ["reserved", gib2(a.total), ...(b ? [gib2(b.total)] : [])]]} />`;
}

/* The two largest components of a stage, in words. */
const largest = stage => [...COMPONENTS].sort((one, other) => stage.parts[other] - stage.parts[one]).slice(0, 2)
  .map(name => `${COMPONENT_WORDS[name]}, ${gib(stage.parts[name])} GiB`).join(", and ");

/* As many whole words of a text as there is room for. */
function short(text, room) {
  if (wideOf(text) <= room) return text;
  const words = text.split(/(?<=[ ,])/);
  while (words.length > 1 && wideOf(`${words.join("")}…`) > room) words.pop();
  return `${words.join("").replace(/[ ,·]+$/, "")}…`;
}

function Stages({ D, chosen, other, budget }) {
  const [ref, width] = useWidth(560), stages = chosen.fixed.map((_, i) => stageOf(D, chosen, i));
  const others = other ? other.fixed.map((_, i) => stageOf(D, other, i)) : [];
  const left = 62, right = 54, line = stages.length > 8 ? 20 : 28;
  const most = Math.max(budget, ...stages.map(s => s.total), ...others.map(s => s.total)) * 1.02;
  const x = units => left + (width - left - right) * units / most, height = stages.length * line + 20;
  return html`<div ref=${ref}><${Picture} width=${width} height=${height} label=${`Memory of every pipeline stage: ` + stages.map(s => `stage ${s.stage} ${gib(s.total)} GiB`).join(", ")}>
    ${stages.map(stage => {
      let at = 0;
      return html`<g key=${stage.stage} transform=${`translate(0 ${stage.stage * line})`}>
        <text x=${left - 8} y=${line / 2 + 4} text-anchor="end" class=${stage.stage === chosen.peak ? "strong" : ""}>stage ${stage.stage}</text>
        ${COMPONENTS.map(name => {
          const from = at;
          at += stage.parts[name];
          return html`<rect key=${name} class=${`m-${name}`} x=${x(from)} y="3" width=${Math.max(0, x(at) - x(from))} height=${line - 6}
            data-tip=${`stage ${stage.stage}, ${COMPONENT_WORDS[name]}: ${bytes(stage.parts[name] * UNIT)}; ${stage.flight} microbatches in flight; peak in the ${stage.phase}`} />`;
        })}
        ${others[stage.stage] && html`<rect class="ghost" x=${x(0)} y="2" width=${x(others[stage.stage].total) - x(0)} height=${line - 4} />`}
        <text x=${width - right + 6} y=${line / 2 + 4}>${gib(stage.total)}</text></g>`;
    })}
    <line class="limit" x1=${x(budget)} x2=${x(budget)} y1="0" y2=${height - 18} />
    <text class="soft" x=${x(budget)} y=${height - 4} text-anchor="middle">budget</text>
  <//></div>
  <${Key} items=${COMPONENTS.map(name => [`m-${name}`, COMPONENT_WORDS[name]])} />
  <${Figures} summary="Stages as a table, GiB" head=${["stage", ...COMPONENTS, "reserved", "in flight"]}
    rows=${stages.map(s => [s.stage, ...COMPONENTS.map(name => gib2(s.parts[name])), gib2(s.total), s.flight])} />`;
}
