// The report: one run, drawn once.

const axis = { value: "time" };
const given = JSON.parse(document.getElementById("data").textContent);
if (given.chart_data) {
  const view = new RunView(axis);
  document.getElementById("main").replaceChildren(view.node);
  view.update(given.chart_data);
  document.documentElement.dataset.drawn = "yes";
}
