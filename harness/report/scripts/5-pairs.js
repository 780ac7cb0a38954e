// Two arms side by side: counts of gained, lost, both right and both wrong samples, as the run's `compare` counts them.
const counted = new Map(); // numbers of two cells -> the rows of data.pairs about them
for (const row of data.pairs) {
  const key = `${row[0]} ${row[1]}`;
  counted.set(key, [...(counted.get(key) ?? []), row]);
}
const countsOf = (a, b) => {
  const forward = counted.get(`${a.number} ${b.number}`);
  if (forward) return forward.map(([, , metric, ...counts]) => [metric, ...counts]);
  const backward = counted.get(`${b.number} ${a.number}`) ?? [];
  return backward.map(([, , metric, gained, lost, right, wrong, points]) =>
    typeof gained === "string" ? [metric, gained] : [metric, lost, gained, right, wrong, -points]);
};

// A choice is "model:NAME" or "context:NAME"; both choices are of one kind.
const arms = ["model", "context"].flatMap((kind) => distinct(data.cells.map((cell) => cell[kind])).map((name) => `${kind}:${name}`));
const comparable = (a, b) => {
  const [kind, x] = a.split(/:(.*)/s), [other, y] = b.split(/:(.*)/s);
  return kind === other && x !== y && data.cells.some((cell) => cell[kind] === y && twin(cell, kind, x));
};
const twin = (cell, kind, name) => {
  const [model, context] = kind === "model" ? [name, cell.context] : [cell.model, name];
  return cellAt.get(JSON.stringify([model, context, cell.group]));
};

const cellLink = (cell, kind, name, metric, change, text) => {
  const link = element("a", "", text);
  const task = taskOf(cell), length = cell.length ? String(cell.length) : "";
  const plain = Object.fromEntries(NAMES.map((key) => [key, ""]));
  link.href = address("samples", {
    ...plain, model: cell.model, context: cell.context, task, length, metric, against: `${kind}:${name}`, change, open: "", page: 1,
  });
  return link;
};
const field = (cell, kind, name, counts) => {
  const node = element("td");
  const [metric, gained, lost, right, wrong, points] = counts;
  if (typeof gained === "string") {
    node.title = gained;
    node.textContent = "other prompts";
    return node;
  }
  const chosen = cell.metrics.length > 1 ? cell.metrics[metric] : "";
  const size = Math.min(1, Math.abs(points) / 40);
  node.className = points > 0 ? "up" : points < 0 ? "down" : "";
  node.style.setProperty("--k", size.toFixed(2));
  node.append(append(element("b"), cellLink(cell, kind, name, chosen, "", points === 0 ? "0" : signed(points))));
  const link = (change, text) => cellLink(cell, kind, name, chosen, change, text);
  node.append(append(element("small"), link("gained", `+${gained}`), link("lost", `\u2212${lost}`)));
  node.append(append(element("small"), link("right", `\u2713${right}`), link("same", `\u2717${wrong}`)));
  return node;
};

const pairTable = (cells, kind, name, caption) => {
  const lengths = distinct(cells.map((cell) => cell.length)).sort((a, b) => (a === 0) - (b === 0) || a - b);
  const table = append(element("table", "pair"), element("caption", "", caption));
  const head = append(element("tr"), element("th"), ...lengths.map((n) => element("th", "", n ? title(n) : "score")));
  table.append(append(element("thead"), head));
  const lines = new Map(); // task and metric -> length -> counts
  for (const cell of cells) {
    for (const counts of countsOf(twin(cell, kind, name), cell)) {
      const label = cell.task + (cell.metrics.length > 1 ? ` (${cell.metrics[counts[0]]})` : "");
      if (!lines.has(label)) lines.set(label, new Map());
      lines.get(label).set(cell.length, [cell, counts]);
    }
  }
  const body = element("tbody");
  for (const [label, fields] of lines) {
    const head = element("th", "", label);
    head.scope = "row";
    const line = append(element("tr"), head);
    for (const n of lengths) line.append(fields.has(n) ? field(fields.get(n)[0], kind, name, fields.get(n)[1]) : element("td", "none", "\u2013"));
    body.append(line);
  }
  table.append(body);
  return append(element("div", "scroll"), table);
};

const showPair = () => {
  const seconds = arms.filter((arm) => comparable(state.first, arm));
  $("p-b").replaceChildren();
  fill("p-b", seconds, afterColon);
  if (!seconds.includes(state.second)) state.second = seconds[0] ?? "";
  [$("p-a").value, $("p-b").value] = [state.first, state.second];
  const kind = state.first.split(":")[0], name = afterColon(state.first), other = kind === "model" ? "context" : "model";
  const cells = data.cells.filter((cell) => cell[kind] === afterColon(state.second) && twin(cell, kind, name));
  const tables = distinct(cells.map((cell) => cell[other]))
    .map((fixed) => pairTable(cells.filter((cell) => cell[other] === fixed), kind, name, fixed));
  $("pair-tables").replaceChildren(...tables);
  $("pair-words").textContent = `${afterColon(state.second)} minus ${name}, points; below: +gained \u2212lost, \u2713both right \u2717both wrong. Each number opens its samples.`;
};
