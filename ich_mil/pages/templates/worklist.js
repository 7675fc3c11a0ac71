"use strict";
// The filter of a worklist: rows of one result, or of all, that hold every word typed; a short number matches whole numbers.
const rows = [...document.querySelectorAll("#rows tr")];
const buttons = [...document.querySelectorAll("button[data-decision]")];
const search = document.getElementById("search");
let decision = "";

function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  const found = (text, word) => (/^\d{1,3}$/.test(word) ? text.split(/\D+/).includes(word) : text.includes(word));
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const matches = words.every((word) => found(text, word));
    row.hidden = !matches || (decision !== "" && row.dataset.decision !== decision);
  }
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.decision === decision);
  document.getElementById("shown").textContent = rows.filter((row) => !row.hidden).length;
}

search.addEventListener("input", filter);
for (const button of buttons)
  button.addEventListener("click", () => { decision = button.dataset.decision; filter(); });
document.getElementById("filter").hidden = false;
filter();
