// Several runs over one another: a metric, memory, throughput, waiting; and their numbers side by side.

class CompareView {
  constructor(axis) {
    this.axis = axis;
    this.metric = null;
    this.colors = new Map();
    const c = (this.cursor = new Cursor());
    this.chosen = el("select", {
      id: "metric",
      onchange: () => {
        this.metric = this.chosen.value;
        this.redraw();
      },
    });
    this.chart = new Chart({ title: "Metric", height: 250, format: metric }, c);
    this.memory = new Chart({ title: "Memory in use", height: 200, format: bytes }, c);
    this.speed = new Chart({ title: "Throughput", height: 200, format: short }, c);
    this.waits = new Chart({ title: "Waiting for data", height: 200, format: share }, c);
    this.numbers = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs side by side" });
    const radio = (value, text) =>
      el(
        "label",
        {},
        el("input", {
          type: "radio",
          name: "axis",
          value,
          checked: axis.value === value,
          onchange: () => {
            axis.value = value;
            this.redraw();
          },
        }),
        text,
      );
    this.node = el(
      "div",
      { style: "display:contents" },
      el(
        "div",
        { class: "bar" },
        el("h1", {}, "Runs compared"),
        el(
          "div",
          { class: "choice" },
          el("label", { for: "metric" }, "Metric:"),
          this.chosen,
          el(
            "fieldset",
            { class: "choice" },
            el("legend", {}, "Across:"),
            radio("time", "time"),
            radio("steps", "steps"),
          ),
        ),
      ),
      el("section", { class: "card", "aria-label": "Numbers" }, this.numbers),
      this.chart.node,
      el("div", { class: "pair" }, this.memory.node, this.speed.node),
      el("div", { class: "pair" }, this.waits.node),
    );
  }

  update(snapshots) {
    this.snapshots = snapshots;
    for (const snapshot of snapshots)
      if (!this.colors.has(snapshot.run)) this.colors.set(snapshot.run, COLORS[this.colors.size % 8]);
    const names = [
      ...new Set(
        snapshots
          .flatMap((p) => Object.keys(p.series))
          .filter((key) => key.startsWith("metric:"))
          .map((key) => key.slice(7)),
      ),
    ].sort();
    if (names.join() !== this.names) {
      this.names = names.join();
      if (!names.includes(this.metric)) this.metric = names.includes("loss") ? "loss" : names[0] || null;
      this.chosen.replaceChildren(
        ...names.map((name) => el("option", { value: name, selected: name === this.metric }, name)),
      );
    }
    this.redraw();
  }

  redraw() {
    const places = this.snapshots.map((snapshot) => axisOf(snapshot, this.axis.value));
    const shared = {
      end: Math.max(...places.map((place) => place.end)),
      axis: places.every((place) => place.axis === "steps") ? "steps" : "time",
    };
    const lines = (key) =>
      this.snapshots.flatMap((snapshot, n) =>
        lineOf(snapshot, places[n], key, snapshot.run, this.colors.get(snapshot.run)).map((line) => ({
          ...line,
          lo: null,
          hi: null,
        })),
      );
    setText(this.chart.node.querySelector("h2"), this.metric || "Metric");
    const told = (some, format) =>
      some.map((line) => `${line.name} ${format(line.v[line.v.length - 1])}`).join(", ") + ".";
    const metrics = lines("metric:" + this.metric),
      speeds = lines("samples_per_s"),
      waits = lines("waited_share");
    this.chart.set({ ...shared, lines: metrics, say: told(metrics, metric), none: "No metric was recorded" });
    const used = this.snapshots
      .map((p, n) => ({
        name: p.run,
        color: this.colors.get(p.run),
        x: p.memory.i.map(places[n].bucket),
        v: p.memory.used,
      }))
      .filter((line) => line.x.length);
    this.memory.set({ ...shared, lines: used, low: 0, say: told(used, bytes), none: "No memory samples" });
    this.speed.set({ ...shared, lines: speeds, low: 0, note: "samples a second", say: told(speeds, short) });
    this.waits.set({ ...shared, lines: waits, low: 0, note: "share of the time", say: told(waits, share) });
    const rows = this.snapshots.map(({ run, facts }) => [
      run,
      (STATUS[facts.status] || [facts.status])[0],
      known(facts.epoch) ? facts.epoch + 1 : "–",
      metric(facts.logs[this.metric]),
      short(facts.samples_per_s),
      share(facts.waited_share),
      bytes(facts.peak_nbytes),
      bytes(facts.limit_nbytes),
      span(facts.elapsed_s),
    ]);
    this.numbers.replaceChildren(
      table(
        ["Run", "Status", "Epoch", this.metric || "Metric", "Samples/s", "Waiting", "Most memory", "Limit", "Time"],
        rows,
      ),
    );
  }
}
