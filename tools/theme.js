// One stylesheet for the mode in use: the other is fetched when the reader, or the system, switches.
window.siteTheme = (alt, done) => {
  const old = document.querySelector("link.quarto-color-scheme");
  if (!old) return;
  const href = old.href.replace(/[^/]*\.min\.css$/, (alt ? "darkly" : "cosmo") + ".min.css");
  if (href === old.href) return;
  const link = old.cloneNode();
  link.href = href;
  link.media = "all";
  link.onload = () => { old.remove(); done(); };
  old.classList.remove("quarto-color-scheme");
  old.after(link);
};
