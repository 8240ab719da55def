// Assembles the page: reads the data, keeps the selection, and handles keys.

const page = JSON.parse(byId("report-data").textContent);
const rollouts = new Rollouts(page.rollouts);
const state = { facets: {}, text: "", measure: "", low: null, high: null, order: "", variant: null, outcome: "" };
const list = new RolloutList(rollouts, showChosen);
let turned = 0; // offset of the compared answer from the one with the same index
let ready = false; // only the reader's choices change the URL

const KEYS = {
  "j, ↓": "next rollout",
  "k, ↑": "previous rollout",
  "g, G": "first, last (Home, End)",
  "Page ↑, Page ↓": "a page up or down, while the list has the focus",
  "/": "search; Enter or Esc returns to the list",
  "[ and ]": "previous and next answer to the same question, for the compared step or model",
  c: "choose what to compare with",
  t: "light, dark, or the system's setting",
  "?": "this list of keys",
};

function showChosen(number, at) {
  turned = 0;
  drawDetail(number, at);
  if (ready) history.replaceState(null, "", `${number === null ? "#rollouts" : linkTo(number)}${filtersInUrl()}`);
}

/** The filters that differ from the initial ones, for the URL. */
function filtersInUrl() {
  const chosen = new URLSearchParams();
  for (const choice of byId("filters").querySelectorAll("select, input")) {
    const name = choice.dataset.facet ?? choice.id;
    const initial = choice.options ? [...choice.options].find((each) => each.defaultSelected) ?? choice.options[0] : null;
    if (name && name !== "measure" && choice.value !== (initial?.value ?? "")) chosen.set(name, choice.value);
  }
  if (chosen.has("low") || chosen.has("high")) chosen.set("measure", state.measure);
  return `${chosen}` && `&${chosen}`;
}

/** Sets the filters and selects the rollout in the URL, if any. Filters that would hide it are reset. */
function followAddress() {
  const [, number, filters] = /^#(?:rollout-(\d+)|rollouts(?=&))(?:&(.*))?$/.exec(location.hash) ?? [];
  if (number === undefined && filters === undefined) return;
  ready = false; // the URL is as it should be
  byId("filters").reset();
  const chosen = new URLSearchParams(filters);
  for (const choice of byId("filters").querySelectorAll("select, input")) {
    const value = chosen.get(choice.dataset.facet ?? choice.id);
    if (value !== null && (!choice.options || [...choice.options].some((each) => each.value === value))) choice.value = value;
  }
  readFilters();
  if (Number(number) < rollouts.records.length) {
    if (!list.numbers.includes(Number(number))) {
      byId("filters").reset();
      readFilters();
    }
    list.choose(list.numbers.indexOf(Number(number)));
  }
  const again = performance.getEntriesByType("navigation")[0]?.type === "reload"; // the browser keeps the position
  if (!again) byId("rollouts").scrollIntoView();
  ready = true;
}

/** Reloads the page of an unfinished run, unless the reader is busy with it. */
function keepFresh(seconds) {
  const button = byId("refresh");
  let paused = false;
  const show = () => (button.textContent = paused ? "Refresh: paused" : `Refresh: every ${seconds} s`);
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    show();
  });
  show();
  setInterval(() => {
    const busy = document.activeElement?.closest("input, select, dialog") || !getSelection().isCollapsed;
    if (!paused && !busy && !document.hidden) location.reload();
  }, 1000 * seconds);
}

function drawDetail(number = list.numbers[list.at] ?? null, at = list.at) {
  const variant = number === null ? null : rollouts.otherThan(number, state.variant);
  const pairable = number !== null && variant !== null && rollouts.records[number].variant !== undefined;
  const { there, at: same } = pairable ? rollouts.counterparts(number, variant) : { there: [], at: 0 };
  const turn = (by) => {
    turned += by;
    drawDetail();
  };
  const other = there.length ? there[(((same + turned) % there.length) + there.length) % there.length] : null;
  const otherName = pairable ? rollouts.variants.find(([i]) => i === variant)[1] : null;
  const position = `${(at + 1).toLocaleString("en")} of ${list.numbers.length.toLocaleString("en")}`;
  showDetail(rollouts, number, { other, otherName, others: there.length, turn, text: state.text, position });
}

function refresh() {
  const found = rollouts.matching(state);
  list.show(found);
  const all = rollouts.records.length;
  const rest = rollouts.found > all ? ` (${rollouts.found.toLocaleString("en")} in total)` : "";
  const count = found.length === all ? "" : `${found.length.toLocaleString("en")} of `;
  byId("count").textContent = `${count}${all.toLocaleString("en")}${rest}`;
  byId("reset").hidden = found.length === all;
}

function fillFilters() {
  for (const [name, title] of FACETS) {
    const values = rollouts.values(name);
    if (values.length < 2 || values.length > MOST_VALUES) continue;
    const shownAs = (value) => (["part", "status"].includes(name) ? value.replaceAll("_", " ") : value);
    const choice = el("select", { "data-facet": name }, option("", "all"),
      ...values.map(([value, count]) => option(value, `${shownAs(value)} (${count.toLocaleString("en")})`)));
    byId("facets").append(el("label", {}, title, choice));
  }
  const measures = rollouts.measures();
  byId("measure").append(...measures.map((name) => option(name, name.replaceAll("_", " "))));
  byId("range").hidden = !measures.length;
  const orders = measures.flatMap((name) => [[`${name} up`, `${name}, lowest first`], [`${name} down`, `${name}, highest first`]]);
  byId("order").append(option("", "original"), ...orders.map(([value, text]) => option(value, text.replaceAll("_", " "))));
  const several = rollouts.variants.length > 1;
  byId("compare-label").hidden = byId("outcome-label").hidden = !several;
  byId("compare").append(option("", "nothing"), ...rollouts.variants.map(([i, name], at) => option(i, name, several && !at)));
  byId("outcome").append(...Object.entries(OUTCOMES).map(([value, text]) => option(value, text)));
}

function readFilters() {
  const number = (id) => (byId(id).value === "" || Number.isNaN(byId(id).valueAsNumber) ? null : byId(id).valueAsNumber);
  for (const choice of document.querySelectorAll("[data-facet]")) state.facets[choice.dataset.facet] = choice.value;
  state.text = byId("search").value;
  state.measure = byId("measure").value;
  [state.low, state.high] = [number("low"), number("high")];
  state.order = byId("order").value;
  state.variant = byId("compare").value === "" ? null : Number(byId("compare").value);
  state.outcome = state.variant === null ? "" : byId("outcome").value;
  byId("outcome").disabled = state.variant === null;
  refresh();
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("rg-env-report-theme", theme);
  } catch {} // storage may be turned off: then the choice lasts only as long as the page
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("rg-env-report-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

const ACTIONS = {
  j: () => list.move(1),
  k: () => list.move(-1),
  g: () => list.move(-Infinity),
  G: () => list.move(Infinity),
  "/": () => {
    byId("search").focus();
    byId("search").select();
  },
  "[": () => turnBeside(-1),
  "]": () => turnBeside(1),
  c: () => byId("compare").focus(),
  t: nextTheme,
  "?": () => byId("help").showModal(),
};
const IN_LIST = {
  ArrowDown: () => list.move(1),
  ArrowUp: () => list.move(-1),
  Home: () => list.move(-Infinity),
  End: () => list.move(Infinity),
  PageDown: () => list.move(list.page),
  PageUp: () => list.move(-list.page),
  Enter: () => byId("detail").focus(),
};

function turnBeside(by) {
  turned += by;
  drawDetail();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const writing = event.target.closest?.("input, select, textarea");
  if (writing) {
    if (event.key === "Escape" || (event.key === "Enter" && writing.matches("input"))) {
      event.preventDefault(); // browsers clear a search field on Esc
      byId("list").focus();
    }
    return;
  }
  const action = (event.target.closest?.("#list") && IN_LIST[event.key]) || ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

setTheme(storedTheme());
showOverview(page);
fillFilters();
readFilters();
byId("keys").append(...Object.entries(KEYS).flatMap(([key, text]) => [el("dt", {}, key), el("dd", {}, text)]));
let typing = 0;
byId("filters").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(readFilters, 120);
});
byId("filters").addEventListener("change", () => {
  clearTimeout(typing);
  readFilters();
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("reset").addEventListener("click", () => {
  byId("filters").reset();
  readFilters();
  byId("list").focus();
});
byId("theme").addEventListener("click", nextTheme);
byId("help-open").addEventListener("click", () => byId("help").showModal());
document.addEventListener("keydown", onKey);
byId("more").addEventListener("click", () => {
  const open = byId("filters").classList.toggle("open");
  byId("more").setAttribute("aria-expanded", String(open));
});
window.addEventListener("hashchange", followAddress);
byId("rollouts").hidden = document.querySelector("nav [href='#rollouts']").hidden = !rollouts.records.length;
followAddress();
ready = true;
if (page.refresh_s) keepFresh(page.refresh_s);
document.documentElement.dataset.ready = "true";
