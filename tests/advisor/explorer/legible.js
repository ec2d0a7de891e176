/* What a reader would mind: words on two lines, a page that moves sideways, on a phone a plot before the table. */
const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walk.nextNode());) {
  if (node.parentElement.closest("pre, code, script, style, svg, .unseen, option")) continue;
  for (const word of node.data.matchAll(/\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    if (lines.size > 1) found.push(`broken: ${word[0]}`);
  }
}
for (const one of document.querySelectorAll("details")) one.open = true;
const { scrollWidth, clientWidth } = document.documentElement;
if (scrollWidth > clientWidth) found.push(`sideways: ${scrollWidth}`);
const [table, plot] = ["h-rows", "h-front"].map(id => document.getElementById(id).getBoundingClientRect().top);
if (table > plot || (innerWidth < 600 && table === plot)) found.push("the plot is before the table");
return found;
