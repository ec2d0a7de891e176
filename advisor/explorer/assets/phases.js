/* The phases of a cycle on one scale, a tab each with its parts. */

const PARTS = ["weights", "gradients", "optimizer", "reference", "critic", "activations", "bucket", "engine_weights", "kv_cache", "engine_other", "overhead"];
const PHASE_WORDS = {
  weights: "weights", gradients: "gradients", optimizer: "optimizer states", reference: "reference model", critic: "critic",
  activations: "activations", bucket: "bucket, gathered tensor", engine_weights: "engine's weights", kv_cache: "KV cache",
  engine_other: "engine's rest", overhead: "buffers, overhead",
};

/* Phases of a row: [name, bytes of PARTS, reserved, probability, host bytes, note] each. */
const cycleOf = (D, row) => D.pool[D.rows.cycle[row.index]].map(([name, sizes, total, likely, host, note]) =>
  ({ name, total, likely, host, note, parts: PARTS.map((part, i) => [part, sizes[i]]).filter(([, size]) => size) }));

function Cycle({ D, chosen, budget }) {
  const phases = cycleOf(D, chosen), highest = Math.max(...phases.map(phase => phase.total));
  const [tab, setTab] = useState(null), found = phases.findIndex(phase => phase.total === highest);
  const at = tab === null || tab >= phases.length ? found : tab, phase = phases[at];
  const move = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (at + step + phases.length) % phases.length;
    setTab(next);
    event.currentTarget.children[next].focus();
  };
  return html`<${Bars} phases=${phases} at=${at} budget=${budget} most=${highest} />
    <div role="tablist" aria-label="Phase" class="tabs" onKeyDown=${move}>${phases.map((one, i) =>
      html`<button type="button" role="tab" id=${`phase-${i}`} aria-selected=${i === at} aria-controls="phase-panel" tabindex=${i === at ? 0 : -1} onClick=${() => setTab(i)}>${one.name}</button>`)}</div>
    <div role="tabpanel" id="phase-panel" aria-labelledby=${`phase-${at}`}>
      <${Parts} phase=${phase} budget=${budget} />
      <p class="note">${at === found ? "The highest phase: " : ""}${gib(phase.total)} GiB reserved, ${percent(phase.likely)} likely to fit in ${gib(D.budget)} GiB.${phase.host ? ` Meanwhile ${gib(phase.host)} GiB per GPU wait in host memory.` : ""}${phase.note ? ` ${phase.note[0].toUpperCase()}${phase.note.slice(1)}.` : ""}</p></div>
    <p class="note">Phases follow one another: the job needs what the highest one needs. Step times are of the update.</p>
    <${Figures} summary="Phases as a table, GiB" head=${["phase", ...PARTS.map(part => PHASE_WORDS[part]), "reserved", "host"]}
      rows=${phases.map(one => [one.name, ...PARTS.map(part => gib2((one.parts.find(([name]) => name === part) || [0, 0])[1])), gib2(one.total), gib2(one.host)])} />`;
}

/* One bar a phase. */
function Bars({ phases, at, budget, most }) {
  const [ref, width] = useWidth(560), line = 26, left = Math.min(160, width * 0.4), right = 48;
  const x = units => left + (width - left - right) * units / (1.02 * Math.max(most, budget)), height = phases.length * line + 20;
  return html`<div ref=${ref}><${Picture} width=${width} height=${height} label=${`Memory of every phase: ` + phases.map(one => `${one.name} ${gib(one.total)} GiB`).join(", ")}>
    ${phases.map((one, i) => {
      let end = 0;
      return html`<g key=${one.name} transform=${`translate(0 ${i * line})`}>
        <text x=${left - 8} y="18" text-anchor="end" class=${i === at ? "strong" : ""}>${short(one.name, left - 8)}</text>
        ${one.parts.map(([part, size]) => {
          const from = end;
          end += size;
          return html`<rect key=${part} class=${`m-${part}`} x=${x(from)} y="4" width=${Math.max(0, x(end) - x(from))} height="18" data-tip=${`${one.name}, ${PHASE_WORDS[part]}: ${bytes(size * UNIT)}`} />`;
        })}
        <text class=${i === at ? "strong" : ""} x=${width - right + 6} y="18">${gib(one.total)}</text></g>`;
    })}
    <line class="limit" x1=${x(budget)} x2=${x(budget)} y1="0" y2=${height - 18} />
    <text class="soft" x=${Math.min(x(budget), width - 56)} y=${height - 4} text-anchor="middle">budget ${gib(budget)} GiB</text>
  <//></div><${Key} items=${PARTS.filter(part => phases.some(one => one.parts.some(([name]) => name === part))).map(part => [`m-${part}`, PHASE_WORDS[part]])} />`;
}

/* The parts of one phase, one after the other. */
function Parts({ phase, budget }) {
  const [ref, width] = useWidth(560), line = 26, left = Math.min(190, width * 0.4), right = 60;
  const x = units => left + (width - left - right) * units / (1.02 * Math.max(phase.total, budget)), height = phase.parts.length * line + 4;
  let end = 0;
  return html`<div ref=${ref}><${Picture} width=${width} height=${height} label=${`Memory of the phase ${phase.name}: ` + phase.parts.map(([part, size]) => `${PHASE_WORDS[part]} ${gib(size)} GiB`).join(", ")}>
    ${phase.parts.map(([part, size], i) => {
      const from = end;
      end += size;
      return html`<g key=${part} transform=${`translate(0 ${i * line})`} data-tip=${`${PHASE_WORDS[part]}: ${bytes(size * UNIT)}`}>
        <rect class="hit" width=${width} height=${line} />
        <text x=${left - 8} y="18" text-anchor="end">${short(PHASE_WORDS[part], left - 8)}</text>
        <rect class=${`m-${part}`} x=${x(from)} y="4" width=${Math.max(1, x(end) - x(from))} height="18" />
        <text x=${width - right + 6} y="18">${gib(size)}</text></g>`;
    })}
    <line class="limit" x1=${x(budget)} x2=${x(budget)} y1="0" y2=${height} />
  <//></div>`;
}
