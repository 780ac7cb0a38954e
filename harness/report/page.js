// The sample browser. It puts what a run says into the page as text nodes only, never as HTML.
"use strict";
(async () => {
  const PAGE = 50; // samples listed at a time
  const MODEL = 0, CONTEXT = 1, TASK = 3, LENGTH = 4; // fields of a cell
  const CELL = 0, ID = 1, SCORE = 2, FINISH = 3, TOKENS = 4, TEXT = 5; // fields of a row
  const REASONS = ["stop", "length: cut by its token budget", "choose"];
  const $ = (id) => document.getElementById(id);
  const status = $("status");

  let data;
  try {
    const bytes = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    data = JSON.parse(await new Response(stream).text());
  } catch (error) {
    status.textContent = `This browser cannot open the samples (${error.message}); they are in the run's samples folder.`;
    return;
  }
  const { cells, rows, texts } = data;

  const title = (n) => {
    if (n >= 1048576 && n % 1048576 === 0) return n / 1048576 + "M";
    return n >= 1024 && n % 1024 === 0 ? n / 1024 + "K" : String(n);
  };
  const percent = (score) => (score === null ? "none" : (100 * score).toFixed(0));

  // Equal for the rows of all models on one sample: the cell without its model, and the sample's id.
  const question = (row) => JSON.stringify([cells[row[CELL]].slice(1), row[ID]]);
  const answers = new Map();
  for (const row of rows) {
    const key = question(row);
    if (!answers.has(key)) answers.set(key, []);
    answers.get(key).push(row);
  }
  const disagree = (row) => answers.get(question(row)).some((other) => other[SCORE] !== row[SCORE]);

  const fill = (id, values, text = String) => {
    for (const value of values) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = text(value);
      $(id).append(option);
    }
  };
  const distinct = (field) => [...new Set(cells.map((cell) => cell[field]))];
  fill("f-model", distinct(MODEL));
  fill("f-context", distinct(CONTEXT));
  fill("f-task", distinct(TASK));
  fill("f-length", distinct(LENGTH).filter((n) => n > 0).sort((a, b) => a - b), title);

  const readFilters = () => ({
    model: $("f-model").value, context: $("f-context").value, task: $("f-task").value, length: $("f-length").value,
    outcome: $("f-outcome").value, disagree: $("f-disagree").checked, text: $("f-text").value.toLowerCase(),
  });
  const matches = (row, f) => {
    const cell = cells[row[CELL]];
    if (f.model && cell[MODEL] !== f.model) return false;
    if (f.context && cell[CONTEXT] !== f.context) return false;
    if (f.task && cell[TASK] !== f.task) return false;
    if (f.length && String(cell[LENGTH]) !== f.length) return false;
    if (f.outcome === "right" && row[SCORE] !== 1) return false;
    if (f.outcome === "wrong" && row[SCORE] === 1) return false;
    if (f.outcome === "cut" && row[FINISH] !== 1) return false;
    if (f.disagree && !disagree(row)) return false;
    if (!f.text) return true;
    if (row[TEXT] < 0) return false;
    const [references, response] = texts[row[TEXT]];
    return [response, ...references].join("\n").toLowerCase().includes(f.text);
  };

  const element = (tag, name, text = "") => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    node.textContent = text;
    return node;
  };
  const marked = (text, needles) => {
    const pre = element("pre");
    const lowered = needles.filter(Boolean).map((needle) => needle.toLowerCase());
    let rest = text;
    while (rest) {
      let at = -1, size = 0;
      for (const needle of lowered) {
        const i = rest.toLowerCase().indexOf(needle);
        if (i >= 0 && (at < 0 || i < at)) [at, size] = [i, needle.length];
      }
      if (at < 0) break;
      pre.append(rest.slice(0, at), element("mark", "", rest.slice(at, at + size)));
      rest = rest.slice(at + size);
    }
    pre.append(rest);
    return pre;
  };

  const details = (row) => {
    const box = element("div");
    const part = (what, text, needles) => text && box.append(element("div", "what", what), marked(text, needles));
    box.append(element("p", "soft", `${row[TOKENS]} prompt tokens; finish reason ${REASONS[row[FINISH]]}`));
    if (row[TEXT] < 0) {
      box.append(element("p", "soft", "This sample's texts did not fit into the page; they are in the run's samples folder."));
      return box;
    }
    const [references, response, head, tail, needles] = texts[row[TEXT]];
    part("prompt, its beginning", head, references);
    for (const text of needles) part("around a needle", text, references);
    part("prompt, its end", tail, references);
    part(references.length > 1 ? "references" : "reference", references.join("\n"), []);
    part("response", response || "(empty)", references);
    for (const other of answers.get(question(row))) {
      if (other === row) continue;
      const answer = other[TEXT] >= 0 ? texts[other[TEXT]][1] || "(empty)" : "(its text is not in the page)";
      part(`${cells[other[CELL]][MODEL]}, score ${percent(other[SCORE])}`, answer, references);
    }
    return box;
  };

  const item = (row) => {
    const cell = cells[row[CELL]];
    const node = element("details"), summary = element("summary");
    const at = cell[LENGTH] ? ` at ${title(cell[LENGTH])}` : "";
    const cut = row[FINISH] === 1 ? ", cut" : "";
    summary.append(element("span", row[SCORE] === 1 ? "score right" : "score wrong", percent(row[SCORE])));
    summary.append(`${cell[MODEL]} / ${cell[CONTEXT]} / ${cell[TASK]}${at}, sample ${row[ID]}${cut}`);
    node.append(summary);
    node.addEventListener("toggle", () => node.open && node.children.length === 1 && node.append(details(row)));
    return node;
  };

  let matching = [], page = 0;
  const show = () => {
    const pages = Math.max(1, Math.ceil(matching.length / PAGE));
    $("list").replaceChildren(...matching.slice(page * PAGE, (page + 1) * PAGE).map(item));
    const n = (number) => number.toLocaleString("en");
    status.textContent = `${n(matching.length)} of ${n(rows.length)} samples, page ${page + 1} of ${pages}`;
    $("previous").disabled = page === 0;
    $("next").disabled = page + 1 >= pages;
  };
  const apply = () => {
    const filters = readFilters();
    matching = rows.filter((row) => matches(row, filters));
    page = 0;
    show();
  };
  const turn = (by) => {
    page += by;
    show();
  };
  $("filters").addEventListener("input", apply);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  apply();
})();
