window.siteInternals = [];      // filled in by build_docs.py
// The order of search results, in place of the renderer's: every word of the query must occur, and what is named so comes
// before what mentions it. Fuzzy matching is left for a query that finds nothing otherwise. Read by build_docs.py.
const kind = (page) => /^(tutorials\/|howto)/.test(page) ? "tutorial" : /^api\b/.test(page) ? "API" : /^(experiments|benchmarks)\/|^statements/.test(page) ? "result"
  : /^engine\/|^lab\//.test(page) || window.siteInternals.includes(page.split("#")[0]) ? "internals" : /^(core|rowwise|networks|transport|ranks|selection|sampling|functional|losses)\//.test(page) ? "chapter" : "page";
window.softsortlibSearch = (index, query, limit, fuse) => {
  const squeeze = (s) => s.toLowerCase().replace(/[^a-z0-9]/g, "");
  const words = query.toLowerCase().split(/[\s,]+/).filter((w) => squeeze(w));
  const escape = (w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const whole = words.map((w) => new RegExp("(^|[^a-z0-9_])" + escape(w) + "(?![a-z0-9_])", "g"));
  const asked = squeeze(query);
  const score = (e) => {
    const heading = (e.section || e.title).toLowerCase(), text = e.text.toLowerCase(), page = e.href.split("#")[0];
    const all = `${e.title} ${e.section} ${text} ${page}`.toLowerCase(), solid = squeeze(`${e.title} ${e.section} ${page}`);
    if (!words.every((w) => all.includes(w) || solid.includes(squeeze(w)))) return 0;
    let points = 1;
    if (squeeze(heading) === asked) points += 100;
    else if (whole.every((w) => heading.match(w))) points += 50;
    else if (heading.split(/[^a-z0-9]+/).includes(asked)) points += 45;
    else if (squeeze(heading).includes(asked)) points += squeeze(heading).startsWith(asked) ? 25 : 20;
    const name = squeeze(page.replace(/^.*\/|\.html$/g, ""));
    if (name === asked) points += e.section ? 20 : 110;                                              // the page of that name
    else if (asked.length > 3 && name.startsWith(asked)) points += e.section ? 10 : 90;              // Sinkhorn: sinkhorn_sort.html
    if (!e.section && squeeze(e.title).includes(asked)) points += 40;
    points += whole.reduce((sum, w) => sum + Math.min(20, 8 * Math.log2(1 + (text.match(w) || []).length)), 0) / words.length;
    if (heading.includes(".") && !asked.includes(".")) points -= 15;                                 // a method, below its class
    if (page === "index.html") points += 12;
    if (page === "references.html") points -= 60;
    if (/^(tutorials\/|howto)/.test(page)) points += 6;
    if (kind(page) === "internals") points -= 25;
    if (/^api\b/.test(page)) points -= 10;                                                           // the chapter comes before its API
    if (/^(experiments|benchmarks)\//.test(page)) points -= 30;                                      // and before what was recorded with it
    return Math.max(points, 0.1);
  };
  for (const e of index) e.kind = e.kind || kind(e.href);
  const found = index.map((e) => [score(e), e]).filter(([points]) => points).sort((a, b) => b[0] - a[0]).slice(0, limit).map(([, e]) => e);
  return found.length || !fuse ? found : fuse.search(query, { limit }).map((h) => h.item);
};
