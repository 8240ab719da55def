// The upper part of the page: facts, notes, curves, bars, tables and long texts.

function showOverview(page) {
  byId("title").textContent = page.title;
  byId("kind").textContent = `rg_env report · ${page.kind}`;
  byId("facts").append(...page.facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));
  byId("notes").hidden = !page.notes.length;
  byId("notes").append(...page.notes.map((note) => el("li", {}, note)));
  const charts = page.charts.map(lineChart);
  if (Object.keys(page.metrics).length) charts.push(metricChart(page.metrics, page.thinned));
  byId("charts").append(...charts);
  if (page.tasks.some((task) => accuracies(task).length)) byId("bars").append(barChart("Accuracy by task", page.tasks));
  byId("tables").append(...page.tables.map(tableOf));
  byId("texts").append(...page.texts.map(([title, text]) =>
    el("details", {}, el("summary", {}, title), el("pre", { tabindex: "0" }, text))));
}

/** Any logged metric, selected by the reader. */
function metricChart(metrics, note) {
  const names = Object.keys(metrics);
  const first = ["frac_reward_zero_std", "entropy", "kl", "loss"].find((name) => names.includes(name)) ?? names[0];
  const choice = el("select", { "aria-label": "Metric" }, ...names.map((name) => option(name, name, name === first)));
  const figure = el("div", { class: "metric" });
  const draw = () => {
    const [steps, values] = metrics[choice.value];
    const points = steps.map((step, i) => [step, [values[i], null, null]]);
    figure.replaceChildren(lineChart({ title: "Any metric", lines: { [choice.value]: points }, note, share: false }));
    figure.querySelector("figcaption").append(choice);
  };
  choice.addEventListener("change", () => {
    draw();
    choice.focus();
  });
  draw();
  return figure;
}

const NUMBER = /^[+\u2212-]?[\d.,]+( \[.*)?$|^–?$|^pass@|^< 0\./;

function tableOf(table) {
  const numeric = table.columns.map((_, i) => table.rows.every((row) => NUMBER.test(row[i])));
  const kind = (i) => (numeric[i] && i > 0 ? "number" : null);
  const head = el("tr", {}, ...table.columns.map((name, i) => el("th", { scope: "col", class: kind(i) }, name)));
  const rows = table.rows.map((row) => el("tr", {}, ...row.map((cell, i) =>
    el(i ? "td" : "th", { class: kind(i), scope: i ? null : "row" }, ...cellOf(cell)))));
  const scroller = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
  return el("figure", { class: "table" }, el("figcaption", {}, el("h2", {}, table.title)), scroller,
    table.notes.length ? el("p", { class: "small" }, table.notes.join(" ")) : null);
}

/** Intervals are less prominent than values. */
function cellOf(cell) {
  const interval = /^([+-]?[\d.,]+)( \[.*\])$/.exec(cell);
  const signed = (text) => text.replace(/-(?=\d)/g, "\u2212");
  return interval ? [signed(interval[1]), el("span", { class: "interval" }, signed(interval[2]))] : [cell];
}
