// The list of samples: filters, pages, keyboard.
const PAGE = 50; // samples listed at a time
let matching = [];

const fill = (id, values, text = String, parent = $(id)) => {
  for (const value of values) {
    const option = element("option", "", text(value));
    option.value = value;
    parent.append(option);
  }
};
const fillGrouped = (id, groups) => {
  for (const [label, values, text] of groups) {
    if (!values.length) continue;
    const node = element("optgroup");
    node.label = label;
    fill(id, values, text, node);
    $(id).append(node);
  }
};
const distinct = (values) => [...new Set(values)];
const afterColon = (value) => value.slice(value.indexOf(":") + 1);

const pages = () => Math.max(1, Math.ceil(matching.length / PAGE));
const show = () => {
  state.page = Math.min(Math.max(1, state.page), pages());
  const from = (state.page - 1) * PAGE;
  $("head").replaceChildren(listHead());
  $("list").replaceChildren(...matching.slice(from, from + PAGE).map(item));
  const n = (number) => number.toLocaleString("en");
  $("status").textContent = `${n(matching.length)} of ${n(rows.length)} samples, page ${state.page} of ${pages()}`;
  $("status-below").textContent = `page ${state.page} of ${pages()}`;
  for (const button of document.querySelectorAll("button[data-turn]")) {
    const to = state.page + Number(button.dataset.turn);
    button.disabled = to < 1 || to > pages();
  }
  for (const input of document.querySelectorAll("input.page")) [input.value, input.max] = [state.page, pages()];
};
const filter = () => {
  matching = rows.filter(matches);
};
const controls = NAMES.filter((name) => $(`f-${name}`));
const toControls = () => {
  for (const name of controls) {
    const control = $(`f-${name}`);
    if (control.type === "checkbox") control.checked = Boolean(state[name]);
    else control.value = state[name];
  }
};
const fromControls = () => {
  for (const name of controls) {
    const control = $(`f-${name}`);
    state[name] = control.type === "checkbox" ? (control.checked ? "1" : "") : control.value;
  }
  if (!state.against) state.change = $("f-change").value = "";
  [state.page, state.open, state.depth] = [1, "", ""];
};
const openKey = (key) => {
  const row = key && rowOf(key);
  const at = row ? matching.indexOf(row) : -1;
  if (at < 0) return false;
  state.page = Math.floor(at / PAGE) + 1;
  show();
  const node = $("list").children[at % PAGE];
  node.open = true;
  node.querySelector("summary").focus({ preventScroll: true });
  node.scrollIntoView({ block: "start" });
  return true;
};
const turn = (to) => {
  state.page = to;
  state.open = "";
  show();
  remember("samples");
};

const move = (by) => {
  const items = [...$("list").children];
  const now = items.indexOf(document.activeElement?.closest?.(".item"));
  let next = now < 0 ? 0 : now + by;
  if (next >= items.length && state.page < pages()) [next] = [0, turn(state.page + 1)];
  else if (next < 0 && state.page > 1) [next] = [PAGE - 1, turn(state.page - 1)];
  const node = $("list").children[Math.min(Math.max(0, next), $("list").children.length - 1)];
  node?.querySelector("summary").focus();
  node?.scrollIntoView({ block: "nearest" });
};
const close = () => {
  const node = document.activeElement?.closest?.(".item") ?? $("list").querySelector(".item[open]");
  if (!node) return;
  node.open = false;
  node.querySelector("summary").focus();
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const listed = Boolean(event.target.closest(".item"));
  if (event.key === "j" || (listed && event.key === "ArrowDown")) move(1);
  else if (event.key === "k" || (listed && event.key === "ArrowUp")) move(-1);
  else if (listed && event.key === "ArrowRight") event.target.closest(".item").open = true;
  else if (event.key === "Escape" || (listed && event.key === "ArrowLeft")) close();
  else return;
  event.preventDefault();
});
