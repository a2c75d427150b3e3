// Marks the section that is being read in the contents, and keeps its entry in sight where the contents are one line.
(() => {
  const links = [...document.querySelectorAll("nav.contents ol a")];
  const parts = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  let marked = null, waiting = false;
  const mark = () => {
    waiting = false;
    let at = 0;
    parts.forEach((part, i) => { if (part && part.getBoundingClientRect().top < innerHeight / 3) at = i; });
    if (links[at] === marked) return;
    if (marked) marked.removeAttribute("aria-current");
    marked = links[at];
    marked.setAttribute("aria-current", "true");
    const list = marked.closest("ol");
    list.scrollLeft = marked.offsetLeft - list.clientWidth / 3;
  };
  if (!links.length) return;
  addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(mark); } }, { passive: true });
  mark();
})();
