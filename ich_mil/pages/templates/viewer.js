"use strict";
// Viewer of a study page: one slice with level and width, zoom, and one or two heatmaps. All texts come from
// Python and are set as text; this script chooses which of them to show.
const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const scan = JSON.parse(byId("scan").textContent);
const windows = Object.keys(scan.windows);
const byWidth = [...windows].sort((a, b) => scan.windows[a][1] - scan.windows[b][1]);
const ends = (name) => [scan.windows[name][0] - scan.windows[name][1] / 2, scan.windows[name][0] + scan.windows[name][1] / 2];
const [lowest, highest] = ends(byWidth.at(-1)); // HU of the pictures: level and width stay within
const maps = Object.keys(scan.overlays);
const overlays = maps.length ? ["", ...maps, "both"] : [""];
const last = scan.slices.length - 1;
const within = (value, low, high) => Math.min(high, Math.max(low, value));
const [level, width] = scan.windows[windows[0]];
const shown = { slice: Number(byId("slider").value) - 1, level, width, overlay: "" };
const SWIPE = 16; // pixels of a finger for one slice
const view = { zoom: 1, x: 0.5, y: 0.5 }; // centre of the view as a fraction of the picture

function show() {
  const values = scan.slices[shown.slice];
  const text = `Slice ${shown.slice + 1} of ${last + 1}`;
  byId("slider").value = shown.slice + 1;
  byId("slider").setAttribute("aria-valuetext", `${text}, ${values.probability}`);
  byId("now").textContent = text;
  for (const key of ["probability", "interval", "without", "place", "label", "corrections"]) {
    const cell = byId(`slice-${key}`);
    if (cell) cell.textContent = values[key] || "–";
  }
  const hit = document.querySelector(`.hit[data-slice="${shown.slice}"]`);
  byId("cursor").setAttribute("x", hit.getAttribute("x"));
  keepInSight(hit);
  showPanes(text, values);
  for (const line of all(".plane .here")) line.style.top = `${(100 * (last - shown.slice + 0.5)) / (last + 1)}%`;
}

// Scroll a strip that is wider than the page to the slice shown.
function keepInSight(hit) {
  const along = hit.closest(".along");
  const [strip, bar] = [along, hit].map((part) => part.getBoundingClientRect());
  if (bar.left < strip.left || bar.right > strip.right)
    along.scrollLeft += (bar.left + bar.right - strip.left - strip.right) / 2;
}

function showPanes(text, values) {
  const stored = storedWindow();
  const names = shown.overlay === "both" ? maps : [shown.overlay];
  const chosen = windows.find((name) => scan.windows[name][0] === shown.level && scan.windows[name][1] === shown.width);
  const title = `${shown.level} / ${shown.width}`;
  byId("level-width").textContent = title;
  all(".view").forEach((pane, index) => {
    pane.hidden = index >= names.length;
    if (pane.hidden) return;
    const slice = pane.querySelector(".slice");
    slice.src = scan.pictures[stored][shown.slice];
    slice.alt = `${text}, ${chosen ?? title} window, probability ${values.probability}`;
    slice.style.filter = stored === chosen ? "" : "url(#level)";
    for (const mark of pane.querySelectorAll(".edge")) mark.textContent = scan.edges[shown.slice]?.[mark.dataset.edge] ?? "";
    showMap(pane, names[index]);
  });
  for (const button of all("[data-window]")) button.setAttribute("aria-pressed", button.dataset.window === chosen);
  for (const button of all("[data-overlay]")) button.setAttribute("aria-pressed", button.dataset.overlay === shown.overlay);
  place();
}

function showMap(pane, name) {
  const map = name && scan.overlays[name][shown.slice];
  const over = pane.querySelector(".over");
  over.hidden = !map;
  const clear = map && scan.clear[name].includes(shown.slice) ? scan.faint : "";
  pane.querySelector(".about").textContent = shown.overlay === "both" || clear ? `${name}${clear}` : "";
  if (map) {
    over.src = map;
    over.alt = `Heatmap of the ${name}${clear}`;
  } else over.removeAttribute("src");
  if (!maps.length) return;
  over.style.opacity = byId("opacity").value / 100;
  byId("percent").textContent = `${byId("opacity").value} %`;
  byId("about-map").textContent = name && !map ? "This slice has no heatmap." : "";
}

// The narrowest stored window that holds the grey levels asked for, and the line from it to them.
function storedWindow() {
  const [low, high] = [shown.level - shown.width / 2, shown.level + shown.width / 2];
  const stored = byWidth.find((name) => ends(name)[0] <= low && ends(name)[1] >= high);
  const slope = scan.windows[stored][1] / shown.width;
  const intercept = (ends(stored)[0] - low) / shown.width;
  for (const part of all("#level feComponentTransfer > *")) {
    part.setAttribute("slope", slope);
    part.setAttribute("intercept", intercept);
  }
  return stored;
}

function place() {
  const half = 0.5 / view.zoom;
  view.x = within(view.x, half, 1 - half);
  view.y = within(view.y, half, 1 - half);
  for (const sheet of all(".sheet"))
    sheet.style.transform = `scale(${view.zoom}) translate(${100 * (0.5 - view.x)}%, ${100 * (0.5 - view.y)}%)`;
}

function zoom(factor) {
  view.zoom = within(view.zoom * factor, 1, 8);
  place();
}

function fit(what) {
  const [left, top, right, bottom] = what === "head" ? scan.box : [0, 0, 1, 1];
  view.zoom = within(1 / Math.max(right - left, bottom - top), 1, 8);
  view.x = (left + right) / 2;
  view.y = (top + bottom) / 2;
  place();
}

function go(slice) {
  shown.slice = within(slice, 0, last);
  show();
}

function setWindow(name) {
  [shown.level, shown.width] = scan.windows[name];
  show();
}

function nextWindow() {
  const now = windows.findIndex((name) => scan.windows[name][0] === shown.level && scan.windows[name][1] === shown.width);
  setWindow(windows[(now + 1) % windows.length]);
}

function setOverlay(name) {
  shown.overlay = name;
  show();
}

// The next slice with a heatmap above (way 1) or below (way -1), without heatmaps the middle of the next run.
function jump(way) {
  const stops = maps.length
    ? Object.keys(scan.overlays[maps[0]]).map(Number)
    : scan.runs.map(([first, end]) => Math.round((first + end) / 2));
  const beyond = stops.filter((stop) => way * (stop - shown.slice) > 0);
  if (beyond.length) go(way > 0 ? Math.min(...beyond) : Math.max(...beyond));
}

const keys = {
  ArrowRight: () => go(shown.slice + 1),
  ArrowUp: () => go(shown.slice + 1),
  ArrowLeft: () => go(shown.slice - 1),
  ArrowDown: () => go(shown.slice - 1),
  Home: () => go(0),
  End: () => go(last),
  PageUp: () => jump(1),
  PageDown: () => jump(-1),
  "+": () => zoom(1.25),
  "-": () => zoom(0.8),
  w: nextWindow,
  o: () => setOverlay(overlays[(overlays.indexOf(shown.overlay) + 1) % overlays.length]),
  l: () => byId("to-worklist")?.click(),
  n: () => byId("to-next")?.click(),
  p: () => byId("to-previous")?.click(),
};

const pageKeys = ["Home", "End", "PageUp", "PageDown"]; // scroll the page unless the viewer is under the pointer or in use

document.addEventListener("keydown", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const forPage = pageKeys.includes(key) && !byId("viewer").matches(":hover, :focus-within");
  const forSlider = event.target.id === "opacity" && key.length > 1; // the slider of the opacity keeps its arrows
  if (!(key in keys) || forPage || forSlider || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  keys[key]();
});

// One finger across moves through the slices, two zoom and move; up and down scrolls the page.
function touch(pane) {
  const fingers = new Map();
  let from = null;
  const anchor = () => { from = { ...shown, ...pinch(), centre: { ...view } }; };
  const pinch = () => {
    const [first, second = first] = [...fingers.values()];
    return { x: (first.x + second.x) / 2, y: (first.y + second.y) / 2, apart: Math.hypot(first.x - second.x, first.y - second.y) };
  };
  pane.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    anchor();
  });
  pane.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const [at, size] = [pinch(), pane.getBoundingClientRect()];
    if (fingers.size < 2) return go(from.slice + Math.round((at.x - from.x) / SWIPE));
    view.zoom = within((from.centre.zoom * at.apart) / Math.max(from.apart, 1), 1, 8);
    view.x = from.centre.x - (at.x - from.x) / size.width / view.zoom;
    view.y = from.centre.y - (at.y - from.y) / size.height / view.zoom;
    place();
  });
  for (const end of ["pointerup", "pointercancel"])
    pane.addEventListener(end, (event) => {
      fingers.delete(event.pointerId);
      if (fingers.size) anchor();
    });
  // two fingers never scroll the page
  for (const start of ["touchstart", "touchmove"])
    pane.addEventListener(start, (event) => { if (event.touches.length > 1) event.preventDefault(); }, { passive: false });
}

for (const pane of all(".view")) {
  touch(pane);
  let from = null;
  let rolled = 0;
  pane.addEventListener("wheel", (event) => {
    event.preventDefault();
    // one step for a notch of a wheel, and for 40 pixels of a touchpad
    const roll = event.deltaMode ? Math.sign(event.deltaY) : within(event.deltaY / 40, -1, 1);
    if (event.ctrlKey) return zoom(1.1 ** -roll);
    rolled = rolled * roll < 0 ? roll : rolled + roll;
    if (Math.abs(rolled) < 1) return;
    go(shown.slice - Math.sign(rolled));
    rolled = 0;
  }, { passive: false });
  pane.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    from = { x: event.clientX, y: event.clientY, ...shown, centre: { ...view }, moves: event.shiftKey };
    pane.setPointerCapture(event.pointerId);
  });
  pane.addEventListener("pointermove", (event) => {
    if (!from) return;
    const size = pane.getBoundingClientRect();
    const [x, y] = [(event.clientX - from.x) / size.width, (event.clientY - from.y) / size.height];
    if (from.moves) {
      view.x = from.centre.x - x / view.zoom;
      view.y = from.centre.y - y / view.zoom;
      place();
    } else {
      const half = Math.round(within(from.width * 4 ** x, 2, highest - lowest) / 2);
      const level = Math.round(from.level - y * Math.max(from.width, 40));
      shown.width = 2 * half;
      shown.level = within(level, lowest + half, highest - half);
      show();
    }
  });
  for (const end of ["pointerup", "pointercancel"]) pane.addEventListener(end, () => { from = null; });
  pane.addEventListener("dblclick", () => fit("head"));
}

byId("slider").addEventListener("input", () => go(byId("slider").value - 1));
byId("opacity")?.addEventListener("input", show);
for (const button of all("[data-window]")) button.addEventListener("click", () => setWindow(button.dataset.window));
for (const button of all("[data-overlay]")) button.addEventListener("click", () => setOverlay(button.dataset.overlay));
for (const button of all("[data-zoom]")) button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
for (const button of all("[data-fit]")) button.addEventListener("click", () => fit(button.dataset.fit));
for (const hit of all(".hit")) hit.addEventListener("click", () => go(Number(hit.dataset.slice)));

document.documentElement.classList.add("scripted");
byId("viewer").hidden = false;
fit("head");
show();
