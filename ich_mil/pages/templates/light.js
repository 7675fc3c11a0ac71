"use strict";
// The choice of a light page is kept for the other pages, where the browser stores anything for files.
{
  const box = document.getElementById("light");
  try {
    box.checked = localStorage.getItem("ich_mil.light") === "1";
    box.addEventListener("change", () => localStorage.setItem("ich_mil.light", box.checked ? "1" : "0"));
  } catch {
    // storage is switched off: the choice holds for this page
  }
}
