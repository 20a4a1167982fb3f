/* The playground in small, for the home page: five scores to drag, SoftSort by operators.js, its matrix and its sorted values. */
(function () {
  "use strict";
  const soft = window.softOperators, root = document.getElementById("miniature");
  if (!soft || !root) return;
  const $ = name => root.querySelector(name), SVG = "http://www.w3.org/2000/svg", END = 2.5, EDGE = 22, UPPER = 44, LOWER = 150;
  const s = [1.2, -0.4, 2.1, 0.5, -1.7], n = s.length, hue = j => 25 + (j * 137.5) % 360;
  let width = 400, held = -1;

  function make(name, attributes = {}, ...children) {
    const e = document.createElementNS(SVG, name);
    put(e, attributes);
    e.append(...children);
    return e;
  }
  function put(e, attributes) { for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); }
  const each = f => Array.from({length: n}, (_, j) => f(j));
  const grid = f => Array.from({length: n * n}, (_, c) => f(Math.floor(c / n), c % n));

  const line = make("svg", {role: "group", "aria-label": "five scores above, their sorted values below"});
  const rules = [UPPER, LOWER].map(y => line.appendChild(make("line", {class: "mini-rule", y1: y, y2: y, x1: 6})));
  const threads = grid((i, j) => line.appendChild(make("path", {class: "mini-thread", style: `--hue:${hue(j)}`})));
  const squares = each(i => line.appendChild(make("g", {class: "mini-value", "aria-hidden": true}, make("rect", {x: -9, y: -9, width: 18, height: 18, rx: 3}), make("text", {y: 4.5}))));
  const dots = each(dot);
  line.append(...dots);
  $(".mini-line").append(line);
  const cells = grid((i, j) => make("rect", {x: 30 * j + 1, y: 30 * i + 1, width: 28, height: 28, rx: 3}));
  const names = each(j => make("text", {class: "mini-name", x: 30 * j + 15, y: -7, style: `--hue:${hue(j)}`}, "abcde"[j])), places = each(i => make("text", {class: "mini-name", x: -10, y: 30 * i + 20}, i + 1));
  const picture = make("svg", {viewBox: "-20 -20 170 170", role: "img"}, ...cells, ...names, ...places);
  $(".mini-matrix").append(picture);
  squares.forEach((g, i) => { g.lastChild.textContent = i + 1; });

  const place = v => EDGE + (v + END) / (2 * END) * (width - 2 * EDGE);
  function move(j, v) { s[j] = Math.round(100 * Math.min(Math.max(v, -END), END)) / 100; draw(); }

  function dot(j) {
    const g = make("g", {role: "slider", tabindex: 0, class: "mini-dot", "aria-label": `score ${"abcde"[j]}`, "aria-valuemin": -END, "aria-valuemax": END, style: `--hue:${hue(j)}`},
      make("circle", {class: "mini-reach", r: 22}), make("circle", {r: 11}), make("text", {y: 4.5}));
    g.lastChild.textContent = "abcde"[j];
    const where = e => (e.clientX - line.getBoundingClientRect().left - EDGE) / (width - 2 * EDGE) * 2 * END - END;
    g.addEventListener("touchstart", e => e.preventDefault(), {passive: false});
    g.addEventListener("pointerdown", e => { e.preventDefault(); g.setPointerCapture(e.pointerId); g.focus({preventScroll: true}); held = j; });
    g.addEventListener("pointermove", e => { if (held === j) move(j, where(e)); });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) g.addEventListener(end, () => { held = -1; });
    g.addEventListener("keydown", e => {
      const by = {ArrowLeft: -.05, ArrowDown: -.05, ArrowRight: .05, ArrowUp: .05, PageDown: -.5, PageUp: .5}[e.key];
      if (by) move(j, s[j] + by); else if (e.key === "Home" || e.key === "End") move(j, e.key === "Home" ? -END : END); else return;
      e.preventDefault();
    });
    return g;
  }

  /** Everything from the scores and tau. */
  function draw() {
    const tau = 10 ** Number($("input").value), {P, sorted, ranks} = soft.evaluate("softsort", s, tau);
    width = Math.max($(".mini-line").clientWidth, 240);
    put(line, {viewBox: `0 0 ${width} 176`, height: 176, width});
    rules.forEach(r => put(r, {x2: width - 6}));
    const x = s.map(place), y = sorted.map(place);
    threads.forEach((path, c) => {
      const i = Math.floor(c / n), j = c % n, p = P[i][j];
      put(path, {d: `M${x[j].toFixed(1)} ${UPPER}C${x[j].toFixed(1)} ${UPPER + 50} ${y[i].toFixed(1)} ${LOWER - 50} ${y[i].toFixed(1)} ${LOWER}`, "stroke-width": p < .004 ? 0 : Math.max(.6, 10 * p).toFixed(2)});
    });
    squares.forEach((g, i) => put(g, {transform: `translate(${y[i].toFixed(1)} ${LOWER})`}));
    dots.forEach((g, j) => put(g, {transform: `translate(${x[j].toFixed(1)} ${UPPER})`, "aria-valuenow": s[j], "aria-valuetext": `${s[j]}, rank ${ranks[j].toFixed(2)}`}));
    cells.forEach((cell, c) => put(cell, {style: `--p:${(100 * P[Math.floor(c / n)][c % n]).toFixed(1)}%`}));
    put(picture, {"aria-label": `the soft permutation matrix: ${P.map(row => row.map(p => p.toFixed(2)).join(" ")).join("; ")}`});
    $("output").textContent = tau.toPrecision(2);
    put($("input"), {"aria-valuetext": `tau ${tau.toPrecision(2)}`});
    root.miniature = {s: s.slice(), tau, P};
  }
  $("input").addEventListener("input", draw);
  new ResizeObserver(() => { if (Math.abs($(".mini-line").clientWidth - width) > 1) draw(); }).observe($(".mini-line"));
  draw();
})();
