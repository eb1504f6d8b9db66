"use strict";
// Sorting and filtering. Without script the page shows everything in the campaign's order.

function sortKey(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(text);
  return text === "" ? null : Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(table, header, column) {
  const descending = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [sortKey(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? compare(b, a) : compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headers = table.tHead.rows[table.tHead.rows.length - 1].cells;
  Array.from(headers).forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(table, header, column));
  });
}

const table = document.getElementById("matrix-table");
const filters = document.querySelector(".filters");
const words = document.getElementById("filter");
const selects = Array.from(filters.querySelectorAll("select"));
const rows = Array.from(table.tBodies[0].rows);

function applyFilters() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const levels = selects.every((one) => !one.value || row.cells[one.dataset.column].textContent === one.value);
    row.hidden = !(levels && wanted.every((word) => text.includes(word)));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = shown + " of " + rows.length + " cells";
}

for (const select of selects) {
  const levels = new Set(rows.map((row) => row.cells[select.dataset.column].textContent).filter(Boolean));
  for (const level of levels) select.add(new Option(level, level));
  select.parentElement.hidden = levels.size < 2;
  select.addEventListener("change", applyFilters);
}
words.addEventListener("input", applyFilters);
filters.hidden = false;
applyFilters();

// Paper can't be unfolded: what is folded away of the facts is unfolded for printing.
const folded = Array.from(document.querySelectorAll("#facts details:not([open])"));
window.addEventListener("beforeprint", () => folded.forEach((one) => { one.dataset.open = one.open; one.open = true; }));
window.addEventListener("afterprint", () => folded.forEach((one) => { one.open = one.dataset.open === "true"; }));
