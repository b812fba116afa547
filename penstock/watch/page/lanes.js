// The timeline of decisions: one lane for each part of penstock, one mark for each decision.

const LANES = [
  ["run", "Run"],
  ["forecast", "Forecast"],
  ["train", "Training"],
  ["guard", "Guard"],
  ["watchdog", "Watchdog"],
  ["tune", "Tuning"],
  ["cache", "Cache"],
  ["data", "Data"],
  ["", "Other"],
];

function laneOf(kind) {
  const family = kind === "run.ended" ? "data" : kind.split(".")[0]; // a pass over the data
  const found = LANES.findIndex(([name]) => name === family);
  return found < 0 ? LANES.length - 1 : found;
}

class Lanes {
  constructor(cursor) {
    this.cursor = cursor;
    this.decisions = [];
    this.chosen = -1;
    this.svg = svg("svg", { role: "img", "aria-hidden": "true" });
    this.said = el("p", { class: "muted", "aria-live": "polite" });
    this.plot = el(
      "div",
      {
        class: "chart",
        tabindex: "0",
        role: "group",
        "aria-roledescription": "timeline",
        onkeydown: (event) => this.key(event),
        onblur: () => {
          this.chosen = -1;
          cursor.move(null);
        },
      },
      this.svg,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => {
      this.chosen = -1;
      cursor.move(null);
    });
    this.log = el("ol", { class: "log", tabindex: "0", "aria-label": "All decisions" });
    this.note = el("span", { class: "muted" });
    this.node = el(
      "section",
      { class: "card", "aria-label": "Decisions" },
      el("div", { class: "bar" }, el("h2", {}, "Decisions"), this.note),
      this.plot,
      this.said,
      this.log,
    );
    cursor.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  set(decisions, decided, end, xOf, axis) {
    this.end = end;
    this.xOf = xOf;
    this.axis = axis;
    if (decisions !== this.decisions) {
      this.decisions = decisions;
      this.plot.setAttribute(
        "aria-label",
        `Timeline of ${decisions.length} decisions. Arrow keys read them one by one; the list below has all.`,
      );
      setText(
        this.note,
        decided > decisions.length + 400 ? `${count(decided)} events, the first and last are shown` : "",
      );
      const atEnd = this.follow && this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
      this.log.replaceChildren(
        ...decisions.map((d) =>
          el("li", {}, el("time", {}, span(d.at_s)), this.shape(d.weight), el("span", {}, d.text)),
        ),
      );
      if (atEnd) this.log.scrollTop = this.log.scrollHeight;
    }
    this.draw();
  }

  shape(weight) {
    const names = { bad: "grave", warn: "warning", good: "good", note: "note" };
    const node = svg("svg", { viewBox: "0 0 11 11", role: "img", "aria-label": names[weight] || "note" });
    node.append(svg("path", { d: SHAPES[weight] || SHAPES.note, fill: `var(--${weight})` }));
    return node;
  }

  draw() {
    if (!this.plot.clientWidth || !this.xOf) return;
    const used = LANES.map((lane, n) => n).filter((n) => this.decisions.some((d) => laneOf(d.kind) === n));
    const width = Math.max(220, this.plot.clientWidth),
      height = PAD.top + used.length * 22 + PAD.bottom - 6;
    const inner = width - PAD.left - PAD.right,
      x = (at) => PAD.left + (Math.min(at, this.end) / Math.max(this.end, 1e-9)) * inner;
    this.scale = { width, inner };
    const parts = used.flatMap((lane, row) => {
      const y = PAD.top + row * 22 + 11;
      return [
        svg("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }),
        svg("text", { x: PAD.left - 9, y: y + 4, "text-anchor": "end" }, LANES[lane][1]),
      ];
    });
    this.places = this.decisions.map((d) => x(this.xOf(d.at_s)));
    const order = ["note", "good", "warn", "bad"]; // the grave ones on top
    this.decisions
      .map((d, n) => [d, n])
      .sort((a, b) => order.indexOf(a[0].weight) - order.indexOf(b[0].weight))
      .forEach(([d, n]) => {
        const y = PAD.top + used.indexOf(laneOf(d.kind)) * 22 + 5.5;
        parts.push(
          svg("path", {
            class: "decision",
            d: SHAPES[d.weight] || SHAPES.note,
            fill: `var(--${d.weight})`,
            stroke: "var(--card)",
            "stroke-width": 1,
            transform: `translate(${(this.places[n] - 5.5).toFixed(1)} ${y})`,
          }),
        );
      });
    const axis =
      this.axis === "steps"
        ? ticks(0, this.end, Math.max(2, Math.floor(inner / 110)))
        : timeTicks(0, this.end, Math.max(2, Math.floor(inner / 110)));
    for (const at of axis)
      parts.push(
        svg(
          "text",
          { x: x(at), y: height - 4, "text-anchor": x(at) > width - 38 ? "end" : at ? "middle" : "start" },
          this.axis === "steps" ? short(at) : span(at),
        ),
      );
    parts.push((this.cross = svg("line", { class: "cross", y1: PAD.top - 8, y2: height - 18, visibility: "hidden" })));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(...parts);
    this.toX = x;
    this.drawCross();
  }

  drawCross() {
    const at = this.cursor.at;
    if (!this.cross) return;
    this.cross.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) {
      this.cross.setAttribute("x1", this.toX(at));
      this.cross.setAttribute("x2", this.toX(at));
    }
    const chosen = this.decisions[this.chosen];
    setText(this.said, chosen ? `${span(chosen.at_s)}: ${chosen.text}` : "");
    [...this.log.children].forEach((item, n) => {
      item.style.fontWeight = n === this.chosen ? "620" : "";
    });
  }

  readLegend() {}

  choose(n) {
    if (!this.decisions.length) return;
    this.chosen = Math.min(this.decisions.length - 1, Math.max(0, n));
    this.cursor.move(this.xOf(this.decisions[this.chosen].at_s));
    const item = this.log.children[this.chosen];
    if (item) this.log.scrollTop = item.offsetTop - this.log.offsetTop - this.log.clientHeight / 2;
  }

  point(event) {
    if (!this.scale || !this.places.length) return;
    const box = this.svg.getBoundingClientRect(),
      at = (event.clientX - box.left) * (this.scale.width / box.width);
    let best = -1,
      far = 14;
    this.places.forEach((place, n) => {
      if (Math.abs(place - at) < far) {
        far = Math.abs(place - at);
        best = n;
      }
    });
    this.chosen = best;
    const x = ((at - PAD.left) / this.scale.inner) * this.end;
    this.cursor.move(best >= 0 ? this.xOf(this.decisions[best].at_s) : x >= 0 && x <= this.end ? x : null);
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") {
      this.chosen = -1;
      this.cursor.move(null);
      return;
    }
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.choose(
      this.chosen < 0 ? (event.key === "Home" ? 0 : this.decisions.length - 1) : this.chosen + moves[event.key],
    );
  }
}
