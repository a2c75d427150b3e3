"use strict";
// Draws an attention view when its <details> is first opened; those open from the start are drawn at once.
(() => {
  const draw = (details) => {
    if (details.dataset.drawn) return;
    details.dataset.drawn = "yes";
    const target = details.querySelector(".view > div");
    const props = JSON.parse(details.querySelector("script").textContent);
    CircuitsVis.render(target.id, CircuitsVis.AttentionHeads, props);
  };
  for (const details of document.querySelectorAll("details.attention")) {
    details.addEventListener("toggle", () => details.open && draw(details));
    if (details.open) draw(details);
  }
})();
