"use strict";
// Maps: a point tells of itself under the pointer and under the keyboard. Without script the drawing stays.

const POINTS = JSON.parse(document.getElementById("points").textContent);
const SHOWN = 72; // pixels of a thumbnail's side, as page.css has it
const REACH = 18; // pixels from the pointer to a point

for (const figure of document.querySelectorAll("[data-map]")) mapped(figure, POINTS.maps[figure.dataset.map]);

function mapped(figure, told) {
  const drawing = figure.querySelector(".map");
  const points = [...drawing.querySelectorAll("use")];
  const places = points.map((point) => [Number(point.getAttribute("x")), Number(point.getAttribute("y"))]);
  const ring = drawing.querySelector(".ring");
  const tip = figure.querySelector(".tip");
  let current = 0;

  points.forEach((point, number) => {
    point.setAttribute("role", "img");
    point.setAttribute("tabindex", number ? "-1" : "0");
    point.setAttribute("aria-label", [told.texts[number], told.ids[number]].filter(Boolean).join(", "));
    point.addEventListener("focus", () => (take(number), show(number)));
    point.addEventListener("blur", hide);
  });

  function show(number) {
    const [x, y] = places[number];
    const box = drawing.getBoundingClientRect();
    const scale = box.width / drawing.viewBox.baseVal.width;
    ring.setAttribute("cx", x);
    ring.setAttribute("cy", y);
    tip.querySelector("b").textContent = told.texts[number] || told.ids[number];
    tip.querySelector("small").textContent = told.texts[number] ? told.ids[number] : "";
    thumbnail(tip.querySelector(".thumb"), told, number);
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

  // Only one of the points is reached with Tab; arrows go on from it.
  function take(number) {
    points[current].setAttribute("tabindex", "-1");
    current = number;
    points[current].setAttribute("tabindex", "0");
  }

  function visible(number) {
    return !points[number].parentNode.classList.contains("off");
  }

  function best(cost) {
    let found = -1;
    let least = Infinity;
    for (let number = 0; number < points.length; number++) {
      const now = visible(number) ? cost(...places[number], number) : Infinity;
      if (now < least) [found, least] = [number, now];
    }
    return found;
  }

  drawing.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") hide();
    if (!way) return;
    event.preventDefault();
    const [x, y] = places[current];
    // The nearest that lies more this way than aside.
    const next = best((a, b, number) => {
      const ahead = (a - x) * way[0] + (b - y) * way[1];
      const aside = Math.abs((a - x) * way[1]) + Math.abs((b - y) * way[0]);
      return number !== current && ahead > 0 && aside <= ahead ? ahead + 2 * aside : Infinity;
    });
    if (next >= 0) points[next].focus({ preventScroll: true });
  });

  function under(event) {
    const box = drawing.getBoundingClientRect();
    const scale = box.width / drawing.viewBox.baseVal.width;
    const [x, y] = [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
    const near = best((a, b) => Math.hypot(a - x, b - y) * scale);
    if (near >= 0 && Math.hypot(places[near][0] - x, places[near][1] - y) * scale <= REACH) show(near);
    else hide();
  }
  drawing.addEventListener("pointermove", under);
  drawing.addEventListener("pointerdown", under);
  drawing.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());

  const layers = [...drawing.querySelectorAll("g")];
  const buttons = [...figure.querySelectorAll(".groups button")];
  buttons.forEach((button, number) => {
    button.addEventListener("click", () => {
      const alone = button.getAttribute("aria-pressed") !== "true";
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(alone && other === button)));
      layers.forEach((layer, place) => layer.classList.toggle("off", alone && place !== number));
      if (!visible(current)) take(points.findIndex((_, place) => visible(place)));
    });
  });
}

function thumbnail(into, told, number) {
  const sheet = POINTS.sheets[told.sheet];
  into.hidden = !sheet;
  if (!sheet) return;
  const cell = told.cells[number];
  into.style.backgroundImage = `url("${sheet.uri}")`;
  into.style.backgroundSize = `${sheet.columns * SHOWN}px ${sheet.rows * SHOWN}px`;
  into.style.backgroundPosition =
    `${-(cell % sheet.columns) * SHOWN}px ${-Math.floor(cell / sheet.columns) * SHOWN}px`;
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

// On paper all is open.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
