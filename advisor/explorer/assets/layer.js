/* One layer, operator by operator: what is kept for the backward, what is replayed, what is away. */

const FATES = { k: ["kept", "f-kept"], r: ["not kept, replayed", "f-replayed"], o: ["offloaded to the host", "f-offloaded"] };

function layersOf(D, row) {
  return D.pool[D.rows.layers[row.index]].map(([kind, count, together, operators, fates, args, source]) => {
    const drawn = D.pool[operators].map((number, i) => {
      const [name, module, work, limit, forward, backward, tensors] = D.pool[number], [replay, letters] = D.pool[fates][i];
      return { name, module, work, limit, forward: forward / 1e9, backward: backward / 1e9, replay: replay / 1e9,
        tensors: tensors.map(([label, shape, dtype, size], k) => ({ label, shape, dtype, size, fate: letters[k] })) };
    });
    const sum = fate => drawn.reduce((all, op) => all + op.tensors.reduce((n, t) => n + (t.fate === fate ? t.size : 0), 0), 0);
    return { kind: D.pool[kind], count, together, drawn, args, source: D.pool[source],
      kept: sum("k") + args, replayed: sum("r"), offloaded: sum("o"), replay: drawn.reduce((s, op) => s + op.replay, 0) };
  });
}

/* What becomes of a kind of layer, for a sentence: "40 of 80 layers: recomputed". */
function treatmentOf(layer) {
  if (layer.together) return `recomputed${layer.together > 1 ? `, ${layer.together} layers to a checkpoint` : ""}`;
  const away = layer.offloaded ? "partly offloaded" : "", part = layer.replay ? "partly recomputed" : "";
  return [part, away].filter(Boolean).join(" and ") || "kept";
}

function Layer({ D, chosen, other }) {
  const layers = useMemo(() => layersOf(D, chosen), [chosen]), [at, setAt] = useState(0), layer = layers[Math.min(at, layers.length - 1)];
  const [ref, width] = useWidth(1200), beside = useMemo(() => other && layersOf(D, other).find(one => one.kind === layer.kind), [other, layer]);
  const narrow = width < 560, left = narrow ? 0 : 230, right = narrow ? 80 : 190, up = narrow ? 18 : 0, line = 24;
  const tops = layer.drawn.map(op => line + (op.tensors.length ? up : 0)).reduce((all, high) => [...all, all[all.length - 1] + high], [0]), height = tops[tops.length - 1] + 4;
  const most = Math.max(1, ...layer.drawn.map(op => op.tensors.reduce((n, t) => n + t.size, 0)));
  const x = size => left + (width - left - right) * size / most, all = layers.reduce((n, one) => n + one.count, 0);
  const name = one => `${one.count} of ${many(all, "layer")}${layers.some(other => other.kind !== layers[0].kind) ? ` (${one.kind})` : ""}: ${treatmentOf(one)}`;
  return html`${layers.length > 1 ? html`<div class="buttons" role="group" aria-label="Kind of layer">${layers.map((one, i) =>
      html`<button type="button" key=${i} aria-pressed=${one === layer} onClick=${() => setAt(i)}>${name(one)}</button>`)}</div>` : html`<p class="treated">${name(layer)}</p>`}
    <p>Per microbatch such a layer keeps <b>${bytes(layer.kept)}</b>${beside ? ` (${nameOf(D, other)}: ${bytes(beside.kept)})` : ""}${layer.offloaded ? ` and offloads ${bytes(layer.offloaded)} to the host` : ""}.${layer.replayed ? ` The replay makes ${bytes(layer.replayed)} again and takes ${millis(layer.replay)}.` : ""}</p>
    <div ref=${ref}><${Picture} width=${width} height=${height} label=${`Operators of a layer in the order of the forward, with the tensors that the backward needs. The tables below hold all figures`}>
      ${layer.drawn.map((op, i) => {
        let from = 0;
        const total = op.tensors.reduce((n, t) => n + t.size, 0), inside = t => wideOf(t.label) + 8 < x(t.size) - x(0);
        const behind = [bytes(total), ...op.tensors.filter(t => !inside(t)).map(t => t.label), ...(op.replay ? [`replay ${millis(op.replay)}`] : [])];
        while (wideOf(behind.join(" · ")) > width - x(total) - 8 && behind.length > 1) behind.splice(-1);
        return html`<g key=${i} transform=${`translate(0 ${tops[i]})`}>
          <rect class="hit" width=${width} height=${tops[i + 1] - tops[i]} data-tip=${`${op.name} (${op.module}): ${op.work || "no GEMM"}; bound by ${op.limit}; forward ${millis(op.forward)}, backward ${millis(op.backward)}${op.replay ? `, replay ${millis(op.replay)}` : ""}; ${layer.source}`} />
          <text x="0" y="16" class=${op.replay ? "replays" : ""}>${op.replay ? "↻ " : ""}${short(op.name, left || width)}</text>
          ${op.tensors.map(t => {
            const start = from;
            from += t.size;
            const room = x(from) - x(start);
            return html`<g key=${t.label} data-tip=${`${t.label} [${t.shape.join(", ")}] ${t.dtype}: ${bytes(t.size)}, ${FATES[t.fate][0]}`}>
              <rect class=${FATES[t.fate][1]} x=${x(start)} y=${3 + up} width=${Math.max(1.5, room - 0.5)} height="18" />
              ${inside(t) && html`<text class=${`in-${t.fate}`} x=${x(start) + 5} y=${16 + up}>${t.label}</text>`}</g>`;
          })}
          ${total > 0 && html`<text class="soft" x=${x(total) + 6} y=${16 + up}>${behind.join(" · ")}</text>`}
          ${!total && op.replay > 0 && !narrow && html`<text class="soft" x=${left + 6} y="16">replay ${millis(op.replay)}</text>`}</g>`;
      })}<//></div>
    <${Key} items=${[["f-kept", "kept until the backward"], ["f-replayed", "not kept: the replay makes it again"], ["f-offloaded", "offloaded to the host"], ["", "↻ operator of the replay"]].filter(([name]) => name !== "f-offloaded" || layer.offloaded)} />
    <${Figures} summary="Operators as a table" text head=${["operator", "module", "work", "bound by", "forward ms", "backward ms", "replay ms"]}
      rows=${layer.drawn.map(op => [op.name, op.module, op.work, op.limit, ...[op.forward, op.backward, op.replay].map(s => (s * 1e3).toFixed(3))])} />
    <p class="note">Source: <span class="nowrap">${layer.source}</span></p>
    <${Figures} summary="Tensors as a table" head=${["operator", "tensor", "shape", "type", "bytes", "for the backward"]}
      rows=${layer.drawn.flatMap(op => op.tensors.map(t => [op.name, t.label, `[${t.shape.join(", ")}]`, t.dtype, t.size.toLocaleString("en"), FATES[t.fate][0]]))} />`;
}
