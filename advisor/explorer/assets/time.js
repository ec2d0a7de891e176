/* Where the time of a step goes. */

function Time({ D, chosen, other }) {
  const [ref, width] = useWidth(560), rows = other ? [chosen, other] : [chosen];
  const most = Math.max(...rows.map(row => row.seconds * (1 + row.error))), left = 4, right = 66;
  const x = s => left + (width - left - right) * s / most, line = 54, height = rows.length * line + 4;
  return html`<div ref=${ref}><${Picture} width=${width} height=${height} label=${rows.map(row => `${nameOf(D, row)}: ${seconds(row.seconds)} s; ` + D.times.map((name, i) => `${TIME_WORDS[name]} ${millis(row.times[i])}`).join(", ")).join(". ")}>
    ${rows.map((row, r) => {
      let at = 0;
      return html`<g key=${row.index} transform=${`translate(0 ${r * line})`}>
        <text class=${r ? "soft" : "strong"} x=${left} y="14">${short(nameOf(D, row), width)}</text>
        ${D.times.map((name, i) => {
          const from = at;
          at += row.times[i];
          return row.times[i] > 0 && html`<rect key=${name} class=${`t-${name}`} x=${x(from)} y="20" width=${Math.max(0.5, x(at) - x(from))} height="20"
            data-tip=${`${TIME_WORDS[name]}: ${millis(row.times[i])}, ${(row.times[i] / row.seconds * 100).toFixed(1)} % of the step`} />`;
        })}
        <line class="whisker" x1=${x(row.seconds * (1 - row.below))} x2=${x(row.seconds * (1 + row.error))} y1="45" y2="45" />
        <text x=${x(row.seconds * (1 + row.error)) + 5} y="35">${seconds(row.seconds)} s</text></g>`;
    })}<//></div>
  <${Key} items=${D.times.map((name, i) => [name, i]).filter(([, i]) => rows.some(row => row.times[i] > 0)).map(([name]) => timeKey(name))} />
  <${Figures} summary="Time as a table, ms" head=${["part", ...rows.map(row => nameOf(D, row))]}
    rows=${D.times.map((name, i) => [TIME_WORDS[name], ...rows.map(row => (row.times[i] * 1e3).toFixed(1))])} />`;
}
