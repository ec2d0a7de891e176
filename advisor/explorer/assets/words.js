/* Numbers in words. */

const GIB = 2 ** 30;
let UNIT = 65536;

const gib = units => (units * UNIT / GIB).toFixed(1);
const gib2 = units => (units * UNIT / GIB).toFixed(2);
const seconds = s => s < 1 ? s.toFixed(3) : s.toFixed(2);
const millis = s => s < 0.01 ? `${(s * 1e3).toFixed(2)} ms` : s < 1 ? `${(s * 1e3).toFixed(1)} ms` : `${s.toFixed(2)} s`;
const signed = (x, digits = 1) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(digits);

/* ±12 %, or −43 % to +74 %. */
const band = row => row.below === row.error ? `±${(row.error * 100).toFixed(0)} %`
  : `${signed(-row.below * 100, 0)} % to ${signed(row.error * 100, 0)} %`;

/* A moment in the unit that suits the last one. */
const clock = (s, last) => last < 1 ? `${(s * 1e3).toFixed(last < 0.1 ? 2 : 1)} ms` : `${s.toFixed(last < 10 ? 3 : 2)} s`;
const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function percent(p) {
  if (p > 0.99) return ">99 %";
  if (p < 0.01) return "<1 %";
  return `${Math.round(p * 100)} %`;
}

function bytes(n) {
  if (n >= GIB) return `${(n / GIB).toFixed(2)} GiB`;
  if (n >= 2 ** 20) return `${(n / 2 ** 20).toFixed(1)} MiB`;
  return `${(n / 1024).toFixed(1)} KiB`;
}

/* A row in words: the setting, and in what its job differs from the answer's. */
function nameOf(D, row) {
  const apart = D.pool[D.jobs.apart[row.job]];
  return apart ? `${row.spec} · ${apart}` : row.spec;
}

const peakWords = row => `${row.simulated ? "" : "~"}${gib(row.reserved)}`;
