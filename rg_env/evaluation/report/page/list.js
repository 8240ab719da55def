// The list of rollouts. Only visible rows are in the document, for any number of rollouts.

const ROW = 54; // pixels, as in the style sheet
const SPARE = 6; // extra rows above and below the visible ones

class RolloutList {
  constructor(rollouts, onChoice) {
    this.rollouts = rollouts;
    this.onChoice = onChoice;
    this.box = byId("list");
    this.spacer = byId("spacer");
    this.numbers = [];
    this.at = -1;
    this.wanted = null; // the record that the reader chose, even while a filter hides it
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    this.box.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(Number(row.dataset.at));
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  /** Shows these records and keeps the selection if it is among them; otherwise selects the first one. */
  show(numbers) {
    this.numbers = numbers;
    this.spacer.style.height = `${numbers.length * ROW}px`;
    this.box.scrollTop = 0;
    const { wanted } = this;
    this.choose(Math.max(0, numbers.indexOf(wanted)));
    this.wanted = wanted;
  }

  move(by) {
    this.choose(Math.max(0, Math.min(this.numbers.length - 1, this.at + by)));
  }

  choose(at) {
    this.at = this.numbers.length ? at : -1;
    this.wanted = this.numbers[this.at] ?? null;
    const [top, height] = [at * ROW, this.box.clientHeight];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW > this.box.scrollTop + height) this.box.scrollTop = top + ROW - height;
    this.draw();
    this.onChoice(this.at < 0 ? null : this.numbers[this.at], this.at);
  }

  get page() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = Math.min(this.numbers.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + SPARE);
    const rows = [];
    for (let at = first; at < last; at++) rows.push(this.row(at));
    this.spacer.replaceChildren(...rows);
    const chosen = this.at >= first && this.at < last;
    if (chosen) this.box.setAttribute("aria-activedescendant", `row-${this.at}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  row(at) {
    const record = this.rollouts.records[this.numbers[at]];
    const [mark, verdict] = markOf(record);
    const [measure, value] = record.reward === undefined ? ["score", record.score] : ["reward", record.reward];
    const several = this.rollouts.shared.size > 1;
    const row = el("div", {
      class: `row ${verdict}`, role: "option", id: `row-${at}`, "data-at": at, "aria-selected": String(at === this.at),
      "aria-setsize": this.numbers.length, "aria-posinset": at + 1,
    },
      el("span", { class: "mark", role: "img", "aria-label": verdict }, mark),
      el("span", { class: "name", dir: "auto" }, ...visible(this.rollouts.start(record))),
      el("span", { class: "value", title: measure }, value === undefined ? "" : value.toFixed(2).replace("-", "\u2212")),
      el("span", { class: "line" }, el("span", { class: "place" }, ...visible(placeOf(record))),
        ...(several ? visible(record.task ?? "") : [])));
    row.style.top = `${at * ROW}px`;
    return row;
  }
}

/** Symbol and word for the verdict. */
function markOf(record) {
  if (record.error !== undefined) return ["!", "failed"];
  if (record.correct === undefined) return ["·", "ungraded"];
  return record.correct ? ["✓", "right"] : ["✗", "wrong"];
}

/** Short description of a rollout's origin. */
function placeOf(record) {
  const words = [];
  if (record.model !== undefined) words.push(record.model);
  if (record.step !== undefined) words.push(`${record.source === "training" ? "training, " : ""}step ${record.step}`);
  if (record.draw === "greedy") words.push("greedy");
  else if (record.rollout !== undefined) words.push(`#${record.rollout}`);
  return words.join(" · ");
}
