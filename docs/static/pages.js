// What furo's pages lack for the keyboard and for screen readers: boxes that scroll take the focus, regions have names.
for (const box of document.querySelectorAll(".table-wrapper, .cell_output .text_html")) box.tabIndex = 0;
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
for (const corner of document.querySelectorAll("table.dataframe th:empty")) corner.replaceWith(document.createElement("td"));
for (const [part, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "This page"], [".content-icon-container", "Source"]]) {
  const region = document.querySelector(part);
  if (region) region.setAttribute("aria-label", name);
  if (region && region.localName === "div") region.setAttribute("role", "region");
}
