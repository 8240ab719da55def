// The rollouts: filtering, sorting, and the choice of answers to compare.

const FACETS = [
  ["task", "Task"],
  ["model", "Model"],
  ["step", "Step"],
  ["source", "Source"],
  ["part", "Part"],
  ["draw", "Sampling"],
  ["status", "Status"],
  ["verdict", "Verdict"],
  ["truncated", "Cut off"],
];
const SEARCHED = ["completion", "reasoning", "answer", "extracted", "detail", "error"];
const MOST_VALUES = 300; // maximum per facet: a menu of more, such as the steps of a long run, is useless
const START = 160; // maximum number of a question's characters in the list
const SHARED = 24; // minimum length of a beginning shared by all questions of a task that the list leaves out
const OUTCOMES = { "": "any", better: "better", worse: "worse", both: "both right", neither: "both wrong" };

function sharedLength(texts) {
  if (texts.length < 2) return 0;
  const [first, last] = [texts.reduce((a, b) => (a < b ? a : b)), texts.reduce((a, b) => (a > b ? a : b))];
  let end = 0;
  while (end < first.length && first[end] === last[end]) end++;
  const start = first.slice(0, end).search(/\S*$/); // of the word in which the questions differ
  return start >= SHARED && start < first.trimEnd().length ? start : 0;
}

class Rollouts {
  constructor({ records, texts, variants, found }) {
    this.records = records;
    this.texts = texts;
    this.found = found;
    this.answers = new Map(); // task, question and kind of sampling -> variant -> indices of records
    records.forEach((record, number) => {
      if (record.variant === undefined) return;
      const key = this.pairKey(record);
      if (!this.answers.has(key)) this.answers.set(key, new Map());
      const of = this.answers.get(key);
      if (!of.has(record.variant)) of.set(record.variant, []);
      of.get(record.variant).push(number);
    });
    this.shared = new Map(); // task -> length of the beginning that all its questions share
    for (const record of records) {
      const known = this.shared.get(record.task) ?? this.shared.set(record.task, new Set()).get(record.task);
      known.add(record.question);
    }
    for (const [task, of] of this.shared) this.shared.set(task, sharedLength([...of].map((i) => texts[i])));
    const there = new Set(records.map((record) => record.variant));
    this.variants = variants.map((name, i) => [i, name]).filter(([i]) => there.has(i));
  }

  pairKey(record) {
    return JSON.stringify([record.task, record.question, record.draw]);
  }

  question(record) {
    return this.texts[record.question];
  }

  /** The start of a question, without a long beginning that is the same in all questions of the task. */
  start(record) {
    const [text, shared] = [this.question(record), this.shared.get(record.task)];
    const rest = text.slice(shared, shared + START).replace(/[ \t\r\n]+/g, " ").trimStart();
    return shared ? `…${rest}` : rest;
  }

  facet(record, name) {
    if (name === "verdict") return { true: "right", false: "wrong" }[record.correct] ?? "ungraded";
    if (name === "truncated") return { true: "yes", false: "no" }[record.truncated];
    return record[name] === undefined ? undefined : String(record[name]);
  }

  /** Values of a facet, with counts. Records without the field, such as training rollouts without a model, do not count. */
  values(name) {
    const counts = new Map();
    for (const record of this.records) {
      const value = this.facet(record, name);
      if (value !== undefined) counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    const numbers = name === "step";
    return [...counts].sort(([a], [b]) => (numbers ? Number(a) - Number(b) : a < b ? -1 : 1));
  }

  /** Numeric fields of records, including each reward. */
  measures() {
    const names = new Set();
    for (const record of this.records) {
      for (const name of ["score", "reward", "completion_tokens", "prompt_tokens", "seconds", "step"]) {
        if (record[name] !== undefined) names.add(name);
      }
      for (const name of Object.keys(record.rewards ?? {})) names.add(`rewards.${name}`);
    }
    return [...names];
  }

  measure(record, name) {
    return name.startsWith("rewards.") ? record.rewards?.[name.slice(8)] : record[name];
  }

  /** Indices of the matching records, in order. */
  matching({ facets, text, measure, low, high, order, variant, outcome }) {
    const needle = text ? new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i") : null;
    const questions = needle ? this.texts.map((each) => needle.test(each)) : null;
    const chosen = Object.entries(facets).filter(([, value]) => value !== "");
    const found = [];
    this.records.forEach((record, number) => {
      if (!chosen.every(([name, value]) => this.facet(record, name) === value)) return;
      if (low !== null || high !== null) {
        const value = this.measure(record, measure);
        if (value === undefined || (low !== null && value < low) || (high !== null && value > high)) return;
      }
      if (needle && !questions[record.question] && !SEARCHED.some((name) => record[name] && needle.test(record[name]))) return;
      if (outcome && this.outcome(number, variant) !== outcome) return;
      found.push(number);
    });
    const [name, direction] = order.split(" ");
    if (name) {
      const value = (number) => this.measure(this.records[number], name) ?? (direction === "up" ? Infinity : -Infinity);
      const sign = direction === "up" ? 1 : -1;
      found.sort((a, b) => sign * (value(a) - value(b)) || a - b);
    }
    return found;
  }

  /** A variant's answers to a record's question with the same kind of sampling, and which of them has the same index. */
  counterparts(number, variant) {
    const record = this.records[number];
    const of = record.variant === undefined ? undefined : this.answers.get(this.pairKey(record));
    const there = of?.get(variant) ?? [];
    const same = there.findIndex((other) => this.records[other].rollout === record.rollout);
    return { there, at: Math.max(0, same) };
  }

  /** The variant to compare a record with if `variant` is selected: a different one if the record is of that variant. */
  otherThan(number, variant) {
    if (variant === null || this.records[number].variant !== variant) return variant;
    const others = this.variants.filter(([i]) => i !== variant);
    return others.length ? others.at(-1)[0] : null;
  }

  outcome(number, variant) {
    const other = this.otherThan(number, variant);
    const { there, at } = other === null ? { there: [] } : this.counterparts(number, other);
    if (!there.length) return null;
    const [a, b] = [this.records[number].correct, this.records[there[at]].correct];
    if (a === undefined || b === undefined) return null;
    return a === b ? (a ? "both" : "neither") : a ? "better" : "worse";
  }
}
