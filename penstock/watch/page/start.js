// The report: one run, drawn once.

const axis = { value: "time" };
const given = JSON.parse(document.getElementById("data").textContent);
if (given.picture) {
  const view = new RunView(axis);
  document.getElementById("main").replaceChildren(view.node);
  view.update(given.picture);
  document.documentElement.dataset.drawn = "yes";
}
