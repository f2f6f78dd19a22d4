"use strict";
// Without this script the page is the same, with every row and nothing to press.
const table = document.querySelector("#verdicts");
const rows = [...table.tBodies[0].rows];
const tools = document.querySelector(".tools");
const [text, verdict, family] = ["text", "verdict", "family"].map((name) => tools.elements[name]);

function filter() {
  const words = text.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const held = row.textContent.toLowerCase();
    row.hidden = !(
      words.every((word) => held.includes(word)) &&
      (!verdict.value || row.dataset.verdict === verdict.value) &&
      (!family.value || row.dataset.family === family.value)
    );
  }
  const shown = rows.filter((row) => !row.hidden).length;
  tools.querySelector("output").textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
}

function sort(head, column) {
  const down = head.ariaSort === "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.ariaSort = down ? "descending" : "ascending";
  const key = (row) => row.cells[column].dataset.key;
  const numbers = head.classList.contains("number");
  const order = (a, b) => (numbers ? key(a) - key(b) : key(a).localeCompare(key(b)));
  rows.sort((a, b) => (down ? order(b, a) : order(a, b)));
  table.tBodies[0].append(...rows);
}

[...table.tHead.rows[0].cells].forEach((head, column) => {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(head, column));
  head.append(button);
});
tools.hidden = false;
tools.addEventListener("input", filter);
tools.addEventListener("submit", (event) => event.preventDefault());

function open() {
  const block = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (block && block.tagName === "DETAILS") block.open = true;
}
addEventListener("hashchange", open);
open();

async function copy(button) {
  const from = button.parentNode.querySelector("code");
  getSelection().selectAllChildren(from); // where there is no clipboard, as on a plain http page, it is marked
  try {
    await navigator.clipboard.writeText(from.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = document.execCommand("copy") ? "Copied" : "Marked";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const block of closed) block.open = true;
});
addEventListener("afterprint", () => closed.forEach((block) => { block.open = false; }));
