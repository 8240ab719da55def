// The selected rollout: its question and answer, next to the answer from another step or model.

/** Shows record `number` next to record `other` (or null); `text` is the search text. */
function showDetail(rollouts, number, { other, otherName, others, turn, text, position }) {
  const box = byId("detail");
  if (number === null) {
    box.replaceChildren(el("p", { class: "empty" }, "No rollout matches."));
    return;
  }
  const record = rollouts.records[number];
  const cards = [card(record, text, other === null ? "" : "chosen")];
  if (other !== null) {
    const compared = card(rollouts.records[other], text, "", others > 1 ? turner(turn) : null);
    cards[record.variant < rollouts.records[other].variant ? "push" : "unshift"](compared);
  } else if (otherName) {
    cards.push(el("p", { class: "empty card" }, `${otherName} has no answer to this question here.`));
  }
  const place = el("p", { class: "small" }, `${coded([...labels(record), position].join(" · "))} · `,
    el("a", { href: linkTo(number), title: "A link to this rollout" }, "link"));
  box.replaceChildren(
    el("header", {}, el("h3", {}, ...visible(record.task ?? "Rollout")), place),
    asked(rollouts, record, text),
    el("div", { class: cards.length > 1 ? "cards two" : "cards" }, ...cards),
  );
  box.scrollTop = 0;
}

const linkTo = (number) => `#rollout-${number}`;

function labels(record) {
  const words = [];
  if (record.part === "held_out") words.push("held-out task");
  if (record.part === "labelled") words.push("under a label");
  if (record.level !== undefined) words.push(`level ${record.level}`);
  if (record.problem !== undefined) words.push(`question ${record.problem}`);
  return words;
}

function asked(rollouts, record, text) {
  const parts = [];
  if (record.system !== undefined) {
    parts.push(el("details", {}, el("summary", {}, "System prompt"), el("pre", {}, ...marked(rollouts.texts[record.system], text))));
  }
  parts.push(block("Question", rollouts.question(record), text));
  if (record.answer !== undefined) parts.push(block("Gold answer", record.answer, text, "gold"));
  return el("section", { class: "asked", "aria-label": "Question" }, ...parts);
}

function block(title, text, searched, kind = "", answer = null) {
  const shownText = text.trim() === "" ? [el("span", { class: "small" }, "(nothing)")] : marked(text, searched, answer);
  return el("div", { class: `block ${kind}` }, el("h4", {}, title), el("pre", { dir: "auto" }, ...shownText));
}

function card(record, text, kind, extra = null) {
  const [mark, verdict] = markOf(record);
  const status = record.status !== undefined && record.status !== "correct" && record.status !== "wrong";
  const head = el("header", {},
    el("h4", {}, ...visible(placeOf(record) || "Answer")),
    el("span", { class: `verdict ${verdict}` }, `${mark} ${verdict}`),
    status ? el("span", { class: "chip" }, coded(record.status.replaceAll("_", " "))) : null,
    record.truncated ? el("span", { class: "chip" }, "cut off") : null,
    extra);
  const parts = [head, figures(record)];
  if (record.error !== undefined) parts.push(block("Error", record.error, text, "error"));
  if (record.detail) parts.push(block("Why", record.detail, text));
  parts.push(...answered(record, text));
  if (record.extracted !== undefined) parts.push(block("Extracted answer", record.extracted, text, `extracted ${verdict}`));
  return el("section", { class: `card ${verdict} ${kind}`, "aria-label": `Answer, ${placeOf(record)}, ${verdict}` }, ...parts);
}

function figures(record) {
  const found = [["score", record.score], ["reward", record.reward], ...Object.entries(record.rewards ?? {})]
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => [name, shown(value)]);
  if (record.completion_tokens !== undefined) found.push(["tokens", String(record.completion_tokens)]);
  if (record.prompt_tokens !== undefined) found.push(["prompt tokens", String(record.prompt_tokens)]);
  if (record.seconds !== undefined) found.push(["seconds", shown(record.seconds)]);
  return el("dl", { class: "figures" }, ...found.map(([name, value]) => el("div", {}, el("dt", {}, ...visible(name)), el("dd", {}, value))));
}

/** The reasoning, if it is separate or ends with </think>, and the rest. */
function answered(record, text) {
  if (record.completion === undefined) return [];
  const end = record.reasoning === undefined ? record.completion.indexOf("</think>") : -1;
  const cut = end < 0 ? 0 : end + "</think>".length;
  const reasoning = record.reasoning ?? record.completion.slice(0, cut);
  const parts = [];
  if (reasoning.trim()) parts.push(block("Reasoning", reasoning, text, "reasoning"));
  const reply = record.completion.slice(cut);
  parts.push(block("Completion", reply, text, "completion", answerIn(reply, record.extracted)));
  return parts;
}

/** Where the extracted answer is in the reply, as [start, end], or null if it is not there literally. */
function answerIn(reply, extracted) {
  if (!extracted) return null;
  const close = reply.lastIndexOf("</answer>");
  const open = close < 0 ? -1 : reply.lastIndexOf("<answer>", close);
  let at = open < 0 ? -1 : reply.slice(open, close).lastIndexOf(extracted);
  at = at < 0 ? reply.lastIndexOf(extracted) : open + at;
  const end = at + extracted.length;
  const within = /[\p{L}\p{N}]{2}/u; // a part of a word or number is not the answer
  return at < 0 || within.test(reply.slice(at - 1, at + 1)) || within.test(reply.slice(end - 1, end + 1)) ? null : [at, end];
}

function turner(turn) {
  const button = (by, sign, name) => {
    const made = el("button", { type: "button", title: name, "aria-label": name }, sign);
    made.addEventListener("click", () => turn(by));
    return made;
  };
  return el("span", { class: "turn" }, button(-1, "‹", "Previous answer to the same question ([)"), button(1, "›", "Next answer to the same question (])"));
}

/** The text with search matches and the answer (its start and end) highlighted. */
function marked(text, searched, answer = null) {
  if (answer) {
    const [before, within, after] = [text.slice(0, answer[0]), text.slice(...answer), text.slice(answer[1])];
    const highlighted = el("strong", { class: "answer", title: "the extracted answer" }, ...marked(within, searched));
    return [...marked(before, searched), highlighted, ...marked(after, searched)];
  }
  if (!searched) return visible(text);
  const needle = new RegExp(searched.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(needle)) {
    parts.push(...visible(text.slice(end, match.index)), el("mark", {}, ...visible(match[0])));
    end = match.index + match[0].length;
    if (parts.length > 2000) break;
  }
  return [...parts, ...visible(text.slice(end))];
}
