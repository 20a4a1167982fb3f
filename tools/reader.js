
// What a reader does besides reading: open a section, find the current page, look at what a reference says, open a fold
// that an address points into. Read by build_docs.py.
(() => {
  "use strict";
  const $$ = (sel, root = document) => Array.from(root.querySelectorAll(sel));
  const offset = (document.querySelector('meta[name="smalldocs:offset"]') || { content: "./" }).content;
  const press = (button, target) => button.addEventListener("click", () => {
    const open = target.classList.toggle("show");
    button.setAttribute("aria-expanded", String(open));
  });
  $$(".sidebar-section-button").forEach((b) => press(b, document.getElementById(b.getAttribute("aria-controls"))));
  $$(".navbar-toggler").forEach((b) => press(b, document.getElementById("navbarCollapse")));

  // the sidebar shows the current page; on a phone the drawer does when it opens, Escape closes it
  const bar = document.getElementById("quarto-sidebar");
  const toCurrent = () => {
    const here = bar && bar.querySelector(".sidebar-link.active");
    if (here) bar.scrollTop = here.getBoundingClientRect().top - bar.getBoundingClientRect().top + bar.scrollTop - bar.clientHeight / 3;
  };
  toCurrent();
  $$(".quarto-btn-toggle").forEach((b) => {
    const tell = () => b.setAttribute("aria-expanded", String(bar.classList.contains("show")));
    tell();
    b.addEventListener("click", () => { tell(); toCurrent(); if (bar.classList.contains("show")) (bar.querySelector(".active") || bar.querySelector("a, button")).focus({ preventScroll: true }); });
    document.addEventListener("keydown", (ev) => { if (ev.key === "Escape" && bar.classList.contains("show")) { b.click(); b.focus(); } });
  });
  $$(".toc-phone a").forEach((a) => a.addEventListener("click", () => { a.closest("details").open = false; }));

  // on a small screen a tap opens a picture at full size
  const full = (picture) => {
    const box = document.createElement("dialog"), close = document.createElement("button"), large = picture.cloneNode(true);
    box.className = "full";
    box.setAttribute("aria-label", picture.alt || picture.getAttribute("aria-label") || "picture");
    close.textContent = "close";
    large.style.width = `${Math.max(picture.naturalWidth || 0, 1.6 * picture.getBoundingClientRect().width)}px`;
    large.style.height = "auto";
    box.append(close, large);
    document.body.append(box);
    box.addEventListener("click", () => box.close());
    box.addEventListener("close", () => box.remove());
    box.showModal();
  };
  const openable = () => {
    $$("main :is(.cell-output-display img, svg.drawing)").filter((p) => innerWidth <= 991 && !p.closest("button, a")).forEach((p) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "picture";
      p.replaceWith(button);
      button.append(p);
      button.addEventListener("click", () => full(p));
    });
  };
  window.addEventListener("load", openable);
  window.addEventListener("resize", openable);

  // an address that leads into a fold opens it
  const unfold = () => {
    const to = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    while (to && to.closest("details:not([open])")) to.closest("details:not([open])").open = true;
    const own = to && to.querySelector(":scope > details.section-fold");
    if (own) own.open = true;
    if (to) to.scrollIntoView({ behavior: "instant" });       // formulas above it have changed their height since the browser went there
  };
  window.addEventListener("hashchange", unfold);
  window.addEventListener("load", unfold);
  unfold();

  // a link to a statement, an equation or a source shows what stands there
  let loading = null, shown = null;
  const notes = () => loading = loading || new Promise((done) => {
    const s = document.createElement("script");
    s.src = offset + "notes.js";
    s.onload = () => done(window.siteNotes || {});
    s.onerror = () => done({});
    document.head.append(s);
  });
  const root = new URL(offset, location.href).href;
  const hide = () => { if (shown) { shown.link.removeAttribute("aria-describedby"); shown.box.remove(); shown = null; } };
  const show = async (link) => {
    if (shown && shown.link === link) return;
    hide();
    const said = (await notes())[link.href.startsWith(root) ? link.href.slice(root.length) : link.href];
    if (!said || !link.matches(":hover, :focus")) return;
    const box = document.createElement("div");
    box.className = "ref-note";
    box.id = "ref-note";
    box.setAttribute("role", "tooltip");
    box.innerHTML = said;
    document.body.append(box);
    if (window.renderMathInElement) window.renderMathInElement(box, { delimiters: [{ left: "\\[", right: "\\]", display: true }, { left: "\\(", right: "\\)", display: false }], throwOnError: false });
    const at = link.getBoundingClientRect(), high = box.offsetHeight;
    box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8)) + scrollX}px`;
    box.style.top = `${(at.bottom + high + 12 < innerHeight ? at.bottom + 6 : Math.max(8, at.top - high - 6)) + scrollY}px`;
    link.setAttribute("aria-describedby", "ref-note");
    shown = { link, box };
  };
  $$('main a.ref, main a[href*="references.html#"]').forEach((a) => {
    a.addEventListener("mouseenter", () => show(a));
    a.addEventListener("focus", () => show(a));
    a.addEventListener("mouseleave", () => setTimeout(() => { if (shown && !shown.box.matches(":hover")) hide(); }, 150));
    a.addEventListener("blur", hide);
  });
  document.addEventListener("keydown", (ev) => { if (ev.key === "Escape") hide(); });
  document.addEventListener("click", (ev) => { if (shown && !shown.box.contains(ev.target)) hide(); });
})();
