// The live page: one stream of server-sent events brings the list of runs and the snapshots of the chosen ones.

const axis = { value: "time" };
const token = new URLSearchParams(location.search).get("token") || "";
const main = document.getElementById("main"),
  nav = document.getElementById("runs"),
  link = document.getElementById("link");
const state = { runs: [], snapshots: new Map(), view: null, shown: "", source: null, last: "", tries: 0, timer: null };

const chosen = () => new URLSearchParams(location.hash.slice(1)).getAll("run");

function choose(names) {
  location.hash = names.map((name) => "run=" + encodeURIComponent(name)).join("&");
}

function say(text, look) {
  link.className = "link " + look;
  setText(link, text);
}

// A snapshot is whole, or holds the buckets from `from` on: those replace what was there.
function merge(old, snapshot) {
  if (!old || snapshot.from === 0) return { ...snapshot, story: snapshot.story || (old && old.story) };
  const join = (then, now, keep) => then.slice(0, keep).concat(now);
  const series = {};
  for (const [name, now] of Object.entries(snapshot.series)) {
    const then = old.series[name];
    const keep = then ? then.i.findIndex((i) => i >= snapshot.from) : 0,
      n = then && keep < 0 ? then.i.length : keep;
    series[name] = then
      ? {
          i: join(then.i, now.i, n),
          v: join(then.v, now.v, n),
          lo: join(then.lo, now.lo, n),
          hi: join(then.hi, now.hi, n),
        }
      : now;
  }
  const then = old.memory,
    now = snapshot.memory,
    found = then.i.findIndex((i) => i >= snapshot.from),
    n = found < 0 ? then.i.length : found;
  const holders = {};
  for (const [name, values] of Object.entries(now.holders))
    holders[name] = join(then.holders[name] || new Array(then.i.length).fill(0), values, n);
  const memory = {
    i: join(then.i, now.i, n),
    used: join(then.used, now.used, n),
    limit: join(then.limit, now.limit, n),
    holders,
  };
  return { ...snapshot, series, memory, story: snapshot.story || old.story };
}

function connect() {
  clearTimeout(state.timer);
  if (state.source) state.source.close();
  const asked = new URLSearchParams(token ? { token } : {});
  for (const name of chosen()) asked.append("run", name);
  if (state.last) asked.set("last", state.last);
  const source = (state.source = new EventSource("stream?" + asked));
  source.addEventListener("runs", (event) => {
    heard();
    state.runs = JSON.parse(event.data);
    drawRuns();
  });
  source.addEventListener("chart_data", (event) => {
    heard();
    state.last = event.lastEventId;
    const snapshot = JSON.parse(event.data);
    state.snapshots.set(snapshot.run, merge(state.snapshots.get(snapshot.run), snapshot));
    drawMain();
  });
  source.onerror = () => {
    source.close();
    if (source !== state.source) return;
    state.tries += 1;
    const over = isOver();
    say(over ? "The run is over, and its server has stopped" : "Connection lost, trying again", "off");
    state.timer = setTimeout(connect, Math.min(over ? 60000 : 5000, 400 * 1.6 ** state.tries));
    tellIfRefused(source);
  };
}

// A stream does not tell why it ended. A server that answers but refuses was started again, with another token. The page
// goes on asking: once the new address is open in this browser, its cookie lets this page in too.
async function tellIfRefused(source) {
  const answer = await fetch("api/runs?" + new URLSearchParams(token ? { token } : {})).catch(() => null);
  if (answer && answer.status === 403 && source === state.source)
    say("The server was started again under a new address: open the one that `penstock watch` printed", "off");
}

// A run that was served by its own training is over when that is, and nobody needs to wait for the server.
function isOver() {
  const shown = chosen().map((name) => state.snapshots.get(name));
  return (
    shown.length > 0 && shown.every((one) => one && ["finished", "failed", "interrupted"].includes(one.facts.status))
  );
}

function heard() {
  state.tries = 0;
  say("Connected", "on");
}

function fresh() {
  state.last = "";
  state.snapshots.clear();
  connect();
}

function drawRuns() {
  document.documentElement.dataset.runs = state.runs.length;
  if (!state.runs.length) {
    state.shown = "";
    main.replaceChildren(
      el(
        "section",
        { class: "card" },
        el("h1", {}, "Waiting for a run"),
        el(
          "p",
          { class: "muted" },
          "No run has been recorded in this folder yet. This page shows the first one as soon as it begins.",
        ),
      ),
    );
    return;
  }
  if (!chosen().length) {
    choose([state.runs[0].name]);
    return;
  }
  nav.hidden = state.runs.length < 2;
  if (!nav.firstChild) nav.append(el("h2", {}, "Runs"), el("ul", {}));
  const list = nav.lastChild,
    items = new Map([...list.children].map((item) => [item.dataset.name, item]));
  const names = state.runs.map((run) => run.name);
  for (const [name, item] of items) if (!names.includes(name)) item.remove();
  state.runs.forEach((run, n) => {
    const item = items.get(run.name) || runItem(run.name);
    const here = chosen().includes(run.name),
      anchor = item.querySelector("a"),
      box = item.querySelector("input");
    item.classList.toggle("here", here);
    if (here) anchor.setAttribute("aria-current", "true");
    else anchor.removeAttribute("aria-current");
    if (box.checked !== here) box.checked = here;
    setText(
      item.querySelector("small"),
      [
        (STATUS[run.status] || [run.status])[0],
        known(run.epoch) ? "epoch " + (run.epoch + 1) : "",
        known(run.loss) ? "loss " + metric(run.loss) : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    if (list.children[n] !== item) list.insertBefore(item, list.children[n] || null);
  });
}

function runItem(name) {
  const box = el("input", {
    type: "checkbox",
    onchange: () => {
      const names = chosen().filter((other) => other !== name);
      choose(box.checked ? [...names, name] : names.length ? names : [name]);
      if (!box.checked && !names.length) box.checked = true;
    },
  });
  return el(
    "li",
    { "data-name": name },
    el("a", { href: "#run=" + encodeURIComponent(name) }, name),
    el("small", {}),
    el("label", {}, box, "show", el("span", { class: "sr" }, name)),
  );
}

function drawMain() {
  const names = chosen(),
    snapshots = names.map((name) => state.snapshots.get(name)).filter(known);
  if (!snapshots.length) return;
  const kind = names.length > 1 ? "compare" : "run:" + names[0];
  if (state.shown !== kind) {
    state.shown = kind;
    state.view = names.length > 1 ? new CompareView(axis) : new RunView(axis);
    main.replaceChildren(state.view.node);
  }
  state.view.update(names.length > 1 ? snapshots : snapshots[0]);
  document.title = names.length > 1 ? "Runs compared · penstock" : `${snapshots[0].run} · penstock`;
  document.documentElement.dataset.drawn = "yes";
}

window.addEventListener("hashchange", () => {
  drawRuns();
  fresh();
});
window.addEventListener("pagehide", () => state.source && state.source.close());
window.addEventListener("pageshow", (event) => event.persisted && connect());
say("Connecting", "off");
connect();
