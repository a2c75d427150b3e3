// Opens what a link leads to, marks the section that is being read in the contents, and folds these where the window has no room beside the page.
(() => {
  const nav = document.querySelector("nav.contents"), menu = nav.querySelector("details"), here = menu.querySelector("summary > span");
  const links = [...nav.querySelectorAll("ol a")], narrow = matchMedia("(max-width: 80rem)");
  const at = (hash) => document.getElementById(decodeURIComponent(hash.slice(1)));
  const parts = links.map((link) => at(link.hash)), folds = [...document.querySelectorAll("details.section")];
  let marked = null, waiting = false;
  const mark = () => {
    waiting = false;
    let last = 0;
    parts.forEach((part, i) => { if (part && part.getBoundingClientRect().top < innerHeight / 3) last = i; });
    if (links[last] === marked) return;
    if (marked) marked.removeAttribute("aria-current");
    marked = links[last];
    marked.setAttribute("aria-current", "true");
    here.textContent = marked.textContent;
  };
  const open = (hash) => {
    const target = hash.length > 1 && at(hash);
    if (!target) return;
    let fold = target.querySelector(":scope > details.section") ?? target.closest("details");
    for (; fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  };
  const fit = () => { menu.open = !narrow.matches; };
  if (!links.length) return;
  if (folds.length) {
    const line = document.createElement("p"), button = document.createElement("button");
    line.className = "all";
    button.type = "button";
    const say = () => { button.textContent = folds.every((fold) => fold.open) ? "Fold all sections" : "Open all sections"; };
    button.addEventListener("click", () => { const all = folds.every((fold) => fold.open); folds.forEach((fold) => { fold.open = !all; }); });
    folds.forEach((fold) => fold.addEventListener("toggle", say));
    say();
    nav.append(line);
    line.append(button);
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    if (narrow.matches && menu.contains(link)) menu.open = false;
    open(link.hash);
  });
  addEventListener("hashchange", () => open(location.hash));
  addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(mark); } }, { passive: true });
  narrow.addEventListener("change", fit);
  fit();
  open(location.hash);
  mark();
})();
