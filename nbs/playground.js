/* The playground page: what is drawn, and what hands can do with it. The numbers come from operators.js.

   One state, one direction: whatever changes goes through `set`, which repairs nothing silently, computes once and draws all.
   `window.playground` = {state(), result(), set(change), read(hash)} for the console and for the tests. */
(function () {
  "use strict";
  const soft = window.softOperators, root = document.getElementById("playground");
  if (!soft || !root) return;

  // ------------------------------------------------------------------ the state

  const LEAST = 2, MOST = 12, LARGEST = 1000, TAUS = [1e-6, 1e6], SLIDER = [-3, 2];
  const START = {s: [1.2, -0.4, 2.1, 0.5, -1.7], operator: "softsort", tau: 0.5, auto: true, descending: false, sigmoid: "cauchy", at: [2, 3], padded: [], k: 0, other: "", otherTau: 0.5};
  START.tau = soft.defaultTau(START.operator, START.s, START);
  const TRIES = {
    tie: {s: [-1.8, 0.6, 0.6, -0.5, 1.9], operator: "softsort", tau: 0.25, descending: false, at: [2, 1]},
    twins: {s: [0, -2, 1, 2, -1], operator: "neuralsort", tau: 1, descending: false, at: [4, 3]},
    heat: {s: [1.6, -0.8, 2.4, -2.2, 0.3, -1.5, 0.9, -0.2], operator: "softsort", tau: 100, descending: false, at: [0, 3]},
    far: {s: [-2.2, -1.6, 1.4, 2.2], operator: "softsort", tau: 0.1, descending: false, sigmoid: "cauchy", at: [0, 3]},
    columns: {s: [-1.2, -1, -0.8, -0.6, 0.8], operator: "softsort", tau: 1, descending: false, at: [4, 4]},
  };
  const HINTS = {
    softsort: "tau is in units of the scores.", softsort2: "tau is in units of the scores, squared.", neuralsort: "tau is in units of the scores.", lapsum: "tau is in units of the scores: the scale of a bump. Rows and columns sum to one.",
    sinkhorn: "Sinkhorn places the quartiles a quarter of the way from the ends of its milestones: 0.001 is sharp here, 0.1 is soft.",
    odd_even: "tau is in units of the scores, one over the papers' steepness.", bitonic: "tau is in units of the scores, one over the papers' steepness.",
  };
  const NAMES = {softsort: "SoftSort |x − y|", softsort2: "SoftSort (x − y)²", neuralsort: "NeuralSort", lapsum: "LapSum", sinkhorn: "Sinkhorn", odd_even: "odd-even", bitonic: "bitonic",
    permutahedron: "Permutahedron", laplace: "Laplace ranks"}, ALL = [...soft.names, ...soft.rankers];
  let state = {...START}, result = null, chosen = null;
  const options = () => ({descending: state.descending, sigmoid: state.sigmoid});

  /** Why a state cannot be, or an empty string. */
  function trouble(c) {
    if (!Array.isArray(c.s) || c.s.length < LEAST || c.s.length > MOST) return `there must be ${LEAST} to ${MOST} scores`;
    if (!c.s.every(x => Number.isFinite(x) && Math.abs(x) <= LARGEST)) return `scores must be numbers between ${-LARGEST} and ${LARGEST}`;
    if (!(c.tau >= TAUS[0] && c.tau <= TAUS[1])) return `tau must be a number between ${TAUS[0]} and ${TAUS[1].toLocaleString("en")}`;
    if (!soft.names.includes(c.operator)) return `there is no operator “${c.operator}”`;
    if (typeof c.descending !== "boolean") return "the order must be asc or desc";
    if (!soft.sigmoids.includes(c.sigmoid)) return `there is no sigmoid “${c.sigmoid}”`;
    const index = j => Number.isInteger(j) && j >= 0 && j < c.s.length;
    if (!Array.isArray(c.padded) || !c.padded.every(index) || new Set(c.padded).size < c.padded.length) return "there is no such score to leave out";
    if (c.s.length - c.padded.length < LEAST) return `at least ${LEAST} scores must be real`;
    if (!(Number.isInteger(c.k) && c.k >= 0 && c.k <= c.s.length)) return "k must be a whole number, from 0 to the number of scores";
    if (c.other && !ALL.includes(c.other)) return `there is no operator “${c.other}”`;
    if (!(c.otherTau >= TAUS[0] && c.otherTau <= TAUS[1])) return "the other tau must be a number in the same range";
    if (!c.at.every(k => Number.isInteger(k) && k >= 0 && k < c.s.length)) return "there is no such entry";
    return "";
  }

  /** The temperature that the package would take, as far as the page can show it. */
  function ownTau(c) {
    if (trouble({...c, tau: 1})) return 1;                                   // `set` says what is wrong
    return Math.min(Math.max(soft.defaultTau(c.operator, c.s.filter((_, j) => !c.padded.includes(j)), c), TAUS[0]), TAUS[1]);
  }

  /** Change the state; the reason why not, or an empty string. */
  function set(change) {
    const next = {...state, auto: state.auto && !("tau" in change), ...change};
    if (change.s && !change.padded) next.padded = next.padded.filter(j => j < next.s.length);
    if (change.s && change.k === undefined) next.k = Math.min(next.k, next.s.length);
    if (!change.at) next.at = next.at.map(k => Math.min(k, next.s.length - 1));
    if (next.auto) next.tau = ownTau(next);
    const why = trouble(next);
    if (why) return why;
    state = next;
    result = soft.evaluatePadded(state.operator, state.s, state.tau, options(), state.padded);
    draw();
    share();
    return "";
  }

  // ------------------------------------------------------------------ the address

  function address() {
    const p = [`s=${state.s.join(",")}`, `operator=${state.operator}`, `tau=${state.auto ? "auto" : state.tau}`, `order=${state.descending ? "desc" : "asc"}`];
    if (isNetwork()) p.push(`sigmoid=${state.sigmoid}`);
    if (state.padded.length) p.push(`pad=${state.padded.map(j => j + 1).join(",")}`);
    if (state.k) p.push(`k=${state.k}`);
    if (state.other) p.push(`with=${state.other}`, `withtau=${state.otherTau}`);
    return `#${[...p, `at=${state.at.map(k => k + 1).join(",")}`].join("&")}`;
  }

  let written = null;
  const untouched = () => !read(location.hash) && !chosen && JSON.stringify(state) === JSON.stringify(START);
  function share() {
    if (untouched()) return;
    clearTimeout(written);
    written = setTimeout(() => { try { history.replaceState(history.state, "", address()); } catch { /* an address that may not change is no harm */ } }, 200);
  }

  const number = text => /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text.trim().replace("−", "-")) ? Number(text.trim().replace("−", "-")) : NaN;

  /** The state that an address tells; what it leaves out is as at the start. Null for an address of something else. */
  function read(hash) {
    const p = new URLSearchParams(hash.replace(/^#/, ""));
    if (!p.has("s")) return null;
    const out = {...START, s: p.get("s").split(",").map(number)};
    if (p.has("operator")) out.operator = p.get("operator");
    if (p.has("tau") && p.get("tau") !== "auto") { out.tau = number(p.get("tau")); out.auto = false; }
    if (p.has("order")) out.descending = {asc: false, desc: true}[p.get("order")];
    if (p.has("sigmoid")) out.sigmoid = p.get("sigmoid");
    if (p.has("pad")) out.padded = p.get("pad").split(",").map(j => number(j) - 1);
    if (p.has("k")) out.k = number(p.get("k"));
    if (p.has("with")) out.other = p.get("with");
    if (p.has("withtau")) out.otherTau = number(p.get("withtau"));
    out.at = p.has("at") ? p.get("at").split(",").map(k => number(k) - 1) : [0, 0];
    if (out.at.length !== 2) out.at = [NaN, NaN];
    return out;
  }

  function open() {
    const told = read(location.hash);
    if (!told) return false;
    const why = set(told);
    say(why && `The link is not right: ${why}.`);
    return !why;
  }

  // ------------------------------------------------------------------ small tools

  const $ = id => document.getElementById(id), letter = j => "abcdefghijkl"[j], hue = j => 25 + (j * 137.5) % 360;
  const isNetwork = () => state.operator === "odd_even" || state.operator === "bitonic";
  const SVG = "http://www.w3.org/2000/svg";

  /** An element with attributes and children; SVG where the name says so. */
  function make(name, attributes = {}, ...children) {
    const [, svg, tag] = /^(svg:)?(.*)$/.exec(name), e = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    put(e, attributes);
    e.append(...children);
    return e;
  }
  function put(e, attributes) { for (const [k, v] of Object.entries(attributes)) if (e.getAttribute(k) !== String(v)) e.setAttribute(k, v); }
  function write(e, text) { if (e.textContent !== text) e.textContent = text; }

  /** Exactly n children, made or removed at the end. */
  function keep(parent, n, child) {
    while (parent.children.length > n) parent.lastElementChild.remove();
    while (parent.children.length < n) parent.append(child(parent.children.length));
    return [...parent.children];
  }
  const minus = text => text.replace("-", "−");
  const shown = (x, digits = 2) => { const t = x.toFixed(digits); return minus(Number(t) === 0 ? t.replace("-", "") : t); };

  /** Four significant digits, small numbers with a power of ten. */
  function precise(x) {
    if (x === 0) return "0";
    const a = Math.abs(x);
    if (a >= 1e-3 && a < 1e4) return minus(String(Number(x.toPrecision(4))));
    const [digits, power] = x.toExponential(2).split("e");
    return minus(`${digits}·10`) + [...String(Number(power))].map(c => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("");
  }
  function say(text) { write($("pg-message"), text || ""); }

  const VIRIDIS = ["440154", "482878", "3e4a89", "31688e", "26828e", "1f9e89", "35b779", "6dcd59", "b4de2c", "fde725"].map(h => [0, 2, 4].map(k => parseInt(h.slice(k, k + 2), 16)));
  /** The colour of a number between 0 and 1, and the ink that can be read on it. */
  function colour(p) {
    const x = Math.min(Math.max(p, 0), 1) * (VIRIDIS.length - 1), k = Math.min(Math.floor(x), VIRIDIS.length - 2);
    const rgb = VIRIDIS[k].map((c, i) => Math.round(c + (x - k) * (VIRIDIS[k + 1][i] - c)));
    const [r, g, b] = rgb.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return [`rgb(${rgb})`, .2126 * r + .7152 * g + .0722 * b > .179 ? "#000" : "#fff"];
  }

  // ------------------------------------------------------------------ the two lines

  const UPPER = 78, LOWER = 190, EDGE = 24;
  let held = null, ends = [-3, 3], width = 600;

  /** The ends of the line: wide enough for all scores; they stay where they are while a score is held. */
  function reach() {
    if (held !== null) return ends;
    const far = Math.max(...state.s.map(Math.abs)), power = 10 ** Math.floor(Math.log10(Math.max(far, 1)));
    const end = far <= 3 ? 3 : [1, 2, 3, 5, 10].map(k => k * power).find(e => e >= far);
    return [-end, end];
  }
  const place = v => EDGE + (v - ends[0]) / (ends[1] - ends[0]) * (width - 2 * EDGE);
  const decimals = () => Math.max(0, 2 - Math.floor(Math.log10(ends[1] / 2)));
  const rounded = v => Number(Math.min(Math.max(v, ends[0]), ends[1]).toFixed(decimals()));

  /** Levels for marks on a line such that none covers another: the lowest free one, in the given order. */
  function levels(xs, size, order) {
    const out = new Array(xs.length).fill(0);
    order.forEach((j, k) => { while (order.slice(0, k).some(i => out[i] === out[j] && Math.abs(xs[i] - xs[j]) < size)) out[j]++; });
    return out;
  }

  const line = make("svg:svg", {role: "group", "aria-label": "scores on the upper line, sorted values on the lower one"});
  const axis = line.appendChild(make("svg:g", {class: "pg-axis", "aria-hidden": true})), threads = line.appendChild(make("svg:g", {class: "pg-threads", "aria-hidden": true}));
  const values = line.appendChild(make("svg:g", {class: "pg-values", "aria-hidden": true})), arrows = line.appendChild(make("svg:g", {class: "pg-arrows", "aria-hidden": true}));
  const handles = line.appendChild(make("svg:g"));
  $("pg-line").append(line);

  function drawAxis() {
    const step = ends[1] / 3 * (ends[1] === 3 ? 1 : 3 / 2), ticks = ends[1] === 3 ? [-3, -2, -1, 0, 1, 2, 3] : [-2, -1, 0, 1, 2].map(k => k * step);
    axis.replaceChildren(
      ...[UPPER, LOWER].map(y => make("svg:line", {class: "pg-rule", x1: EDGE - 12, x2: width - EDGE + 12, y1: y, y2: y})),
      ...ticks.flatMap(t => [make("svg:line", {x1: place(t), x2: place(t), y1: UPPER, y2: LOWER}),
        make("svg:text", {x: place(t), y: LOWER + 52, "text-anchor": "middle"}, minus(String(Number(t.toPrecision(6)))))]),
      make("svg:text", {class: "pg-label", x: 0, y: 14}, "scores s"), make("svg:text", {class: "pg-label", x: 0, y: LOWER + 70}, "sorted values P s"));
  }

  function drawLine() {
    const {s, at} = state, n = s.length, [i0, j0] = at, slope = result.gradient(i0, j0), steepest = Math.max(...slope.map(Math.abs));
    ends = reach();
    width = Math.max($("pg-line").clientWidth, 260);
    put(line, {viewBox: `0 0 ${width} ${LOWER + 76}`, height: LOWER + 76});
    drawAxis();
    const x = s.map(place), y = result.sorted.map(place);
    const up = levels(x, 22, [...s.keys()].sort((a, b) => (b === held) - (a === held) || a - b)), down = levels(y, 19, soft.argsort(y));
    const top = j => UPPER - 22 * Math.min(up[j], 2), low = i => LOWER + 15 * Math.min(down[i], 1);
    keep(threads, n * n, () => make("svg:path", {class: "pg-ink"})).forEach((path, c) => {
      const i = Math.floor(c / n), j = c % n, p = result.P[i][j], on = i === i0 && j === j0;
      put(path, {d: `M${x[j].toFixed(1)} ${UPPER}C${x[j].toFixed(1)} ${UPPER + 56} ${y[i].toFixed(1)} ${LOWER - 56} ${y[i].toFixed(1)} ${LOWER}`,
        "stroke-width": (p < .004 ? 0 : Math.max(.6, 11 * p)).toFixed(2), "stroke-opacity": on ? .95 : .34, style: `--hue:${hue(j)}`});
    });
    keep(values, n, i => make("svg:g", {}, make("svg:rect", {x: -8.5, y: -8.5, width: 17, height: 17, rx: 3}), make("svg:text", {y: 4}, String(i + 1)))).forEach((g, i) =>
      put(g, {visibility: i < n - state.padded.length ? "visible" : "hidden", class: i === i0 ? "pg-at" : "", transform: `translate(${y[i].toFixed(2)} ${low(i)})`}));
    keep(arrows, n, () => make("svg:path", {class: "pg-ink"})).forEach((path, k) => {
      const length = steepest > 1e-9 ? slope[k] / steepest * 34 : 0, side = Math.sign(length), from = x[k] + side * 14, to = from + length;
      put(path, {style: `--hue:${hue(k)}`, d: Math.abs(length) < 3 ? "" : `M${from.toFixed(1)} ${top(k) - 15}H${to.toFixed(1)}m${-5 * side} -4l${5 * side} 4l${-5 * side} 4`});
    });
    const marks = keep(handles, n, handle);
    marks.forEach((g, j) => put(g, {transform: `translate(${x[j].toFixed(2)} ${top(j)})`, "aria-valuenow": s[j], "aria-valuemin": ends[0], "aria-valuemax": ends[1],
      "aria-valuetext": `${shown(s[j], decimals())}, ${state.padded.includes(j) ? "left out" : `rank ${shown(result.ranks[j])}`}`, style: `--hue:${hue(j)}`, class: `pg-handle${j === held ? " pg-held" : ""}${state.padded.includes(j) ? " pg-padded" : ""}`}));
  }

  function handle(j) {
    const g = make("svg:g", {role: "slider", tabindex: 0, "aria-label": `score ${letter(j)}`, "aria-orientation": "horizontal"},
      make("svg:circle", {class: "pg-reach", r: 20}), make("svg:circle", {class: "pg-ring", r: 14.5}), make("svg:circle", {class: "pg-dot", r: 11}), make("svg:text", {y: 4.5}, letter(j)));
    let offset = 0;
    const where = e => (e.clientX - line.getBoundingClientRect().left) / line.getBoundingClientRect().width * width;
    g.addEventListener("touchstart", e => e.preventDefault(), {passive: false});               // or the finger scrolls the page: touch-action is not heeded inside SVG everywhere
    g.addEventListener("pointerdown", e => {
      if (e.button !== 0 || held !== null) return;
      e.preventDefault();
      still();
      g.focus({preventScroll: true});
      g.setPointerCapture(e.pointerId);
      held = j;
      offset = where(e) - place(state.s[j]);
      drawLine();
    });
    g.addEventListener("pointermove", e => { if (held === j) move(j, ends[0] + (where(e) - offset - EDGE) / (width - 2 * EDGE) * (ends[1] - ends[0])); });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) g.addEventListener(end, () => { if (held === j) { held = null; drawLine(); } });
    g.addEventListener("keydown", e => {
      const step = (ends[1] - ends[0]) / 120, by = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10}[e.key];
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      if (by) move(j, state.s[j] + by * step * (e.shiftKey && Math.abs(by) === 1 ? 10 : 1));
      else if (e.key === "Home" || e.key === "End") move(j, ends[e.key === "Home" ? 0 : 1]);
      else if (e.key === "Delete" || e.key === "Backspace") remove(j, () => handles.children[Math.min(j, state.s.length - 1)]);
      else return;
      e.preventDefault();
    });
    return g;
  }

  function move(j, v) {
    still();
    say(set({s: state.s.map((x, k) => k === j ? rounded(v) : x)}));
  }

  // ------------------------------------------------------------------ typed scores, more and fewer of them

  function drawFields() {
    const n = state.s.length;
    keep($("pg-fields"), n, field).forEach((f, j) => {
      const input = f.querySelector("[type=text]");
      put(f, {style: `--hue:${hue(j)}`});
      if (input !== document.activeElement || input.getAttribute("aria-invalid") !== "true") { input.value = String(state.s[j]); input.removeAttribute("aria-invalid"); }
      f.querySelector("button").disabled = n <= LEAST;
      const real = f.querySelector("[type=checkbox]"), padded = state.padded.includes(j);
      real.checked = !padded;
      real.disabled = !padded && n - state.padded.length <= LEAST;
      put(f, {class: `pg-field${padded ? " pg-padded" : ""}`});
    });
    $("pg-add").disabled = n >= MOST;
  }

  function field(j) {
    const input = make("input", {type: "text", id: `pg-score-${j}`, inputmode: "text", autocomplete: "off", spellcheck: "false"});
    const button = make("button", {type: "button", "aria-label": `remove score ${letter(j)}`}, "×");
    typed(input, `score ${letter(j)}`, () => state.s[j], v => ({s: state.s.map((x, k) => k === j ? v : x)}));
    button.addEventListener("click", () => remove(j, () => $("pg-fields").children[Math.min(j, state.s.length - 1)].querySelector("button:enabled, [type=text]")));
    const real = make("input", {type: "checkbox", "aria-label": `score ${letter(j)} is real`, title: "uncheck it, and the score is padding"});
    real.addEventListener("change", () => { still(); say(set({padded: real.checked ? state.padded.filter(k => k !== j) : [...state.padded, j].sort((a, b) => a - b)})); });
    return make("span", {class: "pg-field"}, real, make("label", {for: input.id}, letter(j)), input, button);
  }

  /** A text field for one number: a wrong one is said and not taken. */
  function typed(input, name, now, change) {
    const wrong = why => { input.setAttribute("aria-invalid", "true"); say(`${name} stays ${minus(String(now()))}: ${why}.`); };
    input.addEventListener("change", () => {
      still();
      const v = number(input.value), why = Number.isNaN(v) ? `“${input.value.slice(0, 20)}” is not a number${/\d,\d/.test(input.value) ? ", write a point instead of the comma" : ""}` : trouble({...state, ...change(v)});
      if (why) return wrong(why);
      input.removeAttribute("aria-invalid");
      say(set(change(v)));
    });
    input.addEventListener("keydown", e => { if (e.key === "Escape") { input.removeAttribute("aria-invalid"); input.value = String(now()); say(""); } });
    input.addEventListener("blur", () => { if (input.getAttribute("aria-invalid") === "true") { input.value = String(now()); input.removeAttribute("aria-invalid"); } });
  }

  /** Scores from a text: a row or a column of numbers with commas, semicolons, spaces or lines between; what is no number is said. */
  function take(text) {
    still();
    const words = text.split(/[\s,;|[\](){}]+/).filter(w => w), unread = words.filter(w => Number.isNaN(number(w))), read = words.map(number).filter(v => !Number.isNaN(v));
    const far = read.filter(v => Math.abs(v) > LARGEST), good = read.filter(v => Math.abs(v) <= LARGEST), s = good.slice(0, MOST), list = some => some.slice(0, 3).map(w => `“${String(w).slice(0, 20)}”`).join(", ") + (some.length > 3 ? ` and ${some.length - 3} more` : "");
    const said = [...(unread.length ? [`not a number: ${list(unread)}`] : []), ...(far.length ? [`beyond ${LARGEST}: ${list(far)}`] : []), ...(good.length > MOST ? [`the first ${MOST} of ${good.length} numbers are shown`] : [])];
    if (s.length < LEAST) return say(`The list was not taken: there must be at least ${LEAST} numbers${said.length ? `; ${said.join("; ")}` : ""}.`);
    set({s, padded: []});
    say(said.length ? `${s.length} scores are taken; ${said.join("; ")}.` : "");
    return true;
  }
  $("pg-list").addEventListener("change", e => { if (e.target.value.trim() && take(e.target.value)) e.target.value = ""; });
  $("pg-list").addEventListener("keydown", e => { if (e.key === "Enter" && !e.shiftKey) { e.preventDefault(); e.target.dispatchEvent(new Event("change")); } });
  for (const where of [$("pg-list"), $("pg-fields")]) where.addEventListener("paste", e => {
    const text = e.clipboardData?.getData("text") || "";
    if (where === $("pg-list") ? e.target.value : !/[\s;]|,.*,/.test(text.trim())) return;   // one number belongs into its field
    e.preventDefault();
    if (!take(text) && where === $("pg-list")) e.target.value = text;
  });

  function remove(j, next) {
    still();
    if (state.s.length <= LEAST) return say(`There must be at least ${LEAST} scores.`);
    const padded = state.padded.filter(k => k !== j).map(k => k > j ? k - 1 : k);
    if (state.s.length - 1 - padded.length < LEAST) return say(`At least ${LEAST} scores must be real.`);
    say(set({s: state.s.filter((_, k) => k !== j), padded}));
    next()?.focus();
  }

  /** A new score goes into the middle of the widest gap. */
  function add() {
    still();
    const t = [ends[0], ...state.s.slice().sort((a, b) => a - b), ends[1]], gaps = t.slice(1).map((x, k) => x - t[k]), k = gaps.indexOf(Math.max(...gaps));
    say(set({s: [...state.s, rounded((t[k] + t[k + 1]) / 2)]}));
  }

  // ------------------------------------------------------------------ the matrix

  const table = make("table", {role: "grid", "aria-labelledby": "pg-matrix-label"}), head = make("tr"), body = make("tbody"), ranks = make("tr"), columns = make("tr"), first = make("tr", {class: "pg-first"});
  table.append(make("thead", {}, head), body, make("tfoot", {}, ranks, columns, first));
  $("pg-matrix").append(table);

  function drawMatrix() {
    const {at} = state, {P} = result, n = P.length, focused = body.contains(document.activeElement);
    if (body.children.length !== n) {
      head.replaceChildren(make("th", {scope: "col", title: "position"}, "pos."), ...P.map((_, j) => make("th", {scope: "col", style: `--hue:${hue(j)}`}, make("b", {}, letter(j)))), make("th", {scope: "col", title: "sorted values"}, "P s"));
      body.replaceChildren(...P.map((_, i) => make("tr", {}, make("th", {scope: "row"}, String(i + 1)), ...P.map((_, j) => make("td", {class: "pg-cell", role: "gridcell", "data-i": i, "data-j": j}, make("span"))), make("td"))));
      for (const [row, name] of [[ranks, "rank"], [columns, "sum"], [first, "top"]]) row.replaceChildren(make("th", {scope: "row"}, name), ...P.map(() => make("td")), make("td"));
      put(table, {class: n > 8 ? "pg-many" : "", style: `--n:${n}`});
    }
    P.forEach((row, i) => {
      const cells = body.children[i].children;
      row.forEach((p, j) => {
        const cell = cells[j + 1], [back, ink] = colour(p), on = i === at[0] && j === at[1];
        const text = n > 6 ? p.toFixed(2).replace(/^0/, "") : p.toFixed(2);
        write(cell.firstChild, text);
        cell.style.backgroundColor = back;
        cell.style.color = ink;
        put(cell, {tabindex: on ? 0 : -1, "aria-selected": on, "aria-label": `${text} at position ${i + 1} of score ${letter(j)}`, title: `P[${i + 1}, ${letter(j)}] = ${precise(p)}`});
        if (on && focused && document.activeElement !== cell) cell.focus({preventScroll: true});
      });
      write(cells[n + 1], shown(result.sorted[i]));
    });
    const digits = n > 8 ? 1 : 2;
    result.ranks.forEach((r, j) => { write(ranks.children[j + 1], r.toFixed(digits)); put(ranks.children[j + 1], {title: `rank of ${letter(j)}: ${precise(r)}`}); });
    result.columnSums.forEach((w, j) => { write(columns.children[j + 1], w.toFixed(digits)); put(columns.children[j + 1], {title: `sum of column ${letter(j)}: ${precise(w)}`}); });
  }

  /** How much of each score stands at the first k positions: the soft membership in the top k. */
  function drawFirst() {
    const {k, s} = state, weights = k ? soft.columnSums(result.P.slice(0, k)) : s.map(() => 0), digits = s.length > 8 ? 1 : 2;
    first.hidden = k === 0;
    keep($("pg-k"), s.length + 1, c => make("option", {value: c}, c ? String(c) : "off"));
    $("pg-k").value = String(k);
    [...body.children].forEach((row, i) => put(row, {class: i < k ? "pg-chosen" : ""}));
    weights.forEach((w, j) => { write(first.children[j + 1], w.toFixed(digits)); put(first.children[j + 1], {title: `${letter(j)} among the first ${k}: ${precise(w)}`, style: `--w:${Math.min(Math.max(w, 0), 1).toFixed(3)}`}); });
    write(first.lastElementChild, k ? `Σ ${shown(weights.reduce((a, b) => a + b, 0), 1)}` : "");
  }
  $("pg-k").addEventListener("change", e => { still(); say(set({k: Number(e.target.value)})); });

  body.addEventListener("click", e => {
    const cell = e.target.closest(".pg-cell");
    if (cell) { set({at: [+cell.dataset.i, +cell.dataset.j]}); cell.focus({preventScroll: true}); }
  });
  body.addEventListener("keydown", e => {
    const [i, j] = state.at, last = state.s.length - 1, far = e.ctrlKey || e.metaKey;
    const to = {ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1], Home: [far ? 0 : i, 0], End: [far ? last : i, last], PageUp: [0, j], PageDown: [last, j]}[e.key];
    if (!to) return;
    e.preventDefault();
    set({at: to.map(k => Math.min(Math.max(k, 0), last))});
  });

  // ------------------------------------------------------------------ the gradient

  const bars = make("svg:svg", {role: "img"}), zero = bars.appendChild(make("svg:line", {class: "pg-zero"})), columnsOf = bars.appendChild(make("svg:g"));
  $("pg-gradient").append(bars);

  function drawGradient() {
    const [i, j] = state.at, slope = result.gradient(i, j), n = slope.length, w = Math.max($("pg-gradient").clientWidth, 160), H = 224, middle = 104, tall = 78;
    const most = Math.max(...slope.map(Math.abs)), power = 10 ** Math.floor(Math.log10(most || 1)), full = most > 1e-300 ? [1, 2, 5, 10].map(k => k * power).find(v => v >= most) : 1;
    put(bars, {viewBox: `0 0 ${w} ${H}`, height: H, "aria-label": `gradient of the entry: ${slope.map((g, k) => `${letter(k)} ${precise(g)}`).join(", ")}`});
    put(zero, {x1: 0, x2: w, y1: middle, y2: middle});
    keep(columnsOf, n, k => make("svg:g", {class: "pg-ink"}, make("svg:rect", {class: "pg-bar", rx: 2}), make("svg:text", {class: "pg-name", y: H - 18}, letter(k)), make("svg:text", {class: "pg-number"}))).forEach((g, k) => {
      const x = w / n * (k + .5), height = Math.abs(slope[k]) / full * tall, [bar, name, label] = g.children, room = w / n;
      put(g, {style: `--hue:${hue(k)}`});
      put(bar, {x: x - Math.min(room * .36, 17), width: Math.min(room * .72, 34), height: Math.max(height, .01), y: slope[k] > 0 ? middle - height : middle});
      put(name, {x});
      put(label, {x, y: slope[k] > 0 ? middle - height - 6 : middle + height + 14, visibility: room > 42 ? "visible" : "hidden"});
      write(label, Math.abs(slope[k]) >= 1e-3 || slope[k] === 0 ? shown(slope[k], Math.abs(slope[k]) < .1 ? 3 : 2) : minus(slope[k].toExponential(0)));
    });
    const p = result.P[i][j], tallest = slope.map(Math.abs).indexOf(most);
    $("pg-entry").replaceChildren(make("b", {}, `P[${i + 1}, ${letter(j)}] = ${precise(p)}`), ` is how much of ${letter(j)} stands at position ${i + 1}. Its gradient with respect to the scores: `,
      most > 0 ? `steepest in ${letter(tallest)}, ${precise(slope[tallest])}.` : "zero.");
  }

  // ------------------------------------------------------------------ controls, code

  function drawControls() {
    for (const r of root.querySelectorAll("[name=pg-operator]")) r.checked = r.value === state.operator;
    for (const r of root.querySelectorAll("[name=pg-direction]")) r.checked = (r.value === "desc") === state.descending;
    const slider = $("pg-slider"), log = Math.log10(state.tau), box = $("pg-tau");
    if (Math.abs(Number(slider.value) - log) > .006) slider.value = String(Math.min(Math.max(log, SLIDER[0]), SLIDER[1]));
    put(slider, {"aria-valuetext": `tau ${Number(state.tau.toPrecision(4))}`});
    put($("pg-auto"), {"aria-pressed": state.auto});
    if (box !== document.activeElement || box.getAttribute("aria-invalid") !== "true") { box.value = String(Number(state.tau.toPrecision(6))); box.removeAttribute("aria-invalid"); }
    $("pg-sigmoid").value = state.sigmoid;
    $("pg-sigmoid").parentElement.hidden = !isNetwork();
    write($("pg-hint"), result.converged === false ? `Sinkhorn's potentials have not settled: a share of ${precise(result.residual)} of the mass is still misplaced. A larger tau is easier.` : `${HINTS[state.operator]}${state.auto ? " Now it is the package's default for these scores, and follows them." : ""}`);
    for (const b of root.querySelectorAll("[data-try]")) put(b, {"aria-pressed": b.dataset.try === chosen});
    for (const name of Object.keys(TRIES)) $(`pg-${name}`).hidden = name !== chosen;
  }

  /** The same in Python. */
  function python() {
    const [i, j] = state.at, down = state.descending ? ", descending=True" : "", tau = `tau=${state.tau}${down}`, own = state.auto ? " # the default for these scores" : "";
    const [name, call] = {softsort: ["SoftSort", `SoftSort(${tau})`], softsort2: ["SoftSort", `SoftSort(power=2, ${tau})`], neuralsort: ["NeuralSort", `NeuralSort(${tau})`], lapsum: ["LapSum", `LapSum(${tau})`], sinkhorn: ["SinkhornSort", `SinkhornSort(${tau}, squash="linear")`],
      odd_even: ["SortingNetwork", `SortingNetwork("odd_even", "${state.sigmoid}", ${tau})`], bitonic: ["SortingNetwork", `SortingNetwork("bitonic", "${state.sigmoid}", ${tau})`]}[state.operator];
    return ["import torch", `from softsortlib import ${name}, soft_rank`, "",
      `s = torch.tensor([${state.s.join(", ")}], dtype=torch.float64, requires_grad=True)`,
      ...(state.padded.length ? [`mask = torch.tensor([${state.s.map((_, j) => state.padded.includes(j) ? "False" : "True").join(", ")}])`] : []),
      `operator = ${call}${own}`, `P = operator(s${state.padded.length ? ", mask" : ""})`, ...(state.k ? [`P[:${state.k}, :].mT @ torch.ones(${state.k}, dtype=s.dtype)`.padEnd(49) + `# membership in the first ${state.k}`] : []),
      "P.to_dense()                                     # the matrix", "P @ s                                            # sorted values",
      `${`soft_rank(s${down}, method=operator${state.padded.length ? ", mask=mask" : ""})`.padEnd(49)}# ranks`, `${`torch.autograd.grad(P[${i}, :][${j}], s)`.padEnd(49)}# gradient of P[${i + 1}, ${letter(j)}]`].join("\n");
  }

  // ------------------------------------------------------------------ lines along tau, and a loss that descends

  /** Lines in a box: rows of [colour, points], x and y already between 0 and 1; above it what they show, on the axes where they begin and end. */
  function chart(parent, lines, label, [left, right], [low, high], mark = null) {
    const w = Math.max(parent.clientWidth, 200), h = 130, text = (x, y, anchor, ...what) => make("svg:text", {class: "pg-label pg-tick", x, y, "text-anchor": anchor}, ...what), at = ([x, y]) => `${(4 + x * (w - 8)).toFixed(1)} ${(h - 6 - y * (h - 30)).toFixed(1)}`;
    parent.replaceChildren(make("svg:svg", {viewBox: `0 0 ${w} ${h + 16}`, height: h + 16, "aria-hidden": true},
      ...(mark === null ? [] : [make("svg:line", {class: "pg-zero", x1: 4 + mark * (w - 8), x2: 4 + mark * (w - 8), y1: 20, y2: h - 4})]),
      ...lines.map(([hueOf, points]) => make("svg:path", {class: "pg-trace pg-ink", style: `--hue:${hueOf}`, d: points.length ? `M${points.map(at).join("L")}` : ""})),
      make("svg:text", {class: "pg-label", x: 0, y: 13}, label),
      make("svg:line", {class: "pg-zero", x1: 4, x2: w - 4, y1: h - 2, y2: h - 2}), text(4, h + 12, "start", left), text(w - 4, h + 12, "end", right),
      text(w, 26, "end", high), text(w, h - 6, "end", low)));
  }

  const TAUS_DRAWN = 41, tauAt = c => 10 ** (SLIDER[0] + c / (TAUS_DRAWN - 1) * (SLIDER[1] - SLIDER[0]));
  function drawTraces() {
    const more = root.querySelector(".pg-more"), {s, at} = state;
    if (!more.open) return;
    const all = Array.from({length: TAUS_DRAWN}, (_, c) => soft.evaluatePadded(state.operator, s, tauAt(c), options(), state.padded));
    const slopes = all.map(r => r.gradient(...at)), most = Math.max(...slopes.flat().map(Math.abs), 1e-300), x = c => c / (TAUS_DRAWN - 1);
    const here = Math.min(Math.max((Math.log10(state.tau) - SLIDER[0]) / (SLIDER[1] - SLIDER[0]), 0), 1);
    const real = [...s.keys()].filter(j => !state.padded.includes(j));
    const ends = [`tau = ${tauAt(0)}`, `tau = ${tauAt(TAUS_DRAWN - 1)}`];
    chart($("pg-ranks"), real.map(j => [hue(j), all.map((r, c) => [x(c), (r.ranks[j] - 1) / (real.length - 1)])]), "ranks, against tau", ends, ["1", String(real.length)], here);
    chart($("pg-slopes"), s.map((_, j) => [hue(j), slopes.map((g, c) => [x(c), .5 + g[j] / most / 2])]), `gradient of P[${at[0] + 1}, ${letter(at[1])}], against tau`, ends, [minus(precise(-most)), precise(most)], here);
    put($("pg-ranks"), {"aria-label": `ranks against tau; at the smallest ${all[0].ranks.map(r => shown(r)).join(", ")}, at the largest ${all[TAUS_DRAWN - 1].ranks.map(r => shown(r)).join(", ")}`});
    put($("pg-slopes"), {"aria-label": `gradient of the entry against tau; steepest ${precise(most)}`});
  }
  root.querySelector(".pg-more").addEventListener("toggle", drawTraces);

  const alphabet = () => (real => state.descending ? real.reverse() : real)([...state.s.keys()].filter(j => !state.padded.includes(j)));

  // ------------------------------------------------------------------ another operator beside it

  /** Ranks and sorted values of both, and the other's matrix where it has one. */
  function drawOther() {
    const box = $("pg-beside"), {s, other} = state, n = s.length, real = n - state.padded.length;
    $("pg-other").value = other;
    $("pg-other-tau").parentElement.hidden = !other;
    if ($("pg-other-tau") !== document.activeElement || $("pg-other-tau").getAttribute("aria-invalid") !== "true") $("pg-other-tau").value = String(Number(state.otherTau.toPrecision(6)));
    if (!other) return box.replaceChildren();
    const there = soft.answers(other, s, state.otherTau, options(), state.padded), digits = n > 8 ? 1 : 2;
    const line = (name, numbers) => make("tr", {}, make("th", {scope: "row"}, name), ...numbers.map(x => make("td", {}, x === null ? "–" : shown(x, digits))));
    const block = (what, names, rows) => [make("thead", {}, make("tr", {}, make("th", {scope: "col"}, what), ...names)), make("tbody", {}, ...rows)];
    const letters = s.map((_, j) => make("th", {scope: "col", style: `--hue:${hue(j)}`}, make("b", {}, letter(j)))), places = s.map((_, i) => make("th", {scope: "col"}, String(i + 1)));
    const values = r => r.sorted ? r.sorted.map((v, i) => i < real ? v : null) : s.map(() => null), own = r => r.ranks.map((v, j) => state.padded.includes(j) ? null : v);
    const numbers = make("table", {"aria-label": `${NAMES[state.operator]} and ${NAMES[other]}`},
      ...block("rank of", letters, [line(NAMES[state.operator], own(result)), line(NAMES[other], own(there))]),
      ...block("value at", places, [line(NAMES[state.operator], values(result)), line(NAMES[other], values(there))]));
    const small = there.P && make("table", {class: "pg-small", "aria-label": `the matrix of ${NAMES[other]}`}, make("tbody", {}, ...there.P.map((row, i) => make("tr", {}, ...row.map((p, j) => {
      const [back, ink] = colour(p);
      return make("td", {style: `background-color:${back};color:${ink}`, title: `P[${i + 1}, ${letter(j)}] = ${precise(p)}`}, n > 8 ? "" : p.toFixed(2).replace(/^0/, ""));
    })))));
    box.replaceChildren(make("div", {class: "pg-scroll", tabindex: 0, role: "region", "aria-label": "numbers of both operators"}, numbers), small || make("p", {class: "pg-hint"}, other === "laplace" ? "Laplace ranks come without a matrix, and without sorted values." : "The permutahedron has ranks and sorted values, and no matrix."));
  }
  $("pg-other").append(make("option", {value: ""}, "nothing"), ...ALL.map(name => make("option", {value: name}, NAMES[name])));
  $("pg-other").addEventListener("change", e => say(set({other: e.target.value, otherTau: state.other ? state.otherTau : e.target.value === "sinkhorn" ? .02 : state.tau})));
  typed($("pg-other-tau"), "the other tau", () => Number(state.otherTau.toPrecision(6)), otherTau => ({otherTau}));
  let losses = [];
  function descend() {
    const {loss, slope} = soft.orderLoss(result, alphabet()), steepest = Math.max(...slope.map(Math.abs));
    losses = [...losses, loss].slice(-200);
    const top = Math.max(...losses, 1e-12);
    chart($("pg-curve"), [[250, losses.map((l, k) => [k / Math.max(losses.length - 1, 1), Math.max(l, 0) / top])]], `loss ${precise(loss)} after ${losses.length - 1} steps`, ["first step", `step ${losses.length - 1}`], ["0", precise(top)]);
    put($("pg-curve"), {"aria-label": `the loss: ${precise(losses[0])} at first, ${precise(loss)} after ${losses.length - 1} steps`});
    if (!(loss > .01 && steepest > 1e-12) || losses.length >= 200) return true;
    const far = .04 + .02 * (losses.length * .618034 % 1), step = Math.min(far / steepest, .5);     // uneven steps of .04 to .06: even ones would land on ties
    set({s: state.s.map((v, k) => Number(Math.min(Math.max(v - step * slope[k], -LARGEST), LARGEST).toFixed(4)))});
    return false;
  }
  $("pg-descend").addEventListener("click", () => {
    if (frame && $("pg-descend").getAttribute("aria-pressed") === "true") return still();
    losses = [];
    animate(() => { const done = descend(); if (done) put($("pg-descend"), {"aria-pressed": false}); return done; });
    put($("pg-descend"), {"aria-pressed": true});
  });

  function draw() {
    drawControls(); drawLine(); drawFields(); drawMatrix(); drawFirst(); drawGradient(); drawOther(); drawTraces();
    write($("pg-python"), python());
  }

  root.querySelectorAll("[name=pg-operator]").forEach(r => r.addEventListener("change", () => { still(); say(set({operator: r.value})); }));
  root.querySelectorAll("[name=pg-direction]").forEach(r => r.addEventListener("change", () => { still(); say(set({descending: r.value === "desc"})); }));
  $("pg-sigmoid").append(...soft.sigmoids.map(name => make("option", {value: name}, name)));
  $("pg-sigmoid").addEventListener("change", e => say(set({sigmoid: e.target.value})));
  $("pg-slider").addEventListener("input", e => { still(); say(set({tau: Number((10 ** Number(e.target.value)).toPrecision(3))})); });
  typed($("pg-tau"), "tau", () => Number(state.tau.toPrecision(6)), tau => ({tau}));
  $("pg-auto").addEventListener("click", () => { still(); say(set({auto: true})); });
  $("pg-add").addEventListener("click", add);
  $("pg-shuffle").addEventListener("click", () => travel({s: state.s.map(() => Number((4.8 * Math.random() - 2.4).toFixed(2)))}));

  async function copy(button, text) {
    const before = button.textContent;
    try { await navigator.clipboard.writeText(text); write(button, "copied"); }
    catch { getSelection().selectAllChildren($("pg-python")); write(button, text.startsWith("import") ? "selected: copy it" : "the link is in the address bar"); }
    setTimeout(() => write(button, before), 1600);
  }
  $("pg-copy-code").addEventListener("click", e => copy(e.currentTarget, python()));
  $("pg-copy-link").addEventListener("click", e => { try { history.replaceState(history.state, "", address()); } catch { /* as above */ } copy(e.currentTarget, location.href.replace(/#.*/, "") + address()); });

  // ------------------------------------------------------------------ moving by itself

  let frame = 0;
  /** Stop what moves. */
  function still() {
    cancelAnimationFrame(frame);
    frame = 0;
    for (const id of ["pg-sweep", "pg-descend"]) put($(id), {"aria-pressed": false});
  }

  /** Call f(seconds) on every frame until it returns true. */
  function animate(f) {
    still();
    let start = null;
    const tick = now => { start ??= now; frame = f((now - start) / 1000) ? 0 : requestAnimationFrame(tick); };
    frame = requestAnimationFrame(tick);
  }

  /** Go to a state: tau glides there, and the scores where their number stays. */
  function travel(change) {
    const to = {...state, ...change}, from = to.s.length === state.s.length ? state : {...state, s: to.s};
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) { still(); return say(set(change)); }
    animate(seconds => {
      const t = Math.min(seconds / .9, 1), ease = t * t * (3 - 2 * t), between = (a, b) => a + ease * (b - a);
      say(set(t === 1 ? change : {...change, s: to.s.map((v, k) => Number(between(from.s[k], v).toFixed(4))),
        ...("tau" in change ? {tau: Number(Math.exp(between(Math.log(from.tau), Math.log(to.tau))).toPrecision(4))} : {})}));
      return t === 1;
    });
  }

  $("pg-sweep").addEventListener("click", () => {
    if (frame && $("pg-sweep").getAttribute("aria-pressed") === "true") return still();
    const middle = (SLIDER[0] + SLIDER[1]) / 2, radius = (SLIDER[1] - SLIDER[0]) / 2, phase = Math.asin(Math.min(Math.max((Math.log10(state.tau) - middle) / radius, -1), 1));
    animate(seconds => { set({tau: Number((10 ** (middle + radius * Math.sin(phase - seconds * .7))).toPrecision(3))}); });
    put($("pg-sweep"), {"aria-pressed": true});
  });

  root.querySelectorAll("[data-try]").forEach(b => b.addEventListener("click", () => { chosen = b.dataset.try; travel({padded: [], ...TRIES[chosen]}); drawControls(); }));

  // ------------------------------------------------------------------ begin

  for (const part of root.querySelectorAll(".pg-tries, .pg-panel")) part.hidden = false;
  if (!open()) set({});
  addEventListener("hashchange", () => { still(); open(); });
  new ResizeObserver(() => { if (Math.abs($("pg-line").clientWidth - width) > 1) draw(); }).observe($("pg-line"));
  window.playground = {state: () => structuredClone(state), result: () => ({...result, gradient: result.gradient(...state.at)}), set, read, tries: TRIES, descend, moving: () => frame !== 0};
})();
