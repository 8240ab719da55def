// The upper part of the page: facts, notes, curves, bars, tables and long texts.

function showOverview(page) {
  byId("title").textContent = coded(page.title);
  byId("kind").textContent = `rg_env report · ${page.kind}`;
  byId("verdicts").append(...page.verdicts.map(verdictOf));
  byId("facts").append(...page.facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, ...visible(text)))));
  byId("notes").hidden = !page.notes.length;
  byId("notes").append(...page.notes.map((note) => el("li", {}, ...visible(note))));
  const charts = page.charts.map(lineChart);
  if (Object.keys(page.metrics).length) charts.push(metricChart(page.metrics, page.thinned));
  byId("charts").append(...charts);
  const bars = page.tasks.length > 1 || !charts.length; // otherwise, the first chart has these numbers
  if (bars && page.tasks.some((task) => accuracies(task).length)) byId("bars").append(barChart("Accuracy by task", page.tasks));
  byId("tables").append(...page.tables.map((table) => tableOf(table, page.links)));
  if (Object.keys(page.links).length) byId("charts").before(byId("tables"));
  byId("texts").append(...page.texts.map(([title, text]) =>
    el("details", {}, el("summary", {}, title), el("pre", { tabindex: "0" }, text))));
}

function verdictOf({ headline, about, outcome }) {
  const kind = { better: "right", worse: "wrong" }[outcome] ?? "";
  return el("div", {},
    el("p", { class: "headline" }, headline.replace(/(?<!,) /g, "\u00a0"), outcome ? el("span", { class: `outcome ${kind}` }, outcome) : null),
    el("p", { class: "small" }, ...visible(about)));
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

function tableOf(table, links) {
  const numeric = table.columns.map((_, i) => table.rows.every((row) => NUMBER.test(row[i])));
  const kind = (i) => (numeric[i] && i > 0 ? "number" : null);
  const head = el("tr", {}, ...table.columns.map((name, i) => el("th", { scope: "col", class: kind(i) }, name)));
  const rows = table.rows.map((row, at) => {
    const again = at > 0 && row[0] === table.rows[at - 1][0]; // the same name in each row of a group is noise
    return el("tr", { class: again ? "again" : null }, ...row.map((cell, i) =>
      el(i ? "td" : "th", { class: kind(i), scope: i ? null : "row" }, ...(i ? cellOf(cell) : [nameOf(cell, links)]))));
  });
  const scroller = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
  return el("figure", { class: "table" }, el("figcaption", {}, el("h2", {}, table.title)), scroller,
    ...table.notes.map((note) => el("p", { class: "small" }, ...visible(note))));
}

function nameOf(name, links) {
  return Object.hasOwn(links, name) ? el("a", { href: links[name] }, ...visible(name)) : el("span", {}, ...visible(name));
}

/** Intervals are less prominent than values. */
function cellOf(cell) {
  const number = /^([+-]?[\d.,]+)( \[.*\])?$/.exec(cell);
  const signed = (text) => text.replace(/-(?=\d)/g, "\u2212");
  return number ? [signed(number[1]), el("span", { class: "interval" }, signed(number[2] ?? ""))] : visible(cell);
}
