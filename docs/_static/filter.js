/* A box on the pages of long lists: entries that hold all its words stay. Without this script a page shows all. */
const LISTS = {
  options: "section section tbody tr",
  rules: "section section pre > span[data-entry]",
  megatron_rules: "section section section",
};

/* Paragraphs of a block of code become entries of their own. */
function divide(block) {
  const parts = block.innerHTML.split("\n\n").map((part) => `<span data-entry>${part}\n\n</span>`);
  block.innerHTML = parts.join("");
}

/* --tp-comm-overlap, tp_comm_overlap and TP-COMM-OVERLAP are one word. */
const plain = (text) => text.toLowerCase().replace(/(?<![\w-])--/g, "").replaceAll("-", "_");

function textOf(entry) {
  const above = [];
  for (let at = entry.closest("section"); at; at = at.parentElement.closest("section")) {
    above.push(at.querySelector("h2, h3")?.textContent ?? "");
  }
  return plain(`${above.join(" ")} ${entry.textContent}`);
}

function addFilter(selector) {
  document.querySelectorAll("section section pre:has(.gp)").forEach(divide);
  const entries = [...document.querySelectorAll(selector)].map((entry) => [entry, textOf(entry)]);
  const sections = [...document.querySelectorAll("article section section")].reverse(); // inner ones first
  const links = [...document.querySelectorAll(".toc-tree li > a[href^='#']")];
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.role = "search";
  bar.ariaLabel = "This page";
  bar.innerHTML = '<label for="filter">Filter</label><input id="filter" type="search" autocomplete="off"><output for="filter"></output>';
  document.querySelector("article h1").after(bar);
  const head = [...bar.parentElement.children].filter((one) => !one.matches("h1, section, .filter"));
  const [box, count] = bar.querySelectorAll("input, output");

  function show() {
    const words = plain(box.value).split(/\s+/).filter(Boolean);
    for (const [entry, text] of entries) entry.hidden = !words.every((word) => text.includes(word));
    const shown = entries.filter(([entry]) => !entry.hidden);
    const kept = new Set(shown.map(([entry]) => entry));
    for (const section of sections) {
      section.hidden = words.length > 0 && !kept.has(section) && !shown.some(([entry]) => section.contains(entry));
    }
    for (const part of head) part.hidden = words.length > 0; // what is found stands right below the box
    for (const link of links) link.parentElement.hidden = !!document.getElementById(link.hash.slice(1))?.hidden;
    count.textContent = words.length ? `${shown.length} of ${entries.length} entries` : `${entries.length} entries`;
    const url = new URL(location);
    if (words.length) url.searchParams.set("filter", box.value);
    else url.searchParams.delete("filter");
    if (url.href !== location.href) history.replaceState(null, "", url);
    dispatchEvent(new Event("resize")); // what scrolls sideways may have changed
  }

  box.value = new URLSearchParams(location.search).get("filter") ?? "";
  box.addEventListener("input", show);
  show();
}

const selector = LISTS[location.pathname.match(/(\w+)(?:\.html)?$/)?.[1]];
if (selector) addEventListener("DOMContentLoaded", () => addFilter(selector));
