"use strict";
// Tooltips and keyboard navigation of the maps. Without JavaScript the maps are still visible.

const POINTS = JSON.parse(document.getElementById("points").textContent);
const THUMB_PX = 72; // as in page.css
const MAX_DISTANCE_PX = 18; // from the pointer to a point

for (const figure of document.querySelectorAll("[data-map]")) initMap(figure, POINTS.maps[figure.dataset.map]);

function initMap(figure, data) {
  const svg = figure.querySelector(".map");
  const points = [...svg.querySelectorAll("use")];
  const coords = points.map((point) => [Number(point.getAttribute("x")), Number(point.getAttribute("y"))]);
  const ring = svg.querySelector(".ring");
  const tip = figure.querySelector(".tip");
  let current = 0;

  points.forEach((point, i) => {
    point.setAttribute("role", "img");
    point.setAttribute("tabindex", i ? "-1" : "0");
    point.setAttribute("aria-label", [data.texts[i], data.ids[i]].filter(Boolean).join(", "));
    point.addEventListener("focus", () => (setCurrent(i), show(i)));
    point.addEventListener("blur", hide);
  });

  function show(i) {
    const [x, y] = coords[i];
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    ring.setAttribute("cx", x);
    ring.setAttribute("cy", y);
    tip.querySelector("b").textContent = data.texts[i] || data.ids[i];
    tip.querySelector("small").textContent = data.texts[i] ? data.ids[i] : "";
    showThumbnail(tip.querySelector(".thumb"), data, i);
    tip.hidden = false;
    const left = Math.min(x * scale + 14, box.width - tip.offsetWidth);
    const above = y * scale - tip.offsetHeight - 12;
    tip.style.left = Math.max(0, left) + "px";
    tip.style.top = (above < 0 ? y * scale + 16 : above) + "px";
  }

  function hide() {
    tip.hidden = true;
    ring.setAttribute("cx", -20);
  }

  // Tab reaches only one point; arrow keys move from it.
  function setCurrent(i) {
    points[current].setAttribute("tabindex", "-1");
    current = i;
    points[current].setAttribute("tabindex", "0");
  }

  function isVisible(i) {
    return !points[i].parentNode.classList.contains("off");
  }

  function findMin(cost) {
    let best = -1;
    let min = Infinity;
    for (let i = 0; i < points.length; i++) {
      const value = isVisible(i) ? cost(...coords[i], i) : Infinity;
      if (value < min) [best, min] = [i, value];
    }
    return best;
  }

  svg.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") hide();
    if (!direction) return;
    event.preventDefault();
    const [x, y] = coords[current];
    // The nearest point within 45 degrees of the direction.
    const next = findMin((a, b, i) => {
      const ahead = (a - x) * direction[0] + (b - y) * direction[1];
      const aside = Math.abs((a - x) * direction[1]) + Math.abs((b - y) * direction[0]);
      return i !== current && ahead > 0 && aside <= ahead ? ahead + 2 * aside : Infinity;
    });
    if (next >= 0) points[next].focus({ preventScroll: true });
  });

  function onPointer(event) {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const [x, y] = [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
    const near = findMin((a, b) => Math.hypot(a - x, b - y) * scale);
    if (near >= 0 && Math.hypot(coords[near][0] - x, coords[near][1] - y) * scale <= MAX_DISTANCE_PX) show(near);
    else hide();
  }
  svg.addEventListener("pointermove", onPointer);
  svg.addEventListener("pointerdown", onPointer);
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());

  const layers = [...svg.querySelectorAll("g")];
  const buttons = [...figure.querySelectorAll(".groups button")];
  buttons.forEach((button, i) => {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(pressed && other === button)));
      layers.forEach((layer, j) => layer.classList.toggle("off", pressed && j !== i));
      if (!isVisible(current)) setCurrent(points.findIndex((_, j) => isVisible(j)));
    });
  });
}

function showThumbnail(element, data, i) {
  const sheet = POINTS.sheets[data.sheet];
  element.hidden = !sheet;
  if (!sheet) return;
  const cell = data.cells[i];
  element.style.backgroundImage = `url("${sheet.uri}")`;
  element.style.backgroundSize = `${sheet.columns * THUMB_PX}px ${sheet.rows * THUMB_PX}px`;
  element.style.backgroundPosition =
    `${-(cell % sheet.columns) * THUMB_PX}px ${-Math.floor(cell / sheet.columns) * THUMB_PX}px`;
}

if (navigator.clipboard) {
  for (const command of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.querySelector("code").textContent);
      button.textContent = "copied";
    });
    command.append(button);
  }
}

// Expand all details in print.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
