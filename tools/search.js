// The order of search results, from the index that search_index.py writes: each word of the question counts by the field where a
// section has it, and rare words count more. A word that the index lacks stands for those that begin or go on with it, or differ by
// a letter or two. Read by build_docs.py.
// what people call things, and what these pages call them
const searchAlso = { gpu: "cuda triton device", cuda: "gpu triton", pad: "mask", padd: "mask pad", variabl: "different", ragg: "list length", uneven: "different", length: "list", accuracy: "right share", annealing: "schedul temperatur", anneal: "schedul temperatur", temperatur: "tau", tau: "temperatur",
  steepnes: "temperatur tau", regularization: "temperatur tau", regularisation: "temperatur tau", strength: "tau", hyperparameter: "temperatur", hard: "straight forward", ste: "straight", estimator: "straight", nan: "infinit", inf: "nan", slow: "first cold", warmup: "first", jit: "compil first", speed: "time cost", fast: "speed", memory: "mib", fp16: "half precision", bf16: "bfloat16 half precision",
  bfloat16: "half precision", float16: "half precision", amp: "half precision", reproducible: "seed", reproducibl: "seed", deterministic: "seed same", random: "seed", duplicate: "ti", duplicat: "ti", equal: "ti", cite: "citation bibtex", citation: "cit", bibtex: "cit", ddp: "device process", distribut: "device process", multi: "several", parallel: "device process",
  moe: "router", expert: "router", nearest: "knn", neighbour: "knn", learn: "", ltr: "rank", ndcg: "rank", lambdarank: "lambda", lambdamart: "lambda", retrieval: "rank", recommendation: "rank", pypi: "install", pip: "install", download: "install", paper: "publish method", implement: "method", alternative: "librar", library: "librar", fail: "mistak", vanish: "mistak", zero: "exact", mixtur: "router", emd: "transport", wasserstein: "transport", wrong: "mistak", outlier: "robust", trimm: "robust", percentil: "quantil", percentile: "quantil", reinforc: "policy", shape: "" };
const searchStem = (word) => {
  for (const [a, b] of window.searchIndex.spelling) word = word.replaceAll(a, b);
  if (word.length > 4 && word.endsWith("ies")) word = word.slice(0, -3) + "y";
  else if (word.length > 3 && word.endsWith("s") && (word.length === 4 || !/(ss|us|is)$/.test(word))) word = word.slice(0, -1);
  if (word.length > 5 && word.endsWith("ing")) word = word.slice(0, -3);
  else if (word.length > 4 && word.endsWith("ed")) word = word.slice(0, -2);
  if (word.length > 3 && word.at(-1) === word.at(-2) && !"sle".includes(word.at(-1))) word = word.slice(0, -1);
  return word.length > 3 && word.endsWith("e") ? word.slice(0, -1) : word;
};
// how many letters are to be changed, put in, left out or swapped with the next, if at most `most`
const searchDistance = (a, b, most) => {
  if (Math.abs(a.length - b.length) > most) return most + 1;
  let before = [], row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
    }
    if (Math.min(...next) > most) return most + 1;
    [before, row] = [row, next];
  }
  return row[b.length];
};
const searchKinds = { tutorial: 1.4, page: 1.15, chapter: 1, API: 0.8, result: 0.85, internals: 0.4 };
const searchWeak = new Set("differentiabl soft smooth torch pytorch python function softsortlib loss result".split(" "));      // words that are everywhere here
window.softsortlibSearch = (index, query, limit) => {
  const { pages, sections, words } = index, vocabulary = index.vocabulary ||= Object.keys(words);
  const read = (word) => {         // [[section, weight]] of a word
    let at = 0;
    return typeof words[word] !== "string" ? words[word] : words[word] = [...words[word].matchAll(/([0-9a-z]+)([A-Z])/g)].map((m) => [at += parseInt(m[1], 36), m[2].charCodeAt(0) - 64]);
  };
  const asked = query.toLowerCase().replace(/\btop[- ]?k\b/g, "topk").split(/[^a-z0-9_]+/).map((w) => w.replaceAll("_", "")).filter(Boolean);
  let kept = asked.filter((w) => !index.stop.includes(w) && !/^\d$/.test(w));
  if (!kept.length) kept = asked;
  const known = (word) => Object.hasOwn(words, word);
  const standsFor = (word) => {    // {word of the index: how well it fits}
    const fits = {}, base = searchStem(word), put = (w, q) => { if (known(w)) fits[w] = Math.max(fits[w] || 0, q); };
    put(word, 1); put(base, 1);
    const exact = Object.keys(fits).length > 0;
    if (base.length > 2) for (const w of vocabulary) {
      if (w.startsWith(base)) put(w, exact ? 0.45 : 0.8);
      else if (base.length > 3 && w.includes(base)) put(w, exact ? 0.25 : 0.6);
    }
    for (const w of (searchAlso[word] ?? searchAlso[base] ?? "").split(" ").filter(Boolean)) { put(w, 0.6); put(searchStem(w), 0.6); }
    if (base.length > 3 && !(exact && read(base in words ? base : word).length > 12) && !searchAlso[base] && !searchAlso[word]) {        // a typing error, or a rare word like one
      const most = !exact && base.length > 7 ? 2 : 1, close = (d) => exact ? 0.5 : d < 2 ? 0.8 : 0.5;
      for (const w of vocabulary) { const d = searchDistance(base, w, most); if (d <= most) put(w, close(d)); }
      if (!exact) for (const w in searchAlso) if (searchDistance(word, w, 1) < 2) for (const [v, q] of Object.entries(standsFor(w))) put(v, 0.9 * q);
    }
    if (!exact) for (let i = 1; i < word.length; i++) put(searchStem(word.slice(0, i - 1) + word[i] + word[i - 1] + word.slice(i + 1)), 0.8);      // two letters swapped
    return fits;
  };
  const total = sections.length, idf = (w) => Math.log(1 + total / read(w).length);
  const groups = kept.map((w) => [standsFor(w), 1]);
  kept.slice(1).forEach((w, i) => { const pair = kept[i] + w; for (const p of [pair, searchStem(pair)]) if (known(p)) groups.push([{ [p]: 1 }, 0]); });     // soft sort is SoftSort
  const points = new Float64Array(total), covered = new Float64Array(total), onPage = groups.map(() => new Float64Array(pages.length));
  let whole = 0;
  groups.forEach(([fits, needed], g) => {
    const best = new Map(), names = Object.keys(fits);
    const weak = needed && kept.length > 1 && [...searchWeak].some((w) => searchDistance(searchStem(kept[g]), w, w.length > 7 ? 1 : 0) < 2 - (w.length < 8)) ? 0.3 : 1;
    const rarest = weak * (names.length ? Math.min(...names.filter((w) => fits[w] === Math.max(...Object.values(fits))).map(idf)) : 4);
    if (needed) whole += rarest;
    for (const w of names) for (const [section, weight] of read(w)) {
      const value = fits[w] * weight * Math.min(idf(w), rarest);
      if (value > (best.get(section) || 0)) best.set(section, value);
    }
    for (const [section, value] of best) if (!sections[section][2]) onPage[g][sections[section][0]] = value;
    sections.forEach(([page], section) => {
      const value = Math.max(best.get(section) || 0, 0.35 * onPage[g][page]);
      points[section] += value;
      if (needed && value) covered[section] += rarest * Math.min(1, 0.4 + value / (8 * rarest));
    });
  });
  const whole_ = kept.map(searchStem).join("");
  const score = (section) => {
    const [page, , heading] = sections[section], [href, title, kind] = pages[page];
    const name = searchStem((heading || title).toLowerCase().replace(/[^a-z0-9]/g, ""));
    let value = points[section] * (covered[section] / whole) ** 1.5 * (searchKinds[kind] || 1);
    if (/^(references|statements|api|api.(lab|experiments))\.html/.test(href)) return 0.1 * value;
    if (/^methods\.html/.test(href)) value *= 0.7;                       // lists of everything
    if (name === whole_ || name.length > 7 && searchDistance(name, whole_, 1) < 2) value *= heading ? 1.6 : kind === "internals" ? 4 : 2;
    return value;
  };
  const found = sections.map((_, section) => [points[section] ? score(section) : 0, section]).filter(([value]) => value).sort((a, b) => b[0] - a[0]), shown = {};
  for (const hit of found) hit[0] *= 0.6 ** (shown[sections[hit[1]][0]] = (shown[sections[hit[1]][0]] ?? -1) + 1);       // the second section of a page comes after other pages
  const best = found.sort((a, b) => b[0] - a[0]), least = best.length ? best[0][0] * 0.04 : 0;
  return best.filter(([value]) => value > least).slice(0, limit).map(([, section]) => {
    const [page, anchor, heading, text] = sections[section], [href, title, kind] = pages[page];
    return { href: anchor ? `${href}#${anchor}` : href, title, section: heading, text, kind };
  });
};
