/* Labels of the plot that touch a line, a mark or another label. */
const box = one => one.getBoundingClientRect(), found = [], plot = document.querySelector(".plot svg");
const labels = [...plot.querySelectorAll("text.label")], origin = box(plot), lines = [];
const front = plot.querySelector("path.front").getAttribute("d").match(/[\d.]+/g).map(Number);
for (let i = 2; i < front.length; i += 2) {
  const [x1, y1, x2, y2] = [front[i - 2], front[i - 1], front[i], front[i + 1]];
  lines.push([x1, y1, x2, y1], [x2, Math.min(y1, y2), x2, Math.max(y1, y2)]);
}
const others = [...plot.querySelectorAll(".c-fits, path.c-over, .whisker, .limit")].map(box);
for (const [x1, y1, x2, y2] of lines) others.push({ left: origin.left + x1, right: origin.left + x2, top: origin.top + y1, bottom: origin.top + y2 });
labels.forEach((label, i) => {
  const at = box(label), hit = other => at.left < other.right && other.left < at.right && at.top + 2 < other.bottom && other.top < at.bottom - 2;
  if ([...others, ...labels.slice(i + 1).map(box)].some(hit)) found.push(label.textContent);
});
return labels.length ? found : ["no label"];
