/* Words that stand on two lines. */
const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walk.nextNode());) {
  if (node.parentElement.closest("pre, code, script, style, svg, .unseen, option")) continue;
  for (const word of node.data.matchAll(/\S+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    if (lines.size > 1) found.push(word[0]);
  }
}
return found;
