/* What scrolls sideways can be reached with the keyboard, and has a name for screen readers. */
const KINDS = { "Table": ".table-wrapper", "Code": ".highlight pre", "Drawing": ".drawing-frame" };

function reachable(box, name) {
  const scrolls = box.scrollWidth > box.clientWidth;
  for (const [key, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", name]]) {
    if (scrolls) box.setAttribute(key, value);
    else box.removeAttribute(key);
  }
}

function allReachable() {
  for (const [kind, selector] of Object.entries(KINDS)) {
    document.querySelectorAll(selector).forEach((box, n) => {
      const heading = box.closest("section")?.querySelector("h1, h2, h3, h4")?.firstChild?.textContent ?? "";
      reachable(box, `${kind} ${n + 1}: ${heading}`);
    });
  }
}

addEventListener("load", allReachable);
addEventListener("resize", allReachable);
