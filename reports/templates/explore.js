"use strict";
// Replaces the page's main part by that of the next view, without a reload. Without this script every link still works.
(() => {
  let asked = null;
  const main = () => document.getElementById("main");
  const copies = () => {
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.hidden = false;
      button.onclick = async () => {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        button.textContent = "Copied";
      };
    }
  };
  const refuse = (form, why) => {  // what is wrong is said beside the field, and replaces nothing
    const said = form.querySelector(".refused") ?? form.appendChild(document.createElement("output"));
    said.className = "refused";
    said.textContent = why;
    main().classList.remove("busy");
  };
  const show = async (address, push, form) => {
    asked?.abort();
    const mine = asked = new AbortController();
    const open = [...document.querySelectorAll("details[id]")].filter((one) => one.open).map((one) => one.id);
    const shut = [...document.querySelectorAll("details[id]")].filter((one) => !one.open).map((one) => one.id);
    const focus = document.activeElement?.id, label = document.activeElement?.closest("form")?.getAttribute("aria-label");
    main().classList.add("busy");
    try {
      const answer = await fetch(address, { signal: mine.signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), next = page.getElementById("main");
      if (!answer.ok && form) { refuse(form, next.querySelector("#said").textContent); return; }
      if (!answer.ok) { location.assign(address); return; }
      for (const id of open) { const one = next.querySelector(`details[id="${id}"]`); if (one) one.open = true; }
      for (const id of shut) { const one = next.querySelector(`details[id="${id}"]`); if (one) one.open = false; }
      const at = scrollY;
      main().replaceWith(next);
      document.title = page.title;
      if (push) history.pushState(null, "", answer.url);
      scrollTo({ top: at, behavior: "instant" });
      const again = (focus && document.getElementById(focus)) || (label && document.querySelector(`form[aria-label="${CSS.escape(label)}"] button`));
      again?.focus({ preventScroll: true });
      copies();
    } catch (error) {
      if (error.name === "AbortError") return;
      main().classList.remove("busy");
      document.getElementById("said").textContent = "The server does not answer. Start it again, and open its new address with the words behind the question mark.";
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='./?']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    show(link.href, true);
  });
  document.addEventListener("keydown", (event) => {  // arrow keys step through the rounds, where they do nothing else
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], at = document.activeElement;
    if (!step || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (at !== document.body && !at.closest(".rounds")) return;
    const now = at.closest(".rounds a") ?? document.querySelector(".rounds a[aria-current]");
    const next = document.getElementById(`round-${Number(now.id.slice(6)) + step}`);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  document.addEventListener("submit", (event) => {
    event.preventDefault();
    show(`${event.target.action}?${new URLSearchParams(new FormData(event.target))}`, true, event.target);
  });
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form?.matches(".tile") || (form?.getAttribute("action") === "look" && event.target.matches("select, [type=checkbox]"))) form.requestSubmit();
  });
  addEventListener("popstate", () => show(location.href, false));
  copies();
})();
