// Fill the controls, then show what the address says.
fill("f-model", distinct(data.cells.map((cell) => cell.model)));
fill("f-context", distinct(data.cells.map((cell) => cell.context)));
for (const benchmark of distinct(data.cells.map((cell) => cell.benchmark))) {
  const tasks = distinct(data.cells.filter((cell) => cell.benchmark === benchmark).map(taskOf));
  const every = tasks.length > 1 ? [`${benchmark}/`] : [];
  fill("f-task", [...every, ...tasks], (task) => (task.endsWith("/") ? `${benchmark}: all tasks` : task.slice(benchmark.length + 1)));
}
fill("f-length", distinct(data.cells.map((cell) => cell.length)).filter((n) => n > 0).sort((a, b) => a - b), title);
const metrics = distinct(data.cells.filter((cell) => cell.metrics.length > 1).flatMap((cell) => cell.metrics));
fill("f-metric", metrics);
$("metric-label").hidden = !metrics.length;
fillGrouped("f-against", [
  ["another model", arms.filter((arm) => arm.startsWith("model:")), afterColon],
  ["another context setting", arms.filter((arm) => arm.startsWith("context:")), afterColon],
]);

const pairs = $("pair") && data.pairs.length;
if (pairs) {
  const first = arms.filter((arm) => arms.some((other) => comparable(arm, other)));
  fillGrouped("p-a", [
    ["models", first.filter((arm) => arm.startsWith("model:")), afterColon],
    ["context settings", first.filter((arm) => arm.startsWith("context:")), afterColon],
  ]);
  // The pair with most cells in common: the long models rather than those with a single length.
  const shared = (arm) => data.pairs.filter(([i]) => `model:${data.cells[i].model}` === arm && data.cells[i].length > 0).length;
  state.first = first.reduce((best, arm) => (shared(arm) > shared(best) ? arm : best), first[0]);
}

const follow = (scroll) => {
  const place = readAddress();
  toControls();
  filter();
  show();
  if (pairs) showPair();
  if (!openKey(state.open) && place && scroll) $(place)?.scrollIntoView();
};
window.addEventListener("hashchange", () => location.hash.includes("?") && follow(true));
$("filters").addEventListener("input", () => {
  fromControls();
  filter();
  show();
  remember("samples");
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("clear").addEventListener("click", () => {
  $("filters").reset();
  $("filters").dispatchEvent(new Event("input"));
});
for (const button of document.querySelectorAll("button[data-turn]"))
  button.addEventListener("click", () => turn(state.page + Number(button.dataset.turn)));
for (const input of document.querySelectorAll("input.page")) input.addEventListener("change", () => turn(Number(input.value) || 1));
if (pairs) {
  $("pair").addEventListener("input", () => {
    [state.first, state.second] = [$("p-a").value, $("p-b").value];
    showPair();
    remember("pairs");
  });
  $("pair").addEventListener("submit", (event) => event.preventDefault());
}
window.addEventListener("beforeprint", () => document.querySelectorAll("main details:not(.item)").forEach((node) => (node.open = true)));
follow(true);
document.documentElement.dataset.ready = "1";
performance.mark("ready");
