// One run: numbers, charts, findings, plan, epochs, settings. Built once, then kept up to date in place.

const STATUS = {
  running: ["running", "live"],
  finished: ["finished", "good"],
  failed: ["failed", "bad"],
  interrupted: ["interrupted", "warn"],
  dead: ["died, restarting", "bad"],
  silent: ["no sign of life", "warn"],
  empty: ["nothing recorded yet", "note"],
};
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const UNACCOUNTED = "not accounted for";

class RunView {
  constructor(axis) {
    this.cursor = new Cursor();
    this.colors = new Map();
    this.axis = axis;
    const c = this.cursor;
    this.title = el("h1", {});
    this.pill = el("span", { class: "pill" });
    this.about = el("p", { class: "muted" });
    this.tiles = el("dl", { class: "tiles", "aria-label": "Numbers" });
    this.memory = new Chart({ title: "Memory by holder", height: 270, format: bytes }, c);
    this.loss = new Chart({ title: "Loss", height: 200, format: metric }, c);
    this.metrics = new Chart({ title: "Metrics", height: 200, format: metric }, c);
    this.speed = new Chart({ title: "Throughput", height: 170, format: short }, c);
    this.waits = new Chart({ title: "Waiting for data", height: 170, format: share }, c);
    this.lanes = new Lanes(c);
    this.ranks = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks beside each other" });
    this.ranksNote = el("span", { class: "muted" });
    this.ranksCard = el(
      "section",
      { class: "card", "aria-label": "Ranks", hidden: true },
      el("div", { class: "bar" }, el("h2", {}, "Ranks"), this.ranksNote),
      this.ranks,
    );
    this.limited = el("p", { class: "muted" });
    this.advice = el("ul", { class: "advice" });
    this.plan = el("div", {});
    this.epochs = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Epochs" });
    this.settings = el("div", { class: "pair" });
    this.node = el(
      "div",
      { class: "main", style: "display:contents" },
      el("div", { class: "bar" }, el("div", { class: "head" }, this.title, this.pill, this.about), this.axisChoice()),
      this.tiles,
      this.ranksCard,
      el(
        "section",
        { class: "card", "aria-label": "Bottleneck and advice" },
        el("h2", {}, "What limited this run"),
        this.limited,
        this.advice,
      ),
      this.memory.node,
      el("div", { class: "pair" }, this.loss.node, this.metrics.node),
      el("div", { class: "pair" }, this.speed.node, this.waits.node),
      this.lanes.node,
      el(
        "div",
        { class: "pair" },
        el(
          "section",
          { class: "card", "aria-label": "Plan" },
          el("h2", {}, "Plan, and the bytes each stage may hold"),
          this.plan,
        ),
        el("section", { class: "card", "aria-label": "Epochs" }, el("h2", {}, "Epochs"), this.epochs),
      ),
      this.settings,
    );
  }

  axisChoice() {
    const radio = (value, text) =>
      el(
        "label",
        {},
        el("input", {
          type: "radio",
          name: "axis",
          value,
          checked: this.axis.value === value,
          onchange: () => {
            this.axis.value = value;
            this.update(this.snapshot);
          },
        }),
        text,
      );
    return el(
      "fieldset",
      { class: "choice" },
      el("legend", {}, "Across:"),
      radio("time", "time"),
      radio("steps", "steps"),
    );
  }

  update(snapshot) {
    this.snapshot = snapshot;
    const facts = snapshot.facts,
      place = axisOf(snapshot, this.axis.value);
    setText(this.title, snapshot.run);
    const [word, look] = STATUS[facts.status] || [facts.status, "note"];
    setText(this.pill, word);
    this.pill.className = "pill is-" + look;
    setText(
      this.about,
      [
        facts.started_t ? "Started " + moment(facts.started_t) : "",
        facts.attempts > 1 ? facts.attempts + " attempts" : "",
        facts.redone_steps ? `about ${plural(facts.redone_steps, "step")} trained again` : "",
        facts.error ? facts.error : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    this.updateTiles(facts);
    this.updateRanks(snapshot.ranks || []);
    this.updateCharts(snapshot, place);
    if (snapshot.story !== this.story) this.updateStory(snapshot);
    setText(this.limited, facts.bottleneck);
  }

  updateTiles(facts) {
    const loss = facts.logs.loss,
      total = facts.epochs && facts.steps_per_epoch ? facts.epochs * facts.steps_per_epoch : null;
    const done = total ? (facts.epoch * facts.steps_per_epoch + facts.step) / total : null;
    const rest = Object.entries(facts.logs)
      .filter(([name]) => name !== "loss")
      .map(([name, value]) => `${name} ${metric(value)}`);
    const used = facts.status === "running" ? facts.used_nbytes : facts.peak_nbytes;
    const tiles = [
      [
        "Epoch",
        known(facts.epoch) ? `${facts.epoch + 1}` + (facts.epochs ? ` of ${facts.epochs}` : "") : "–",
        known(facts.total_steps) ? `step ${count(facts.total_steps)}` : "",
        done,
      ],
      ["Loss", metric(loss), rest.slice(0, 1).join(" ")],
      ["Samples a second", short(facts.samples_per_s), known(facts.samples) ? `${short(facts.samples)} samples` : ""],
      ["Waiting for data", share(facts.waited_share), "of the training time"],
      [
        facts.status === "running" ? "Memory in use" : "Most memory in use",
        bytes(used),
        known(facts.limit_nbytes) ? `of ${bytes(facts.limit_nbytes)}` : "",
        facts.limit_nbytes ? used / facts.limit_nbytes : null,
        0.93,
      ],
      [
        known(facts.left_s) ? "Time left" : "Time",
        span(known(facts.left_s) ? facts.left_s : facts.elapsed_s),
        known(facts.left_s) ? `${span(facts.elapsed_s)} so far` : facts.micro ? `micro-batches of ${facts.micro}` : "",
      ],
    ];
    if (!this.tiles.children.length)
      this.tiles.append(
        ...tiles.map(() => el("div", { class: "tile" }, el("dt", {}), el("dd", {}), el("dd", { class: "sub" }))),
      );
    tiles.forEach(([name, value, sub, part, tight], n) => {
      const [dt, dd, below] = this.tiles.children[n].children;
      setText(dt, name);
      setText(dd, value);
      setText(below, sub);
      const old = this.tiles.children[n].querySelector(".meter");
      if (!known(part) || Number.isNaN(part)) {
        if (old) old.remove();
        return;
      }
      const meter =
        old || this.tiles.children[n].appendChild(el("div", { class: "meter", "aria-hidden": "true" }, el("i", {})));
      meter.className = "meter" + (tight && part > tight ? " tight" : "");
      meter.firstChild.style.width = Math.min(100, part * 100).toFixed(1) + "%";
    });
  }

  updateRanks(ranks) {
    this.ranksCard.hidden = !ranks.length;
    if (!ranks.length) return;
    const slow = ranks.find((rank) => rank.straggler);
    setText(this.ranksNote, slow ? `The others wait for rank ${slow.rank}.` : `${ranks.length} train together.`);
    const rows = ranks.map((rank) => [
      rank.rank,
      (STATUS[rank.status] || [rank.status])[0],
      count(rank.step),
      short(rank.samples_per_s),
      bytes(rank.used_nbytes),
      known(rank.peak_nbytes) && rank.limit_nbytes
        ? `${bytes(rank.peak_nbytes)} of ${bytes(rank.limit_nbytes)}`
        : bytes(rank.peak_nbytes),
      share(rank.waited_share),
      share(rank.ranks_share),
      rank.attempts > 1
        ? `${plural(rank.attempts - 1, "time")}` + (rank.deaths ? `, died ${plural(rank.deaths, "time")}` : "")
        : "–",
    ]);
    const heads = ["Rank", "Status", "Step", "Samples/s", "Memory now", "Most memory", "Waits for data"];
    this.ranks.replaceChildren(table([...heads, "Waits for others", "Started again"], rows));
  }

  updateCharts(snapshot, place) {
    const facts = snapshot.facts,
      shared = { end: place.end, axis: place.axis, marks: this.marks(snapshot, place) };
    const stack = this.stack(snapshot, place);
    this.memory.set({
      ...shared,
      stack,
      low: 0,
      limit: facts.limit_nbytes,
      none: "No memory samples in this run",
      note: known(facts.peak_nbytes) ? `peak ${bytes(facts.peak_nbytes)}` : "",
      say: `In use ${bytes(facts.used_nbytes)}, peak ${bytes(facts.peak_nbytes)}, limit ${bytes(facts.limit_nbytes)}.`,
    });
    // Preparing may take long: what happens in training is drawn from its first step on.
    const steps = snapshot.series.samples_per_s || snapshot.series["metric:loss"],
      first = steps && steps.i.length ? place.bucket(steps.i[0]) : 0;
    const training = { ...shared, begin: first > 0.15 * place.end && place.axis === "time" ? first : 0 };
    const isLoss = (name) => name.includes("loss");
    const told = (some) => some.map((line) => `${line.name} ${metric(line.v[line.v.length - 1])}`).join(", ") + ".";
    const losses = metricLines(snapshot, place, isLoss),
      others = metricLines(snapshot, place, (name) => !isLoss(name));
    this.loss.set({ ...training, lines: losses, say: told(losses), none: "No loss was recorded" });
    this.metrics.set({ ...training, lines: others, say: told(others), none: "No other metrics were recorded" });
    const speed = lineOf(snapshot, place, "samples_per_s", "samples a second", "--c3");
    this.speed.set({
      ...training,
      lines: speed,
      low: 0,
      note: "samples a second",
      say: `Now ${short(facts.samples_per_s)} samples a second.`,
    });
    const waits = lineOf(snapshot, place, "waited_share", "share of the time", "--c2");
    this.waits.set({
      ...training,
      lines: waits,
      low: 0,
      high: Math.max(0.1, ...waits.flatMap((line) => line.hi || [])),
      note: "share of the time",
      say: `${share(facts.waited_share)} overall.`,
    });
    this.lanes.follow = facts.status === "running";
    this.lanes.set(snapshot.story.decisions, snapshot.story.decided, place.end, place.at, place.axis);
  }

  marks(snapshot, place) {
    return snapshot.story.decisions
      .filter((d) => d.weight === "bad")
      .slice(0, 60)
      .map((d) => ({ x: place.at(d.at_s), weight: d.weight }));
  }

  stack(snapshot, place) {
    const memory = snapshot.memory,
      x = memory.i.map(place.bucket);
    const peaks = Object.entries(memory.holders)
      .map(([name, v]) => [name, Math.max(0, ...v)])
      .filter(([, peak]) => peak > 0);
    const named = peaks
      .filter(([name]) => name !== UNACCOUNTED && name !== "smaller holders")
      .sort((a, b) => b[1] - a[1]);
    const shown = named.slice(0, 8).map(([name]) => name),
      rest = peaks.map(([name]) => name).filter((name) => name !== UNACCOUNTED && !shown.includes(name));
    for (const name of shown) if (!this.colors.has(name)) this.colors.set(name, this.freeColor(shown));
    const layers = memory.holders[UNACCOUNTED]
      ? [{ name: UNACCOUNTED, color: "--c0", x, v: memory.holders[UNACCOUNTED] }]
      : [];
    for (const name of shown) layers.push({ name, color: this.colors.get(name), x, v: memory.holders[name] });
    if (rest.length)
      layers.push({
        name: "smaller holders",
        color: "--note",
        x,
        v: x.map((_, n) => rest.reduce((sum, name) => sum + memory.holders[name][n], 0)),
      });
    return layers;
  }

  freeColor(shown) {
    for (const name of [...this.colors.keys()]) if (!shown.includes(name)) this.colors.delete(name);
    const taken = new Set(this.colors.values());
    return COLORS.find((color) => !taken.has(color)) || "--c8";
  }

  updateStory(snapshot) {
    const story = (this.story = snapshot.story);
    this.advice.replaceChildren(
      ...story.advice.map((a) =>
        el("li", { class: "is-" + a.weight }, el("strong", {}, a.title), el("p", {}, ...words(a.text))),
      ),
    );
    const most = Math.max(1, ...story.plan.stages.map((stage) => stage.nbytes || 0));
    const stages = story.plan.stages.map((stage) =>
      el(
        "li",
        {},
        el("span", {}, stage.name),
        known(stage.nbytes)
          ? el(
              "div",
              { class: "meter", "aria-hidden": "true" },
              el("i", { style: `width:${((stage.nbytes / most) * 100).toFixed(1)}%` }),
            )
          : el("span", {}),
        el("b", {}, known(stage.nbytes) ? bytes(stage.nbytes) : ""),
      ),
    );
    this.plan.replaceChildren(
      ...[
        stages.length ? el("ul", { class: "stages" }, ...stages) : null,
        story.plan.text && !stages.length ? el("pre", {}, story.plan.text) : null,
        ...story.shuffle.map((text) => el("p", {}, text)),
        story.forecast ? el("pre", {}, story.forecast) : null,
        story.plan.text || stages.length ? null : el("p", { class: "muted" }, "No plan was recorded."),
      ].filter(known),
    );
    const names = [...new Set(story.epochs.flatMap((epoch) => Object.keys(epoch.logs)))];
    const rows = story.epochs
      .map((epoch) => [
        epoch.epoch + 1,
        ...names.map((name) => (typeof epoch.logs[name] === "string" ? epoch.logs[name] : metric(epoch.logs[name]))),
        span(epoch.seconds),
      ])
      .reverse();
    this.epochs.replaceChildren(
      rows.length ? table(["Epoch", ...names, "Time"], rows) : el("p", { class: "muted" }, "No epoch has ended yet."),
    );
    const card = (name, rows) =>
      el(
        "section",
        { class: "card", "aria-label": name },
        el("h2", {}, name),
        el("div", { class: "scroll" }, table(["Name", "Value"], rows, { class: "words" })),
      );
    this.settings.replaceChildren(
      ...[
        ["Settings", story.config],
        ["Environment", story.environment],
      ]
        .filter(([, rows]) => rows.length)
        .map(([name, rows]) => card(name, rows)),
    );
  }
}

// Where things are along the axis: buckets and seconds become seconds, or steps.
function axisOf(snapshot, axis) {
  const width = snapshot.grid.width_s,
    steps = snapshot.series.total_steps;
  if (axis !== "steps" || !steps || !steps.i.length) {
    return {
      axis: "time",
      bucket: (i) => (i + 0.5) * width,
      at: (s) => s,
      end: Math.max(snapshot.facts.elapsed_s, snapshot.grid.buckets * width),
    };
  }
  const table = new Float64Array(snapshot.grid.buckets + 1);
  let n = 0,
    now = 0;
  for (let i = 0; i < table.length; i += 1) {
    while (n < steps.i.length && steps.i[n] <= i) {
      now = Math.max(now, steps.v[n]);
      n += 1;
    }
    table[i] = now;
  }
  return {
    axis: "steps",
    bucket: (i) => table[i],
    at: (s) => table[Math.min(table.length - 1, Math.floor(s / width))],
    end: now,
  };
}

function lineOf(snapshot, place, key, name, color) {
  const series = snapshot.series[key];
  return series && series.i.length
    ? [{ name, color, x: series.i.map(place.bucket), v: series.v, lo: series.lo, hi: series.hi }]
    : [];
}

function metricLines(snapshot, place, wanted) {
  const names = Object.keys(snapshot.series)
    .filter((key) => key.startsWith("metric:"))
    .map((key) => key.slice(7))
    .filter(wanted)
    .sort();
  const roots = [...new Set(names.map((name) => name.replace(/^val_/, "")))].sort(
    (a, b) => (b === "loss") - (a === "loss"),
  );
  return names.flatMap((name) => {
    const held = name.startsWith("val_"),
      [line] = lineOf(snapshot, place, "metric:" + name, name, COLORS[roots.indexOf(name.replace(/^val_/, "")) % 8]);
    return line ? [{ ...line, dash: held, ...(held ? { lo: null, hi: null } : {}) }] : [];
  });
}
