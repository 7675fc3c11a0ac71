"use strict";
// The filter of the rows, and corrections.csv: earlier corrections and every label that was changed here.
const rows = [...document.querySelectorAll("#rows tr")];
const buttons = [...document.querySelectorAll("button[data-outcome]")];
const search = document.getElementById("search");
const corrections = new Map(Object.entries(JSON.parse(document.getElementById("kept").textContent)));
let outcome = "";

function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const matches = words.every((word) => text.includes(word));
    row.hidden = !matches || (outcome !== "" && row.dataset.outcome !== outcome);
  }
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.outcome === outcome);
  document.getElementById("shown").textContent = rows.filter((row) => !row.hidden).length;
}

function quoted(text) {
  return `"${text.replaceAll('"', '""')}"`;
}

function download() {
  const lines = [...corrections].map(([scan, label]) => `${quoted(scan)},${label}\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["scan,label\n", ...lines], { type: "text/csv" }));
  link.download = "corrections.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

for (const select of document.querySelectorAll("select[data-scan]"))
  select.addEventListener("change", () => {
    if (select.value) corrections.set(select.dataset.scan, select.value);
    else corrections.delete(select.dataset.scan);
    document.getElementById("changed").textContent = corrections.size;
  });
search.addEventListener("input", filter);
for (const button of buttons)
  button.addEventListener("click", () => { outcome = button.dataset.outcome; filter(); });
document.getElementById("download").addEventListener("click", download);
document.getElementById("filter").hidden = false;
filter();
