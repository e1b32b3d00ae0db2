// What the page does at first: charts near the screen, and what can be downloaded.
// a curve is built when it first comes near the screen
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) start(target);
}, { rootMargin: "600px" });
const start = (figure) => {
  seen.unobserve(figure);
  if (!figure.querySelector("svg")) new Chart(figure);
};
const charts = document.querySelectorAll("figure.chart");
charts.forEach((figure) => seen.observe(figure));
window.addEventListener("beforeprint", () => charts.forEach((figure) => { if (figure.offsetParent) start(figure); }));

// the numbers of tables and dot plots, to download
const offer = (box, name, lines) => {
  const made = element("button", { type: "button", class: "save" }, "CSV");
  made.addEventListener("click", () => save(name, lines()));
  box.after(made);
};
document.querySelectorAll(".scroll > table.numbers").forEach((table, n) => offer(table.parentNode, `table-${n + 1}`, () =>
  [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.innerText.replaceAll(/\s+/g, " ").trim())).join(","))));
document.querySelectorAll("figure.dots").forEach((figure) => offer(figure.querySelector(".rows"), figure.id, () =>
  ["row,optimizer,value", ...[...figure.querySelectorAll(".dot")].map((dot) => [dot.dataset.row, dot.dataset.name, dot.dataset.value].map(quoted).join(","))]));
