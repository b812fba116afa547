// One chart over time: stacked areas or lines, a limit, marks of decisions, a cross-hair shared by all charts.
// Everything is SVG with colours from the style sheet, so light, dark and print need no second drawing.

class Chart {
  // spec: {title, height, format, axis, say}; data: {lines, stack, limit, marks, low, high, end}
  constructor(spec, cursor) {
    this.spec = spec;
    this.cursor = cursor;
    this.hidden = new Set();
    this.data = { lines: [], stack: [], marks: [] };
    this.svg = svg("svg", { height: spec.height || 170, role: "img", "aria-hidden": "true" });
    this.spoken = el("span", { class: "sr", "aria-live": "polite" });
    this.plot = el(
      "div",
      {
        class: "chart",
        tabindex: "0",
        role: "group",
        "aria-roledescription": "chart",
        onkeydown: (event) => this.key(event),
        onblur: () => this.cursor.move(null),
      },
      this.svg,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.cursor.move(null));
    this.legend = el("ul", { class: "legend", "aria-label": spec.title + ": what is drawn" });
    this.values = el("div", {
      class: "scroll",
      tabindex: "0",
      role: "region",
      "aria-label": spec.title + " as a table",
    });
    this.more = el("details", { ontoggle: () => this.fillTable() }, el("summary", {}, "Show as table"), this.values);
    this.node = el(
      "figure",
      { class: "card" },
      el("figcaption", { class: "bar" }, el("h2", {}, spec.title), (this.note = el("span", { class: "muted" }))),
      this.plot,
      this.spoken,
      this.legend,
      this.more,
    );
    cursor.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  set(data) {
    this.data = { lines: [], stack: [], marks: [], ...data };
    setText(this.note, data.note || "");
    this.plot.setAttribute("aria-label", this.spec.title + ". " + (data.say || "") + " Arrow keys read values.");
    this.buildLegend();
    this.draw();
    this.fillTable();
  }

  get shown() {
    return [...this.data.stack, ...this.data.lines].filter((line) => !this.hidden.has(line.name));
  }

  buildLegend() {
    const all = [...this.data.stack, ...this.data.lines],
      names = all.map((line) => line.name).join("\n");
    if (names !== this.names) {
      this.names = names;
      this.legend.replaceChildren(
        ...all.map((line) => {
          const button = el(
            "button",
            {
              type: "button",
              "aria-pressed": String(!this.hidden.has(line.name)),
              onclick: () => this.toggle(line.name, button),
            },
            el("span", {
              class: "swatch",
              style: line.dash ? `border:2px dashed var(${line.color})` : `background:var(${line.color})`,
            }),
            line.name,
            el("b", {}, ""),
          );
          return el("li", {}, button);
        }),
      );
    }
    this.readLegend();
  }

  readLegend() {
    const buttons = this.legend.querySelectorAll("b");
    [...this.data.stack, ...this.data.lines].forEach((line, n) => {
      if (buttons[n]) setText(buttons[n], this.spec.format(this.valueAt(line)));
    });
  }

  valueAt(line) {
    const at = this.cursor.at;
    if (at === null || !line.x.length) return line.v[line.v.length - 1];
    return line.v[nearest(line.x, at)];
  }

  toggle(name, button) {
    if (this.hidden.has(name)) this.hidden.delete(name);
    else this.hidden.add(name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    this.draw();
  }

  scales() {
    const width = Math.max(220, this.plot.clientWidth),
      height = this.spec.height || 170;
    const lines = this.data.lines.filter((line) => !this.hidden.has(line.name));
    let low = known(this.data.low) ? this.data.low : Infinity,
      high = known(this.data.high) ? this.data.high : -Infinity;
    for (const line of lines) {
      for (let n = 0; n < line.v.length; n += 1) {
        if (line.v[n] === null) continue;
        low = Math.min(low, line.lo ? line.lo[n] : line.v[n]);
        high = Math.max(high, line.hi ? line.hi[n] : line.v[n]);
      }
    }
    const tops = this.stacked().top;
    for (const value of tops) high = Math.max(high, value);
    const limit = this.data.limit;
    this.limitShown = known(limit) && (high > limit * 0.3 || high <= 0);
    if (this.limitShown) high = Math.max(high, limit);
    if (!(high > -Infinity)) {
      low = 0;
      high = 1;
    }
    if (!known(this.data.low) && lines.length) low -= (high - low) * 0.06;
    if (low === high) {
      high = low + (Math.abs(low) || 1) * 0.5;
    }
    if (!known(this.data.high)) high += (high - low) * 0.07;
    const begin = this.data.begin || 0,
      end = Math.max(this.data.end || 0, begin + 1e-9);
    const inner = width - PAD.left - PAD.right,
      tall = height - PAD.top - PAD.bottom;
    return {
      width,
      height,
      low,
      high,
      begin,
      end,
      inner,
      x: (at) => PAD.left + ((at - begin) / (end - begin)) * inner,
      y: (value) => PAD.top + (1 - (value - low) / (high - low)) * tall,
    };
  }

  stacked() {
    const layers = this.data.stack.filter((line) => !this.hidden.has(line.name));
    const top = layers.length ? new Array(layers[0].v.length).fill(0) : [];
    return {
      top,
      layers: layers.map((line) => {
        const base = top.slice();
        line.v.forEach((value, n) => {
          top[n] += value || 0;
        });
        return { line, base, roof: top.slice() };
      }),
    };
  }

  draw() {
    if (!this.plot.clientWidth) return;
    const s = (this.scale = this.scales()),
      parts = [];
    this.svg.setAttribute("viewBox", `0 0 ${s.width} ${s.height}`);
    for (const value of ticks(s.low, s.high, 5)) {
      parts.push(svg("line", { class: "rule", x1: PAD.left, x2: s.width - PAD.right, y1: s.y(value), y2: s.y(value) }));
      parts.push(svg("text", { x: PAD.left - 9, y: s.y(value) + 4, "text-anchor": "end" }, this.spec.format(value)));
    }
    this.drawAxis(s, parts);
    for (const mark of this.data.marks.filter((one) => one.x >= s.begin)) {
      parts.push(
        svg("line", {
          class: "mark",
          x1: s.x(mark.x),
          x2: s.x(mark.x),
          y1: PAD.top,
          y2: s.height - PAD.bottom,
          stroke: `var(--${mark.weight})`,
        }),
      );
    }
    for (const { line, base, roof } of this.stacked().layers) {
      const up = line.x.map((x, n) => `${s.x(x).toFixed(1)} ${s.y(roof[n]).toFixed(1)}`);
      const down = line.x.map((x, n) => `${s.x(x).toFixed(1)} ${s.y(base[n]).toFixed(1)}`).reverse();
      if (up.length === 1) {
        up.push(`${s.x(s.end).toFixed(1)} ${s.y(roof[0]).toFixed(1)}`);
        down.unshift(`${s.x(s.end).toFixed(1)} ${s.y(base[0]).toFixed(1)}`);
      }
      if (up.length)
        parts.push(
          svg("path", {
            class: "area",
            d: "M" + up.concat(down).join("L") + "Z",
            fill: `var(${line.color})`,
            "fill-opacity": ".82",
          }),
        );
    }
    this.data.lines.filter((line) => !this.hidden.has(line.name)).forEach((line) => this.drawLine(s, line, parts));
    this.drawLimit(s, parts);
    if (!this.shown.some((line) => line.v.length))
      parts.push(
        svg(
          "text",
          { class: "none", x: s.width / 2, y: s.height / 2, "text-anchor": "middle" },
          this.data.none || "Nothing recorded yet",
        ),
      );
    parts.push((this.cross = svg("g", { visibility: "hidden" })));
    this.svg.replaceChildren(...parts);
    this.drawCross();
  }

  drawAxis(s, parts) {
    const steps = this.data.axis === "steps";
    parts.push(
      svg("line", {
        class: "base",
        x1: PAD.left,
        x2: s.width - PAD.right,
        y1: s.height - PAD.bottom,
        y2: s.height - PAD.bottom,
      }),
    );
    const about = Math.max(2, Math.floor(s.inner / 110));
    for (const at of steps ? ticks(s.begin, s.end, about) : timeTicks(s.begin, s.end, about)) {
      const near = s.x(at) > s.width - PAD.right - 24;
      parts.push(
        svg(
          "text",
          { x: s.x(at), y: s.height - 7, "text-anchor": near ? "end" : at > s.begin ? "middle" : "start" },
          steps ? short(at) : span(at),
        ),
      );
    }
  }

  drawLine(s, line, parts) {
    const there = line.x.map((x, n) => n).filter((n) => line.v[n] !== null);
    const at = (n, value) => `${s.x(line.x[n]).toFixed(1)} ${s.y(value).toFixed(1)}`;
    if (line.lo && there.length > 1) {
      const band = there.map((n) => at(n, line.hi[n])).concat(there.map((n) => at(n, line.lo[n])).reverse());
      parts.push(svg("path", { d: "M" + band.join("L") + "Z", fill: `var(${line.color})`, "fill-opacity": ".16" }));
    }
    if (there.length > 1)
      parts.push(
        svg("path", {
          class: "line",
          d: "M" + there.map((n) => at(n, line.v[n])).join("L"),
          fill: "none",
          stroke: `var(${line.color})`,
          "stroke-width": line.dash ? 1.6 : 2,
          "stroke-linejoin": "round",
          ...(line.dash ? { "stroke-dasharray": "5 3" } : {}),
        }),
      );
    if (there.length <= 40)
      for (const n of there)
        parts.push(svg("circle", { cx: s.x(line.x[n]), cy: s.y(line.v[n]), r: 3, fill: `var(${line.color})` }));
  }

  drawLimit(s, parts) {
    const limit = this.data.limit;
    if (!known(limit)) return;
    const y = this.limitShown ? s.y(limit) : PAD.top - 6;
    if (this.limitShown)
      parts.push(svg("line", { class: "limit", x1: PAD.left, x2: s.width - PAD.right, y1: y, y2: y }));
    parts.push(
      svg(
        "text",
        { class: "limit-text", x: s.width - PAD.right, y: y - 5, "text-anchor": "end" },
        "limit " + this.spec.format(limit) + (this.limitShown ? "" : ", above this chart ↑"),
      ),
    );
  }

  drawCross() {
    if (!this.scale || !this.cross) return;
    const at = this.cursor.at,
      s = this.scale;
    this.cross.setAttribute("visibility", at === null || at > s.end || at < s.begin ? "hidden" : "visible");
    if (at === null) return;
    const x = s.x(at),
      dots = this.data.lines
        .filter((line) => !this.hidden.has(line.name) && line.x.length)
        .map((line) => {
          const n = nearest(line.x, at);
          return line.v[n] === null
            ? null
            : svg("circle", {
                cx: s.x(line.x[n]),
                cy: s.y(line.v[n]),
                r: 4,
                fill: `var(${line.color})`,
                stroke: "var(--card)",
                "stroke-width": 1.5,
              });
        })
        .filter(known);
    this.cross.replaceChildren(
      svg("line", { class: "cross", x1: x, x2: x, y1: PAD.top, y2: s.height - PAD.bottom }),
      ...dots,
      svg(
        "text",
        { class: "when", x, y: PAD.top - 5, "text-anchor": x > s.width - 70 ? "end" : x < 120 ? "start" : "middle" },
        this.when(at),
      ),
    );
  }

  when(at) {
    return this.data.axis === "steps" ? "step " + count(at) : span(at);
  }

  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect(),
      s = this.scale;
    const at =
      (((event.clientX - box.left) * (s.width / box.width) - PAD.left) / s.inner) * (s.end - s.begin) + s.begin;
    this.cursor.move(at < s.begin || at > s.end ? null : at);
  }

  key(event) {
    const xs = (this.shown[0] || { x: [] }).x;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") {
      this.cursor.move(null);
      return;
    }
    if (!(event.key in moves) || !xs.length) return;
    event.preventDefault();
    const now = this.cursor.at === null ? xs.length - 1 : nearest(xs, this.cursor.at) + moves[event.key];
    const at = xs[Math.min(xs.length - 1, Math.max(0, now))];
    this.cursor.move(at);
    setText(
      this.spoken,
      this.when(at) +
        ": " +
        this.shown.map((line) => line.name + " " + this.spec.format(this.valueAt(line))).join(", "),
    );
  }

  fillTable() {
    if (!this.more.open) return;
    const lines = [...this.data.stack, ...this.data.lines],
      xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const step = Math.max(1, Math.ceil(xs.length / 60)),
      maps = lines.map((line) => new Map(line.x.map((x, n) => [x, line.v[n]])));
    const rows = xs
      .filter((x, n) => n % step === 0 || n === xs.length - 1)
      .map((x) => [this.when(x), ...maps.map((map) => (map.has(x) ? this.spec.format(map.get(x)) : ""))]);
    this.values.replaceChildren(
      table([this.data.axis === "steps" ? "Step" : "Time", ...lines.map((line) => line.name)], rows),
    );
  }
}
