// One sample: its line in the list, and what opens below it.
const REASONS = ["stop", "length: cut by its token budget", "choose", "log-likelihood of a text"];
const CHANGES = { gained: "gained", lost: "lost", right: "both right", same: "both wrong", none: "no score" };
const MARKS = { right: "\u2713", partly: "\u25D0", wrong: "\u2717", none: "\u2013" };

const marked = (text, needles, kind = "") => {
  const pre = element("pre", kind);
  const lowered = needles.map((needle) => needle.trim().toLowerCase()).filter(Boolean);
  let rest = text;
  while (rest) {
    let at = -1, size = 0;
    for (const needle of lowered) {
      const i = rest.toLowerCase().indexOf(needle);
      if (i >= 0 && (at < 0 || i < at || (i === at && needle.length > size))) [at, size] = [i, needle.length];
    }
    if (at < 0) break;
    pre.append(rest.slice(0, at), element("mark", "", rest.slice(at, at + size)));
    rest = rest.slice(at + size);
  }
  pre.append(rest);
  return pre;
};
const scoreMark = (row, metric) => {
  const score = scoreOf(row, metric), outcome = outcomeOf(score);
  return element("span", `score ${outcome}`, `${MARKS[outcome]} ${percent(score)}`);
};
const shownAnswer = (row) => {
  const text = answerText(row);
  if (text === null) return row.cell.empty.has(row.at) ? "(empty)" : "(its text is not in the page)";
  return text.trim() || "(empty)";
};

const options = (row) => {
  const [chosen, values] = answerOf(row);
  const [references, , names] = questionOf(row);
  const table = element("table", "options");
  const head = append(element("tr"), ...["option", "log-probability", ""].map((text) => element("th", "", text)));
  table.append(append(element("thead"), head));
  const body = element("tbody");
  names.forEach((name, i) => {
    const notes = [i === chosen ? "chosen" : "", references.includes(String(i)) ? "reference" : ""].filter(Boolean).join(", ");
    const value = values[i] === null || values[i] === undefined ? "" : signed(values[i], 3).replace("+", "");
    const line = append(element("tr", i === chosen ? "chosen" : ""), element("td", "", name), element("td", "number", value), element("td", "", notes));
    body.append(line);
  });
  table.append(body);
  return table;
};

const answerBlock = (row, metric) => {
  const box = element("div", "side");
  const who = append(element("div", "what"), scoreMark(row, metric));
  const cut = capped(row) ? ", cut by its token budget" : "";
  who.append(` ${row.cell.model}, ${row.cell.context}${cut}`);
  box.append(who);
  if (Array.isArray(answerOf(row)) && questionOf(row)) box.append(options(row));
  else box.append(marked(shownAnswer(row), referenceTexts(row)));
  return box;
};

const details = (row) => {
  const box = element("div", "sample");
  const facts = [`${tokensOf(row).toLocaleString("en")} prompt tokens`, `finish reason ${REASONS[Number(row.cell.finish[row.at])]}`];
  const question = questionOf(row);
  if (question && typeof question[3] === "number") facts.push(`needle at ${(100 * question[3]).toFixed(0)}% of the prompt`);
  for (const name of row.cell.metrics.slice(row.cell.metrics.length > 1 ? 0 : 1)) facts.push(`${name} ${percent(scoreOf(row, name))}`);
  const link = append(element("p", "soft", facts.join("; ") + ". "), element("a", "permalink", "link to this sample"));
  link.lastChild.href = address("samples", { open: keyOf(row) });
  box.append(link);
  const other = state.against ? partnerOf(row, state.against) : undefined;
  const first = other ? [other, row] : [row];
  box.append(append(element("div", "sides"), ...first.map((one) => answerBlock(one, state.metric))));
  if (!question) {
    box.append(element("p", "soft", "This sample's texts did not fit into the page; they are in the run's samples folder."));
  } else {
    const [references, parts] = question;
    box.append(element("div", "what", references.length > 1 ? "references" : "reference"), marked(referenceTexts(row).join("\n"), []));
    const needles = Array.isArray(answerOf(row)) ? [] : references;
    const names = { prompt: "prompt", head: "prompt, its beginning", needle: "around a needle", tail: "prompt, its end" };
    parts.forEach(([kind, text], i) => {
      if (i) box.append(element("div", "gap", "\u22EF"));
      box.append(element("div", "what", names[kind]), marked(text, needles, "prompt"));
    });
  }
  const rest = others(row).filter((one) => !first.includes(one));
  if (rest.length) {
    const fold = append(element("details", "others"), element("summary", "", `${rest.length} other answers to this sample`));
    fold.append(append(element("div", "sides"), ...rest.map((one) => answerBlock(one, state.metric))));
    box.append(fold);
  }
  return box;
};

// Which sample it is; what all listed samples share by the filters is left out.
const whereOf = (row) => {
  const { cell } = row, at = cell.length && !state.length ? ` at ${title(cell.length)}` : "";
  const task = state.task === taskOf(cell) && !at ? "" : `${cell.task}${at}, `;
  const who = [state.model ? "" : cell.model, state.context ? "" : cell.context].filter(Boolean).join(" / ");
  return `${task}sample ${row.id}${capped(row) ? ", cut" : ""}${who ? ` \u00B7 ${who}` : ""}`;
};

const listHead = () => {
  const [kind, name] = state.against.split(/:(.*)/s);
  const own = (kind === "model" ? state.model : state.context) || `its own ${kind}`;
  const titles = state.against ? ["change", "sample", name, own, "reference"] : ["score", "sample", "answer", "reference"];
  return append(element("div", state.against ? "row two listhead" : "row listhead"), ...titles.map((text) => element("span", "", text)));
};

const item = (row) => {
  const { cell } = row, node = element("details", "item");
  const other = state.against ? partnerOf(row, state.against) : undefined;
  const line = element("span", other ? "row two" : "row"), summary = append(element("summary"), line);
  const change = other ? changeOf(scoreOf(other, state.metric), scoreOf(row, state.metric)) : "";
  line.append(other ? element("span", `change ${change}`, CHANGES[change]) : scoreMark(row, state.metric));
  line.append(element("span", "where", whereOf(row)));
  const answer = (one) => append(element("span", "answer"), scoreMark(one, state.metric), ` ${shownAnswer(one)}`);
  if (other) line.append(answer(other), answer(row));
  else line.append(element("span", "answer", shownAnswer(row)));
  line.append(element("span", "reference", referenceTexts(row).join(", ")));
  node.append(summary);
  node.dataset.key = keyOf(row);
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(details(row));
    if (node.open) state.open = keyOf(row);
    else if (state.open === keyOf(row)) state.open = "";
    remember("samples");
  });
  return node;
};
