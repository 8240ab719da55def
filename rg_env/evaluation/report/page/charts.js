// Lines over steps, and bars with intervals, as SVG. Colors and dashes are the classes c0 to c7 of the style sheet.
// An estimate is [value, low, high]: a value and the ends of its interval, which are null if unknown.

const COLORS = 8;

/**
 * Round numbers from `low` to `high`, at most about `count` and at least `least` apart, and texts for them with the same
 * number of decimals.
 */
function ticks(low, high, count, least = 0) {
  const span = high - low || Math.abs(high) || 1;
  const unit = 10 ** Math.floor(Math.log10(span / count));
  const step = Math.max(least, [1, 2, 5, 10].map((times) => times * unit).find((each) => span / each <= count));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  const text = (value) => (digits > 4 || Math.abs(value) >= 1e6 ? shown(value) : value.toFixed(digits).replace("-", "\u2212"));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => {
    const value = Number(((first + i) * step).toPrecision(12));
    return [value, text(value)];
  });
}

/** The range of an axis: includes 0 if it is close, and is never empty. Axes of shares stay between 0 and 1. */
function range(values, share) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(low <= high)) return [0, 1];
  if (low > 0 && low < 0.6 * high) low = 0;
  if (high < 0 && high > 0.6 * low) high = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  [low, high] = [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
  return share ? [Math.max(0, low), Math.min(1, high)] : [low, high];
}

/** A figure for `chart`, a `Chart` of content.py. */
function lineChart(chart) {
  const lines = Object.entries(chart.lines);
  const readouts = lines.map(() => el("output", {}));
  const legend = el("ul", { class: "legend" });
  lines.forEach(([name], i) => {
    const key = svg("svg", { viewBox: "0 0 24 8", class: "key", "aria-hidden": "true" });
    key.append(svg("line", { x1: 0, x2: 24, y1: 4, y2: 4, class: `line c${i % COLORS}` }));
    legend.append(el("li", {}, key, name, readouts[i]));
  });
  const place = el("div", { class: "plot" });
  drawnByWidth(place, (width) => place.replaceChildren(linesOf(chart, lines, width, readouts)));
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, chart.title)), legend, place);
  if (chart.note) figure.append(el("p", { class: "small" }, chart.note));
  return figure;
}

function linesOf(chart, lines, width, readouts) {
  const height = Math.round(Math.min(260, Math.max(180, width * 0.5)));
  const [left, right, top, bottom] = [44, 12, 10, 34];
  const points = lines.flatMap(([, each]) => each);
  const steps = points.map(([step]) => step);
  const [x0, x1] = [Math.min(...steps), Math.max(...steps)];
  const ends = points.flatMap(([, estimate]) => estimate);
  const [y0, y1] = range(ends, chart.share && ends.every((end) => end === null || (end >= 0 && end <= 1)));
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(chart.title, lines) });
  for (const [tick, text] of ticks(y0, y1, 5)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    drawing.append(svg("text", { class: "tick end", x: left - 6, y: y(tick) + 4 }, text));
  }
  for (const [tick, text] of ticks(x0, x1, width / 70, 1)) {
    drawing.append(svg("text", { class: "tick middle", x: x(tick), y: height - bottom + 18 }, text));
  }
  drawing.append(svg("text", { class: "tick end", x: width - right, y: height - 2 }, "step"));
  lines.forEach(([, each], i) => drawLine(drawing, each, i, x, y));
  follow(drawing, lines, readouts, x, [top, height - bottom], width);
  return drawing;
}

function drawLine(drawing, points, i, x, y) {
  const color = `c${i % COLORS}`;
  const sure = points.filter(([, [, low]]) => low !== null);
  if (sure.length > 1) {
    const upper = sure.map(([at, [, , high]]) => `${x(at)},${y(high)}`);
    const lower = sure.map(([at, [, low]]) => `${x(at)},${y(low)}`).reverse();
    drawing.append(svg("polygon", { class: `band ${color}`, points: [...upper, ...lower].join(" ") }));
  }
  const line = points.map(([at, [value]]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  drawing.append(svg("polyline", { class: `line ${color}`, points: line }));
  if (points.length > 40) return;
  for (const [at, [value, low, high]] of points) {
    if (sure.length === 1 && low !== null) {
      drawing.append(svg("line", { class: `line ${color}`, x1: x(at), x2: x(at), y1: y(low), y2: y(high) }));
    }
    drawing.append(svg("circle", { class: `dot ${color}`, cx: x(at), cy: y(value), r: sure.length ? 3.5 : 2 }));
  }
}

/** Shows a line at the step nearest to the pointer, and the step's values next to the names. */
function follow(drawing, lines, readouts, x, [top, bottom], width) {
  const steps = [...new Set(lines.flatMap(([, points]) => points.map(([at]) => at)))];
  const rule = svg("line", { class: "rule", y1: top, y2: bottom, visibility: "hidden" });
  drawing.append(rule);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const pointer = ((event.clientX - box.left) / box.width) * width;
    const near = steps.reduce((best, at) => (Math.abs(x(at) - pointer) < Math.abs(x(best) - pointer) ? at : best), steps[0]);
    rule.setAttribute("x1", x(near));
    rule.setAttribute("x2", x(near));
    rule.setAttribute("visibility", "visible");
    lines.forEach(([, points], i) => {
      const point = points.find(([at]) => at === near);
      readouts[i].textContent = point ? `${withInterval(point[1])} at ${shown(near)}` : "";
    });
  });
  drawing.addEventListener("pointerleave", () => {
    rule.setAttribute("visibility", "hidden");
    readouts.forEach((readout) => (readout.textContent = ""));
  });
}

function described(title, lines) {
  const ends = lines.map(([name, points]) => {
    const [[first, [before]], [last, [after]]] = [points[0], points.at(-1)];
    return `${name} from ${shown(before)} at step ${first} to ${shown(after)} at step ${last}`;
  });
  return `${title}: ${ends.join("; ")}`;
}

function withInterval([value, low, high]) {
  const ends = low === null ? "" : ` [${low.toFixed(2)}, ${high.toFixed(2)}]`;
  return `${value.toFixed(2)}${ends}`.replaceAll("-", "\u2212");
}

/** Bars from 0 to 1 with intervals: the accuracies on each task, with one color per name. */
function barChart(title, tasks) {
  const groups = tasks.map((task) => ({ ...task, bars: accuracies(task) }));
  const names = [...new Set(groups.flatMap((group) => group.bars.map(([name]) => name)))];
  const place = el("div", { class: "plot" });
  drawnByWidth(place, (width) => place.replaceChildren(barsOf(groups, names, width)));
  const scroller = el("div", { class: "tall", tabindex: "0", role: "group", "aria-label": title }, place);
  const floors = groups.some((group) => group.floor !== null);
  const note = `Bars: mean; lines: 95% interval.${floors ? " Dashed: accuracy of the best constant answer." : ""}`;
  return el("figure", { class: "chart bars" }, el("figcaption", {}, el("h2", {}, title)), scroller, el("p", { class: "small" }, note));
}

/** Names and accuracies of the models or steps whose accuracy was measured. */
function accuracies(task) {
  const measured = task.scores.filter(([, scores]) => scores.accuracy !== null);
  return measured.map(([name, { accuracy, intervals }]) => [name, [accuracy, ...intervals.accuracy]]);
}

function barsOf(groups, names, width) {
  const [label, value, row, gap] = [Math.min(190, width * 0.3), 130, 19, 30];
  const scale = (share) => label + Math.max(0, Math.min(1, share)) * (width - label - value);
  const height = groups.reduce((sum, group) => sum + gap + group.bars.length * row, 26);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  drawing.setAttribute("aria-label", groups.map(barText).join("; "));
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    drawing.append(svg("line", { class: "grid", x1: scale(tick), x2: scale(tick), y1: 8, y2: height - 20 }));
    drawing.append(svg("text", { class: "tick middle", x: scale(tick), y: height - 6 }, shown(tick)));
  }
  let y = 4;
  for (const group of groups) {
    drawing.append(svg("text", { class: "group", x: 0, y: y + 17 }, shortened(group.name, Math.floor(width / 9)),
      svg("tspan", { class: "tick", dx: 8 }, group.note)));
    const start = (y += gap - 5);
    for (const [name, estimate] of group.bars) {
      const [color, middle] = [`c${names.indexOf(name) % COLORS}`, y + row / 2];
      const [mean, low, high] = estimate.map(scale);
      drawing.append(svg("text", { class: "tick end", x: label - 8, y: middle + 4 }, shortened(name, Math.floor(label / 8)),
        svg("title", {}, name)));
      drawing.append(svg("rect", { class: `bar ${color}`, x: label, y: y + 2.5, height: row - 5, width: mean - label, rx: 2 }));
      drawing.append(svg("path", { class: "whisker", d: `M${low} ${middle}H${high}M${low} ${middle - 3.5}v7M${high} ${middle - 3.5}v7` }));
      drawing.append(svg("text", { class: "tick value", x: width - value + 10, y: middle + 4 }, withInterval(estimate)));
      y += row;
    }
    if (group.floor !== null) {
      drawing.append(svg("line", { class: "floor", x1: scale(group.floor), x2: scale(group.floor), y1: start, y2: y }));
    }
    y += 5;
  }
  return drawing;
}

const barText = (group) => `${group.name}: ${group.bars.map(([name, estimate]) => `${name} ${withInterval(estimate)}`).join(", ")}`;
