// Where ticks stand, which point is nearest, and the cross-hair that all charts of a page share.

const PAD = { left: 62, right: 14, top: 16, bottom: 24 };

function ticks(low, high, about) {
  const raw = (high - low) / about || 1,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n += 1) found.push(n * step);
  return found;
}

function timeTicks(low, high, about) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const raw = (high - low) / about,
    step = steps.find((n) => n >= raw) || Math.ceil(raw / 86400) * 86400;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function nearest(xs, at) {
  let low = 0,
    high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - xs[low - 1] < xs[low] - at ? low - 1 : low;
}

class Cursor {
  constructor() {
    this.at = null;
    this.charts = [];
  }

  move(at) {
    this.at = at;
    for (const chart of this.charts) {
      chart.drawCross();
      chart.readLegend();
    }
  }
}
