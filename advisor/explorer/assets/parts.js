/* Small pieces that every picture uses. */

const { html, render, useState, useMemo, useEffect, useLayoutEffect, useRef, useCallback } = htmPreact;

/* The width in CSS pixels that an element has, as it changes. */
function useWidth(fallback) {
  const ref = useRef(null), [width, setWidth] = useState(fallback);
  useLayoutEffect(() => {
    if (!ref.current) return;
    const measure = () => setWidth(Math.max(240, Math.floor(ref.current.clientWidth)));
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(ref.current);
    return () => watcher.disconnect();
  }, []);
  return [ref, width];
}

/* Round numbers between two ends. */
function ticks(low, high, about) {
  const step = 10 ** Math.floor(Math.log10((high - low) / about || 1));
  const each = [1, 2, 5, 10].map(n => n * step).find(n => (high - low) / n <= about) || step;
  const found = [];
  for (let x = Math.ceil(low / each) * each; x <= high + each * 1e-9; x += each) found.push(+x.toPrecision(12));
  return found;
}

function Card({ id, title, shape, children }) {
  return html`<section class=${`card ${shape || ""}`} aria-labelledby=${id}>
    <h2 id=${id}>${title}</h2>${children}</section>`;
}

function Key({ items }) {
  return html`<ul class="key">${items.map(([name, words]) =>
    html`<li key=${name}><i class=${`swatch ${name}`}></i>${words}</li>`)}</ul>`;
}

/* An SVG whose marked parts arrow keys visit one after the other, and say. */
function Picture({ width, height, label, children }) {
  const ref = useRef(null), [at, setAt] = useState(null);
  const parts = () => [...ref.current.querySelectorAll("[data-tip]")];
  const visit = part => {
    for (const one of parts()) one.toggleAttribute("data-at", one === part);
    setAt(part ? part.getAttribute("data-tip") : null);
    dispatchEvent(new CustomEvent("tip", { detail: part }));
  };
  const onKey = event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = parts();
    if (event.key === "Escape") visit(null);
    if (!step || !all.length) return;
    event.preventDefault();
    visit(all[Math.max(0, Math.min(all.length - 1, all.findIndex(one => one.hasAttribute("data-at")) + step))]);
  };
  return html`<svg ref=${ref} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} tabindex="0" role="application"
    aria-label=${`${label}. Arrow keys visit its parts.`} onKeyDown=${onKey} onBlur=${() => visit(null)}>${children}</svg>
    <p class="unseen" role="status">${at}</p>`;
}

/* The same figures as a table, for those who do not look at pictures. */
function Figures({ summary, head, rows, text }) {
  const [open, setOpen] = useState(false);
  return html`<details class="figures" onToggle=${event => setOpen(event.target.open)}>
    <summary>${summary}</summary>
    ${open && html`<div class="scroll" tabindex="0" role="region" aria-label=${summary}><table class=${text ? "text" : ""}>
      <thead><tr>${head.map(cell => html`<th scope="col">${cell}</th>`)}</tr></thead>
      <tbody>${rows.map(cells => html`<tr>${cells.map((cell, i) => i
        ? html`<td>${cell}</td>` : html`<th scope="row">${cell}</th>`)}</tr>`)}</tbody></table></div>`}
  </details>`;
}

/* What is under the pointer or has the focus: any element with data-tip. Touch shows it as well. */
function Tips() {
  const [tip, setTip] = useState(null);
  useEffect(() => {
    const show = (target, x, y) => {
      const found = target && target.closest && target.closest("[data-tip]");
      setTip(found ? { text: found.getAttribute("data-tip"), x, y } : null);
    };
    const over = event => show(event.target, event.clientX, event.clientY);
    const focus = event => {
      const box = event.target.getBoundingClientRect();
      show(event.target, box.left + box.width / 2, box.bottom);
    };
    const visited = event => {
      const part = event.detail, box = part && part.getBoundingClientRect();
      setTip(part ? { text: part.getAttribute("data-tip"), x: box.left + Math.min(box.width, 300) / 2, y: box.bottom } : null);
    };
    const hide = event => (event.type !== "keydown" || event.key === "Escape") && setTip(null);
    const all = [["pointermove", over], ["pointerdown", over], ["focusin", focus], ["tip", visited], ["keydown", hide], ["scroll", hide]];
    for (const [name, act] of all) addEventListener(name, act, { passive: true });
    return () => { for (const [name, act] of all) removeEventListener(name, act); };
  }, []);
  if (!tip) return null;
  const left = Math.min(tip.x + 14, innerWidth - 300), above = tip.y > innerHeight - 140;
  const place = `left:${Math.max(8, left)}px;` + (above ? `bottom:${innerHeight - tip.y + 10}px` : `top:${tip.y + 16}px`);
  return html`<div class="tip" role="tooltip" style=${place}>${tip.text}</div>`;
}

function Copy({ text, label, words = "Copy" }) {
  const [done, setDone] = useState("");
  const said = () => typeof text === "function" ? text() : text;
  const copy = async () => {
    try { await navigator.clipboard.writeText(said()); } catch {
      const area = Object.assign(document.createElement("textarea"), { value: said() });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone("copied");
    setTimeout(() => setDone(""), 1500);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-label=${`Copy ${label}`}>${done || words}</button>
    <span class="unseen" role="status">${done && `${label} copied`}</span>`;
}
