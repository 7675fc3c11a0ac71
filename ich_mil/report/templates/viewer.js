"use strict";
// The viewer of a study page: one slice in one window, with or without a heatmap. All texts were made in
// Python and are set as text; this script only chooses which are shown.
const byId = (id) => document.getElementById(id);
const scan = JSON.parse(byId("scan").textContent);
const windows = Object.keys(scan.pictures);
const overlays = ["", ...Object.keys(scan.overlays)];
const last = scan.slices.length - 1;
const shown = { slice: Number(byId("slider").value) - 1, window: windows[0], overlay: "" };

function show() {
  const { slice, window: name, overlay } = shown;
  const about = scan.slices[slice];
  const text = `Slice ${slice + 1} of ${last + 1}`;
  byId("picture").src = scan.pictures[name][slice];
  byId("picture").alt = `${text}, ${name} window, probability ${about.probability}`;
  for (const mark of document.querySelectorAll("#viewer .edge"))
    mark.textContent = scan.edges[slice]?.[mark.dataset.edge] ?? "";
  byId("slider").value = slice + 1;
  byId("slider").setAttribute("aria-valuetext", `${text}, ${about.probability}`);
  byId("now").textContent = text;
  for (const key of ["probability", "interval", "without", "place", "label", "corrections"]) {
    const cell = byId(`slice-${key}`);
    if (cell) cell.textContent = about[key] || "–";
  }
  const hit = document.querySelector(`.hit[data-slice="${slice}"]`);
  byId("cursor").setAttribute("x", hit.getAttribute("x"));
  keepInSight(hit);
  for (const button of document.querySelectorAll("[data-window]"))
    button.setAttribute("aria-pressed", button.dataset.window === name);
  for (const button of document.querySelectorAll("[data-overlay]"))
    button.setAttribute("aria-pressed", button.dataset.overlay === overlay);
  if (overlays.length > 1) showMap(slice, overlay);
}

// Where the strip is wider than the page: to the slice that is shown.
function keepInSight(hit) {
  const along = hit.closest(".along");
  const [all, one] = [along, hit].map((part) => part.getBoundingClientRect());
  if (one.left < all.left || one.right > all.right)
    along.scrollLeft += (one.left + one.right - all.left - all.right) / 2;
}

function showMap(slice, overlay) {
  const map = overlay && scan.overlays[overlay][slice];
  const over = byId("over");
  over.hidden = !map;
  if (map) {
    over.src = map;
    over.alt = `Heatmap of the ${overlay}`;
  } else over.removeAttribute("src");
  over.style.opacity = byId("opacity").value / 100;
  byId("percent").textContent = `${byId("opacity").value} %`;
  byId("about-map").textContent = overlay && !map ? "This slice has no heatmap." : "";
}

function go(slice) {
  shown.slice = Math.min(last, Math.max(0, slice));
  show();
}

function step(name, values) {
  shown[name] = values[(values.indexOf(shown[name]) + 1) % values.length];
  show();
}

// The middle of the next run above (way 1) or below (way -1); without one the slice stays.
function toRun(way) {
  const middles = scan.runs.map(([first, end]) => Math.round((first + end) / 2));
  const beyond = middles.filter((middle) => way * (middle - shown.slice) > 0);
  if (beyond.length) go(way > 0 ? Math.min(...beyond) : Math.max(...beyond));
}

const keys = {
  ArrowRight: () => go(shown.slice + 1),
  ArrowUp: () => go(shown.slice + 1),
  ArrowLeft: () => go(shown.slice - 1),
  ArrowDown: () => go(shown.slice - 1),
  PageUp: () => toRun(1),
  PageDown: () => toRun(-1),
  w: () => step("window", windows),
  o: () => step("overlay", overlays),
};

document.addEventListener("keydown", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const own = event.target.id === "opacity" && key.length > 1; // its arrows are its own
  if (!(key in keys) || own || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  keys[key]();
});
byId("slider").addEventListener("input", () => go(byId("slider").value - 1));
byId("opacity")?.addEventListener("input", show);
for (const button of document.querySelectorAll("[data-window]"))
  button.addEventListener("click", () => { shown.window = button.dataset.window; show(); });
for (const button of document.querySelectorAll("[data-overlay]"))
  button.addEventListener("click", () => { shown.overlay = button.dataset.overlay; show(); });
for (const hit of document.querySelectorAll(".hit"))
  hit.addEventListener("click", () => go(Number(hit.dataset.slice)));

document.documentElement.classList.add("scripted");
byId("viewer").hidden = false;
show();
