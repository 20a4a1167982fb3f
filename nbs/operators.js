/* The operators of softsortlib for one small set of scores, in plain JavaScript: pure functions on arrays of numbers, in double precision.

   Every operator is a function (s, tau, options) -> {P, gradient(i, j)}:
     s         scores, an array of n >= 2 finite numbers
     tau       temperature, a positive number
     options   descending (default false), and what the operator's own line says
     P         P[i][j]: how much of input j stands at sorted position i; every row sums to one
     gradient  gradient(i, j)[k]: the derivative of P[i][j] with respect to s[k], exact (a formula or forward-mode differentiation)

   Definitions, defaults and conventions at ties are those of the Python package: the parts rowwise, networks, transport
   and ranks. tests/test_playground.py compares all of it, number by number.
   A classic script, so that it also runs on a page opened as a file: it leaves one name, `softOperators`, behind. */
(function (root) {
  "use strict";

  // ------------------------------------------------------------------ small tools

  const range = n => Array.from({length: n}, (_, i) => i);
  const sum = v => v.reduce((a, b) => a + b, 0);
  const dot = (a, b) => a.reduce((t, x, i) => t + x * b[i], 0);
  const matrix = (n, m, f) => range(n).map(i => range(m).map(j => f(i, j)));

  /** The order that sorts s: order[i] is the input that stands at position i. Ties stay in the order of the input. */
  function argsort(s, descending = false) {
    return range(s.length).sort((i, j) => (descending ? s[j] - s[i] : s[i] - s[j]) || i - j);
  }

  function softmax(logits) {
    const top = Math.max(...logits), e = logits.map(l => Math.exp(l - top)), total = sum(e);
    return e.map(x => x / total);
  }

  /** Rows that are softmaxes of logits; slope(i, j) is the gradient of logit (i, j), an array of n. */
  function softmaxRows(logits, slope) {
    const P = logits.map(softmax);
    function gradient(i, j) {
      const own = slope(i, j), mean = own.map(() => 0);
      P[i].forEach((p, c) => { if (p > 0) slope(i, c).forEach((d, k) => { mean[k] += p * d; }); });
      return own.map((d, k) => P[i][j] * (d - mean[k]));
    }
    return {P, gradient};
  }

  // ------------------------------------------------------------------ rows by a softmax

  /** SoftSort: the softmax of -|sorted score - score|^power / tau. Option power (1). */
  function softsort(s, tau, {power = 1, descending = false} = {}) {
    const n = s.length, order = argsort(s, descending);
    const logits = matrix(n, n, (i, j) => -(Math.abs(s[order[i]] - s[j]) ** power) / tau);
    function slope(i, j) {
      const gap = s[order[i]] - s[j], out = new Array(n).fill(0);
      const d = gap === 0 ? 0 : -power * Math.sign(gap) * Math.abs(gap) ** (power - 1) / tau;   // a tie pulls neither way
      out[order[i]] += d;
      out[j] -= d;
      return out;
    }
    return softmaxRows(logits, slope);
  }

  /** NeuralSort: the softmax of ((n + 1 - 2i) s_j - sum_k |s_j - s_k|) / tau, i = 1..n; increasing order is that of -s.
      The logits are taken relative to the diagonal: between neighbours they fall by an odd multiple of the gap, so nothing cancels. */
  function neuralsort(s, tau, {descending = false} = {}) {
    const n = s.length, z = descending ? s : s.map(x => -x), order = argsort(z, true);
    const gap = range(n - 1).map(j => z[order[j]] - z[order[j + 1]]), logits = matrix(n, n, () => 0);
    for (let i = 0; i < n; i++) {
      for (let j = i; j < n - 1; j++) logits[i][order[j + 1]] = logits[i][order[j]] - gap[j] * (2 * (j - i) + 1) / tau;
      for (let j = i - 1; j >= 0; j--) logits[i][order[j]] = logits[i][order[j + 1]] - gap[j] * (2 * (i - j) - 1) / tau;
    }
    const sides = matrix(n, n, (j, k) => Math.sign(z[j] - z[k]));
    function slope(i, j) {
      const out = sides[j].map(side => side / tau);
      out[j] += (n - 1 - 2 * i - sum(sides[j])) / tau;
      return descending ? out : out.map(d => -d);
    }
    return softmaxRows(logits, slope);
  }

  // ------------------------------------------------------------------ sorting networks

  /** The layers of a network for n lanes, each a list of pairs [i, j], i < j; kind is "odd_even" or "bitonic". */
  function layers(kind, n) {
    if (kind === "odd_even") return range(n).map(l => range(Math.max(0, Math.floor((n - l % 2) / 2))).map(c => [l % 2 + 2 * c, l % 2 + 2 * c + 1]));
    if (kind !== "bitonic") throw new RangeError(`kind must be "odd_even" or "bitonic", got ${kind}`);
    const out = [];
    function add(m, mirrored) {
      const pairs = [];
      for (let b = 0; b < n; b += 2 * m) for (let t = 0; t < m; t++) pairs.push([b + t, mirrored ? b + 2 * m - 1 - t : b + m + t]);
      out.push(pairs.filter(pair => pair[1] < n));               // what touches an imagined lane is erased
    }
    for (let half = 1; half < n; half *= 2) {
      add(half, true);
      for (let m = half / 2; m >= 1; m /= 2) add(m, false);
    }
    return out;
  }

  /** The complementary error function, to about 1e-15 relative where it does not underflow. */
  function erfc(x) {
    if (x < 0) return 2 - erfc(-x);
    if (x < 2) {                                                 // a series of positive terms
      let term = x, total = x;
      for (let k = 1; term > 1e-18 * total; k++) total += term *= 2 * x * x / (2 * k + 1);
      return 1 - 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * total;
    }
    let f = x;                                                   // a continued fraction, from its far end
    for (let k = 120; k >= 1; k--) f = x + k / 2 / f;
    return Math.exp(-x * x) / Math.sqrt(Math.PI) / f;
  }

  /** The five sigmoids and their slopes: v -> [value, derivative]. */
  const SIGMOIDS = {
    logistic(v) { const e = Math.exp(-Math.abs(v)), p = 1 / (1 + e); return [v < 0 ? e * p : p, e * p * p]; },
    gaussian(v) { return [0.5 * erfc(-v / Math.SQRT2), Math.exp(-v * v / 2) / Math.sqrt(2 * Math.PI)]; },
    cauchy(v) { return [Math.atan2(1, -v) / Math.PI, 1 / (Math.PI * (1 + v * v))]; },
    reciprocal(v) { const a = Math.abs(v); return [v < 0 ? 1 / (2 + a) : (1 + a) / (2 + a), 1 / (2 + a) ** 2]; },
    optimal(v) {
      const a = Math.max(Math.abs(v), 0.25) + 1e-10, tail = 1 / 16 / a;
      return Math.abs(v) <= 0.25 ? [v + 0.5, 1] : [v < 0 ? tail : 1 - tail, tail / a];
    },
  };

  /** The activation replacement trick, d / (|d| + 1e-10)^lambda, and its derivative. */
  function replaceActivation(d, lambda) {
    const a = Math.abs(d) + 1e-10, scale = a ** -lambda;
    return [d * scale, scale * (1 - lambda * Math.abs(d) / a)];
  }

  /** A sorting network with soft swaps. Options: kind ("bitonic"), sigmoid ("cauchy"; also a name with "_phi"), artLambda (0.25, used
      with "logistic" and names in "_phi"). tau is one over the papers' steepness. Derivatives ride along with every number. */
  function network(s, tau, {kind = "bitonic", sigmoid = "cauchy", artLambda = 0.25, descending = false} = {}) {
    const n = s.length, name = sigmoid.replace(/_phi$/, ""), f = SIGMOIDS[name];
    if (!f) throw new RangeError(`sigmoid must be one of ${Object.keys(SIGMOIDS)}, got ${sigmoid}`);
    const lambda = sigmoid === "logistic" || sigmoid.endsWith("_phi") ? artLambda : 0;
    const value = s.slice(), slope = matrix(n, n, (i, k) => +(i === k));                      // of the scores on their lanes
    const P = matrix(n, n, (i, j) => +(i === j)), J = matrix(n, n, () => new Array(n).fill(0));
    for (const layer of layers(kind, n)) for (const [lo, hi] of layer) {
      const d = value[hi] - value[lo], dd = slope[hi].map((x, k) => x - slope[lo][k]);
      const [replaced, bent] = lambda ? replaceActivation(d, lambda) : [d, 1], v = replaced / tau;
      const [keep, rate] = f(v), swap = f(-v)[0], dkeep = dd.map(x => rate * bent / tau * x);
      const dswapped = dd.map((x, k) => swap * x - dkeep[k] * d);
      value[lo] += swap * d;
      value[hi] -= swap * d;
      slope[lo] = slope[lo].map((x, k) => x + dswapped[k]);
      slope[hi] = slope[hi].map((x, k) => x - dswapped[k]);
      for (let j = 0; j < n; j++) {
        const a = P[lo][j], b = P[hi][j], da = J[lo][j], db = J[hi][j];
        P[lo][j] = keep * a + swap * b;
        P[hi][j] = swap * a + keep * b;
        J[lo][j] = da.map((x, k) => keep * x + swap * db[k] + dkeep[k] * (a - b));
        J[hi][j] = da.map((x, k) => swap * x + keep * db[k] - dkeep[k] * (a - b));
      }
    }
    if (descending) { P.reverse(); J.reverse(); }
    return {P, gradient: (i, j) => J[i][j].slice()};
  }

  // ------------------------------------------------------------------ transport

  /** The distance of the quartiles (C2.2), or the median distance from a tie that holds both (C2.3); the lower quartile; and the weights
      of the scores in that distance. Zero, and no weights, where all are equal. */
  function quartiles(s) {
    const t = s.slice().sort((a, b) => a - b), m = t.length, a = Math.floor((m - 1) / 4), f = (m - 1) % 4 / 4, low = t[a], zero = s.map(() => 0);
    const shared = (value, weight) => { const hit = s.map(x => x === value), hits = hit.filter(x => x).length; return hit.map(x => x ? weight / hits : 0); };
    const total = some => some.reduce((sums, w) => sums.map((x, i) => x + w[i]), zero);
    if (low < t[m - 1 - a]) {
      const weights = total([shared(low, f - 1), shared(t[a + 1], -f), shared(t[m - 2 - a], f), shared(t[m - 1 - a], 1 - f)]);
      return {width: (1 - f) * t[m - 1 - a] + f * t[m - 2 - a] - (1 - f) * low - f * t[a + 1], low, weights};
    }
    const far = t.map(x => Math.abs(x - low)).filter(d => d > 0).sort((a, b) => a - b), width = far.length ? far[Math.floor((far.length - 1) / 2)] : 0;
    const signs = s.map(x => width && Math.abs(x - low) === width ? Math.sign(x - low) : 0), hits = sum(signs.map(Math.abs)), outer = signs.map(x => x && x / hits);
    return {width, low, weights: total([outer, shared(low, -sum(outer))])};
  }

  /** (T2.5): the quartiles a quarter of the way from the ends of [0, 1], far scores along a logarithm; and the map that takes a gradient of
      the result back to the scores, for a result that a common shift of all places leaves alone. */
  function placed(s) {
    const {width, low, weights} = quartiles(s), unit = width || 20, u = s.map(x => (x - low) / unit), v = u.map(x => x - 0.5);
    const x = v.map(v => 0.5 + 0.5 * (Math.abs(v) > 2 ? 2 * Math.sign(v) * (1 + Math.log(Math.abs(v) / 2)) : v));
    function back(g) {
      const gu = g.map((g, i) => 0.5 * g * (Math.abs(v[i]) > 2 ? 2 / Math.abs(v[i]) : 1)), along = dot(gu, u);
      return gu.map((g, i) => (g - weights[i] * along) / unit);
    }
    return {x, back};
  }

  /** Conjugate gradients for (diag(r) - a R Q) mu = rhs, as in potentials.py; mu and the number of steps. */
  function conjugate(Q, R, a, r, rhs, accuracy, limit) {
    const n = r.length, enough = accuracy * sum(rhs.map(Math.abs));
    function precondition(q) {
      const z = q.map((x, i) => r[i] > 0 ? x / r[i] : 0), middle = dot(r, z) / sum(r);
      return z.map(x => x - middle);
    }
    let mu = new Array(n).fill(0), q = rhs.slice(), p = precondition(q), power = dot(q, p), steps = 0;
    while (steps < limit && power > 0 && sum(q.map(Math.abs)) > enough) {
      const RQ = R(Q(p)), Sp = p.map((x, i) => r[i] * x - a * RQ[i]), curve = dot(p, Sp);
      if (!(curve > 1e-13 * sum(p.map((x, i) => r[i] * x * x)))) break;
      const length = power / curve;
      mu = mu.map((x, i) => x + length * p[i]);
      q = q.map((x, i) => x - length * Sp[i]);
      steps++;
      const z = precondition(q), next = dot(q, z);
      p = z.map((x, i) => x + next / power * p[i]);
      power = next;
    }
    return [mu, steps];
  }

  /** SinkhornSort: the rows of an optimal transport plan, entropy tau, from the places (T2.5) of the scores to the milestones 0, 1/(n-1), ..., 1 at
      the cost |milestone - score|^power. Options: power (2), tolerance (1e-8), maxIterations (1000). Potentials by safeguarded Newton
      steps; the gradient by the implicit function theorem. Also tells ranks, residual, iterations and converged. */
  function sinkhorn(s, tau, {power = 2, tolerance = 1e-8, maxIterations = 1000, descending = false} = {}) {
    const n = s.length, a = 1 / n, logA = Math.log(a), places = placed(s), sign = descending ? -1 : 1;
    const all = places.x.map(v => sign * v), order = argsort(all), x = order.map(i => all[i]);
    const y = range(n).map(k => k / (n - 1) - (descending ? 1 : 0));
    const h = d => Math.abs(d) ** power, C = matrix(n, n, (j, i) => h(y[j] - x[i]) / tau);    // C[milestone][input]

    const lift = rows => rows.map(row => { const top = Math.max(...row); return -top - Math.log(sum(row.map(v => Math.exp(v - top)))); });
    const towards = F => lift(C.map(row => row.map((c, i) => F[i] + logA - c)));              // the exact answer G to F, and F to G
    const back = G => lift(range(n).map(i => C.map((row, j) => G[j] + logA - row[i])));
    const plan = (F, G) => C.map((row, j) => row.map((c, i) => Math.exp(F[i] + logA + G[j] - c)));
    const products = (F, G) => {
      const K = plan(F, G);
      return [p => K.map(row => dot(row, p)), t => range(n).map(i => sum(K.map((row, j) => row[i] * t[j])))];
    };
    const total = (F, G) => a * sum(F) + a * sum(G);

    function start(u, w) {                                                                     // unregularised prices, from sorting alone
      const f = [0];
      for (let k = 0; k + 1 < n; k++) f.push(f[k] + (h(w[k] - u[k + 1]) - h(w[k] - u[k]) + h(w[k + 1] - u[k + 1]) - h(w[k + 1] - u[k])) / 2);
      return f;
    }
    let F = start(x, y).map(f => f / tau), G = towards(F), D = total(F, G), before = Infinity, slow = false, count = 0, residual;
    for (;;) {
      const fresh = back(G), r = F.map((v, i) => a * Math.exp(Math.min(v - fresh[i], 80)));
      residual = sum(r.map(v => Math.abs(v - a)));
      if (!(residual > tolerance && count < maxIterations)) break;
      slow = slow || residual > 0.3 * before;
      let step = fresh.map((v, i) => v - F[i]);
      if (slow) {
        const [Q, R] = products(F, G), [steps, used] = conjugate(Q, R, a, r, r.map(v => a - v), Math.min(residual, 0.1), 200);
        const width = (Math.max(...steps) - Math.min(...steps)) / 2;
        step = steps.map(v => v / Math.max(width, 1));
        count += used;
      }
      const slope = sum(r.map((v, i) => (a - v) * step[i])), slack = 1e-13 * (1 + Math.abs(D));
      let F1, G1, D1;
      for (let k = 0, t = 1; k < 12; k++, t /= 2) {
        F1 = k < 11 ? F.map((v, i) => v + t * step[i]) : fresh;
        G1 = towards(F1);
        D1 = total(F1, G1);
        if (D1 >= D + 1e-4 * t * slope - slack) break;
      }
      [F, G, D, before] = [F1, G1, D1, residual];
      count++;
    }

    const K = plan(F, G), [Q, R] = products(F, G), place = argsort(order), ones = new Array(n).fill(1), row = R(ones), column = Q(ones);
    const tilt = matrix(n, n, (j, i) => power * Math.sign(y[j] - x[i]) * Math.abs(y[j] - x[i]) ** (power - 1) / tau);
    function gradient(j, input) {                                                              // (37.4), then to the scores
      const i = place[input], p = K[j][i], e = (k, v) => range(n).map(c => c === k ? v : 0);
      const gF = e(i, p), gG = e(j, p), pulled = R(gG.map((g, c) => g / column[c]));
      const normed = v => Q(v).map((q, c) => q / column[c]);
      const r = row.map(v => a * v), [mu] = conjugate(normed, R, a, r, gF.map((g, c) => g - pulled[c]), 1e-9, 500), q = Q(mu);
      const rho = mu.map((m, c) => m * r[c]), sigma = gG.map((g, c) => g - a * q[c]);
      const gx = x.map((_, c) => -sum(K.map((k, l) => k[c] * tilt[l][c] * (rho[c] / row[c] + sigma[l] / column[l]))));
      gx[i] += p * tilt[j][i];
      return places.back(range(n).map(c => sign * gx[place[c]]));
    }
    const P = K.map(k => place.map(i => k[i]));
    return {P, gradient, residual, iterations: count, converged: !(residual > tolerance),
            ranks: place.map(i => sum(K.map((k, j) => k[i] * (j + 1))))};
  }

  // ------------------------------------------------------------------ cells of mass one

  /** LapSum: each score is a Laplace bump of scale tau, the line is cut into cells of mass one, and P says what each cell holds of each bump.
      Thresholds by (44.5), each a neighbour and a distance from it in units of tau; their slopes by the implicit function theorem. */
  function lapsum(s, tau, {descending = false} = {}) {
    const n = s.length, sign = descending ? -1 : 1, z = s.map(x => sign * x), t = z.slice().sort((a, b) => a - b);
    const decay = (i, j) => Math.exp(-Math.abs(t[i] - t[j]) / tau);
    const L = range(n).map(i => sum(range(i + 1).map(j => decay(i, j)))), R = range(n).map(i => sum(range(n - i).map(k => decay(i, i + k))));
    const mass = range(n).map(i => i + 1 - L[i] / 2 + (R[i] - 1) / 2);                          // left of each score
    function threshold(i) {                                                                    // [neighbour, distance from it]
      const a = mass.filter(m => m <= i).length, C = a - i, l = a > 0 ? L[a - 1] : 0, r = a < n ? R[a] : 0, gap = a > 0 && a < n ? (t[a] - t[a - 1]) / tau : 0;
      const h = Math.log(Math.abs(C) + Math.sqrt(C * C + l * r * Math.exp(-gap)));
      const beta = C > 0 ? Math.log(l) - h : C < 0 ? gap - (Math.log(r) - h) : (gap + Math.log(l) - Math.log(r)) / 2;
      const gamma = C < 0 ? Math.log(r) - h : gap - beta;
      return a > 0 && (beta <= gamma || a === n) ? [t[a - 1], beta] : [t[a], -gamma];
    }
    const edges = range(n - 1).map(i => { const [x, d] = threshold(i + 1); return z.map(v => (x - v) / tau + d); });     // to each score, in units of tau
    const F = d => d < 0 ? Math.exp(d) / 2 : 1 - Math.exp(-d) / 2, below = [z.map(() => 0), ...edges.map(e => e.map(F)), z.map(() => 1)];
    const none = z.map(() => 0), density = [none, ...edges.map(e => e.map(d => Math.exp(-Math.abs(d)) / 2)), none];
    const pull = [none, ...edges.map(e => softmax(e.map(d => -Math.abs(d)))), none];              // of each score on a threshold
    function gradient(i, j) {
      const side = (l, k) => density[l][j] * (pull[l][k] - (j === k ? 1 : 0));
      return range(n).map(k => sign / tau * (side(i + 1, k) - side(i, k)));
    }
    return {P: matrix(n, n, (i, j) => below[i + 1][j] - below[i][j]), gradient};
  }

  // ------------------------------------------------------------------ ranks without a matrix

  /** The increasing sequence nearest to y: neighbours that fall are pooled into their mean. */
  function isotonic(y) {
    const blocks = [];
    for (const v of y) {
      blocks.push([v, 1]);
      while (blocks.length > 1 && blocks.at(-2)[0] > blocks.at(-1)[0]) {
        const [b, m] = blocks.pop(), [a, k] = blocks.pop();
        blocks.push([(a * k + b * m) / (k + m), k + m]);
      }
    }
    return blocks.flatMap(([v, m]) => new Array(m).fill(v));
  }

  /** The projection of z onto the permutahedron of w, both increasing (Prop 43.2). */
  function project(z, w) { const v = isotonic(z.map((x, i) => x - w[i])); return z.map((x, i) => x - v[i]); }

  /** Permutahedron, the quadratic one: ranks and sorted values, no matrix. */
  function permutahedron(s, tau, {descending = false} = {}) {
    const sign = descending ? -1 : 1, z = s.map(x => sign * x), order = argsort(z), t = order.map(i => z[i]), places = t.map((_, i) => i + 1);
    const r = project(t.map(x => x / tau), places), v = project(places.map(p => p / tau), t), at = argsort(order);
    return {ranks: at.map(i => r[i]), sorted: v.map(x => sign * x)};
  }

  /** LaplaceRank: one half and a Laplace step for every score, at its distance. No matrix, no sorted values. */
  function laplaceRanks(s, tau, {descending = false} = {}) {
    const step = u => u < 0 ? Math.exp(u) / 2 : 1 - Math.exp(-u) / 2, sign = descending ? -1 : 1;
    return {ranks: s.map(x => 0.5 + sum(s.map(y => step(sign * (x - y) / tau)))), sorted: null};
  }

  // ------------------------------------------------------------------ what a soft permutation gives

  /** The soft-sorted values P s. */
  function sorted(P, s) { return P.map(row => dot(row, s)); }

  /** How much of each input has been placed: the column sums of P. */
  function columnSums(P) { return P[0].map((_, j) => sum(P.map(row => row[j]))); }

  /** The soft ranks: the mean position of each input, counted from one. */
  function ranks(P) { return columnSums(P).map((weight, j) => sum(P.map((row, i) => (i + 1) * row[j])) / weight); }

  /** The loss of an order, -mean log P[i, order[i]], and its gradient; an entry below 1e-300 counts as that. */
  function orderLoss({P, gradient}, order) {
    const n = order.length, slope = new Array(P.length).fill(0);
    let loss = 0;
    order.forEach((j, i) => {
      const p = Math.max(P[i][j], 1e-300);
      loss -= Math.log(p) / n;
      gradient(i, j).forEach((g, k) => { slope[k] -= g / p / n; });
    });
    return {loss, slope};
  }

  /** The operators by the names that the page uses. */
  const OPERATORS = {
    softsort: (s, tau, options) => softsort(s, tau, {...options, power: 1}),
    softsort2: (s, tau, options) => softsort(s, tau, {...options, power: 2}),
    neuralsort, lapsum, sinkhorn,
    odd_even: (s, tau, options) => network(s, tau, {...options, kind: "odd_even"}),
    bitonic: (s, tau, options) => network(s, tau, {...options, kind: "bitonic"}),
  };

  const SOFTNESS = {softsort: 0.07, softsort2: 0.1, neuralsort: 0.1, lapsum: 0.06};
  const COMPARATORS = {logistic: 0.023, gaussian: 0.06, cauchy: 0.008, reciprocal: 0.0026, optimal: 0.04};

  /** How far scores lie apart: the distance of the quartiles, 0 if all are equal. */
  function spread(s) { return quartiles(s).width; }

  /** The temperature that an operator of the package takes from the scores when it is given none (6.1). */
  function defaultTau(name, s, {sigmoid = "cauchy"} = {}) {
    if (name === "sinkhorn") return 0.05 ** 2;
    const c = SOFTNESS[name] || COMPARATORS[sigmoid], width = spread(s) || 1 / c;
    if (name === "softsort2") return (c * width) ** 2;
    if (Object.hasOwn(SOFTNESS, name)) return c * width;
    const one = c * width * (name === "odd_even" ? 20 / s.length : 1);
    return sigmoid === "logistic" ? one ** 0.75 : one;                       // its distances are bent by the activation replacement
  }

  function check(names, name, s, tau) {
    if (!names.includes(name)) throw new RangeError(`operator must be one of ${names}, got ${name}`);
    if (!(s.length >= 2) || !s.every(Number.isFinite)) throw new RangeError(`scores must be two or more finite numbers, got ${s}`);
    if (!(tau > 0 && tau < Infinity)) throw new RangeError(`tau must be positive and finite, got ${tau}`);
  }

  /** Everything about one state: P, sorted, ranks, columnSums, gradient, and what else the operator tells. */
  function evaluate(name, s, tau, options = {}) {
    check(Object.keys(OPERATORS), name, s, tau);
    const result = OPERATORS[name](s, tau, options);
    return {ranks: ranks(result.P), ...result, sorted: sorted(result.P, s), columnSums: columnSums(result.P)};
  }

  /** The same where the scores at the indices `padded` are padding: the others alone, and zeros in the columns of the padding and in
      the last rows. */
  function evaluatePadded(name, s, tau, options, padded) {
    const real = range(s.length).filter(j => !padded.includes(j)), inner = evaluate(name, real.map(j => s[j]), tau, options);
    const n = s.length, m = real.length, zeros = () => new Array(n).fill(0);
    const spread = v => { const out = zeros(); real.forEach((j, k) => { out[j] = v[k]; }); return out; };
    const P = range(n).map(i => i < m ? spread(inner.P[i]) : zeros());
    const gradient = (i, j) => i < m && real.includes(j) ? spread(inner.gradient(i, real.indexOf(j))) : zeros();
    return {...inner, P, gradient, ranks: spread(inner.ranks), columnSums: spread(inner.columnSums), sorted: [...inner.sorted, ...new Array(n - m).fill(0)]};
  }

  const RANKS = {permutahedron, laplace: laplaceRanks};

  /** Ranks and sorted values (null where there are none), and P where there is one, of any operator, with or without a matrix. */
  function answers(name, s, tau, options = {}, padded = []) {
    if (Object.hasOwn(OPERATORS, name)) return evaluatePadded(name, s, tau, options, padded);
    const real = range(s.length).filter(j => !padded.includes(j));
    check([...Object.keys(OPERATORS), ...Object.keys(RANKS)], name, real.map(j => s[j]), tau);
    const inner = RANKS[name](real.map(j => s[j]), tau, options), out = s.map(() => 0);
    real.forEach((j, k) => { out[j] = inner.ranks[k]; });
    return {P: null, ranks: out, sorted: inner.sorted && [...inner.sorted, ...padded.map(() => 0)]};
  }

  const api = {argsort, softsort, neuralsort, lapsum, layers, erfc, network, placed, sinkhorn, sorted, ranks, columnSums, orderLoss, permutahedron, laplaceRanks, evaluate, evaluatePadded, answers, spread, defaultTau, names: Object.keys(OPERATORS), rankers: Object.keys(RANKS), sigmoids: Object.keys(SIGMOIDS)};
  root.softOperators = api;
  if (typeof module === "object" && module.exports) module.exports = api;
})(typeof globalThis === "object" ? globalThis : this);
