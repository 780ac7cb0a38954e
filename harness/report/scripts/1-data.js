// The run's samples, unpacked. What a run says enters the page as text nodes only, never as HTML.
const $ = (id) => document.getElementById(id);
const element = (tag, name, text = "") => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.textContent = text;
  return node;
};
const append = (node, ...children) => {
  node.append(...children);
  return node;
};

let data;
try {
  const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  data = JSON.parse(await new Response(stream).text());
} catch (error) {
  $("status").textContent = `This browser cannot open the samples (${error.message}); they are in the run's samples folder.`;
  return;
}

const title = (n) => {
  if (n >= 1048576 && n % 1048576 === 0) return n / 1048576 + "M";
  return n >= 1024 && n % 1024 === 0 ? n / 1024 + "K" : String(n);
};
const signed = (value, digits = 1) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(digits);
const group = (cell) => JSON.stringify([cell.benchmark, cell.task, cell.length]);
const taskOf = (cell) => `${cell.benchmark}/${cell.task}`;

// A row is {cell, id, at}: its cell and its place in the cell's columns.
const rows = [];
const cellAt = new Map(); // model, context, group -> cell
const rowAt = new Map(); // key of a cell, id -> row
data.cells.forEach((cell, number) => {
  cell.number = number;
  cell.group = group(cell);
  cell.idList = typeof cell.ids === "number" ? Array.from({ length: cell.ids }, (_, i) => String(i)) : cell.ids;
  cell.empty = new Set(cell.empty);
  cell.rows = cell.idList.map((id, at) => ({ cell, id, at }));
  cellAt.set(JSON.stringify([cell.model, cell.context, cell.group]), cell);
  cell.byId = new Map(cell.rows.map((row) => [row.id, row]));
  for (const row of cell.rows) rows.push(row);
});
const cellsOfGroup = new Map();
for (const cell of data.cells) cellsOfGroup.set(cell.group, [...(cellsOfGroup.get(cell.group) ?? []), cell]);

const keyOf = (row) => `${row.cell.key}/${row.id}`;
const rowOf = (key) => {
  const cut = key.indexOf("/");
  return data.cells.find((cell) => cell.key === key.slice(0, cut))?.byId.get(key.slice(cut + 1));
};
const metricAt = (cell, metric) => Math.max(0, cell.metrics.indexOf(metric));
const scoreOf = (row, metric = "") => row.cell.scores[metricAt(row.cell, metric)]?.[row.at] ?? null;
const tokensOf = (row) => (typeof row.cell.tokens === "number" ? row.cell.tokens : row.cell.tokens[row.at]);
const capped = (row) => row.cell.finish[row.at] === "1";
const questionOf = (row) => data.questions[row.cell.questions[row.at] ?? -1]; // references, parts, options, depth
const answerOf = (row) => data.answers[row.cell.answers[row.at] ?? -1]; // text, or [index of the option, log-probabilities]
const partner = (row, model, context) => cellAt.get(JSON.stringify([model, context, row.cell.group]))?.byId.get(row.id);
const others = (row) => (cellsOfGroup.get(row.cell.group) ?? []).map((cell) => cell.byId.get(row.id)).filter((other) => other);
const disagree = (row, metric) =>
  others(row).some((other) => other.cell.context === row.cell.context && scoreOf(other, metric) !== scoreOf(row, metric));

const outcomeOf = (score) => (score === null ? "none" : score === 1 ? "right" : score > 0 && score < 1 ? "partly" : "wrong");
const percent = (score) => (score === null ? "none" : score >= 0 && score <= 1 ? (100 * score).toFixed(0) : String(score));

const answerText = (row) => {
  const answer = answerOf(row);
  if (answer === undefined) return null;
  if (!Array.isArray(answer)) return answer;
  return questionOf(row)?.[2][answer[0]] ?? String(answer[0]);
};
// The reference of a choice is the number of an option.
const referenceTexts = (row) => {
  const question = questionOf(row);
  if (!question) return [];
  const [references, , options] = question;
  return Array.isArray(answerOf(row)) ? references.map((text) => options[Number(text)] ?? text) : references;
};
