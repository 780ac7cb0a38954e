// What the page shows, as one object. It is in the address after "#samples?" or "#pairs?", so a link opens the same view.
const NAMES = ["model", "context", "task", "length", "metric", "outcome", "against", "change", "text", "disagree", "depth"];
const state = { page: 1, open: "", first: "", second: "" };
for (const name of NAMES) state[name] = "";

const readAddress = () => {
  const [place, query] = location.hash.slice(1).split(/\?(.*)/s);
  if (query === undefined) return false;
  const given = new URLSearchParams(query);
  const pairOnly = place === "pairs" && !NAMES.some((name) => given.has(name));
  if (!pairOnly) for (const name of NAMES) state[name] = given.get(name) ?? "";
  state.page = Math.max(1, Number(given.get("page")) || 1);
  state.open = given.get("open") ?? "";
  for (const name of ["first", "second"]) if (given.has(name)) state[name] = given.get(name);
  return place;
};
const address = (place, changes = {}) => {
  const all = { ...state, ...changes };
  const given = new URLSearchParams();
  for (const name of [...NAMES, "open", "first", "second"]) if (all[name]) given.set(name, all[name]);
  if (all.page > 1) given.set("page", all.page);
  return `#${place}?${given.toString().replaceAll("+", "%20")}`;
};
const remember = (place) => history.replaceState(null, "", address(place));

// "model:NAME" is another model under the same context setting, "context:NAME" the same model under another one.
const partnerOf = (row, against) => {
  const [kind, name] = against.split(/:(.*)/s);
  if (kind === "model") return name === row.cell.model ? undefined : partner(row, name, row.cell.context);
  return name === row.cell.context ? undefined : partner(row, row.cell.model, name);
};
const changeOf = (before, after) => {
  if (before === null || after === null) return "none";
  if (after > before) return "gained";
  if (after < before) return "lost";
  return after === 1 ? "right" : "same";
};

const textOf = (row) => {
  const question = questionOf(row);
  const parts = question ? [...question[1].map(([, text]) => text), ...question[2]] : [];
  return [answerText(row) ?? "", ...referenceTexts(row), ...parts].join("\n").toLowerCase();
};
const matches = (row) => {
  const { cell } = row;
  if (state.model && cell.model !== state.model) return false;
  if (state.context && cell.context !== state.context) return false;
  if (state.task && (state.task.endsWith("/") ? `${cell.benchmark}/` : taskOf(cell)) !== state.task) return false;
  if (state.length && String(cell.length) !== state.length) return false;
  if (state.metric && !cell.metrics.includes(state.metric)) return false;
  const score = scoreOf(row, state.metric);
  if (state.outcome) {
    const outcome = outcomeOf(score);
    if (state.outcome === "capped" ? !capped(row)
      : state.outcome === "empty" ? !cell.empty.has(row.at)
      : state.outcome === "incomplete" ? outcome !== "partly" && outcome !== "wrong"
      : outcome !== state.outcome) return false;
  }
  if (state.against && (state.change || !state.model)) {
    const other = partnerOf(row, state.against);
    if (!other) return false;
    const change = changeOf(scoreOf(other, state.metric), score);
    if (state.change === "differ" ? change !== "gained" && change !== "lost" : state.change && change !== state.change) return false;
  }
  if (state.disagree && !disagree(row, state.metric)) return false;
  if (state.depth) {
    const depth = questionOf(row)?.[3];
    const [from, to] = state.depth.split("\u2013").map((part) => Number(part) / 100);
    if (depth === undefined || depth === null || depth < from || (depth >= to && to < 1)) return false;
  }
  return !state.text || textOf(row).includes(state.text.toLowerCase());
};
