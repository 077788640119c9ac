"use strict";
// Tables and diagrams that scroll sideways can be reached and moved by the keyboard, and have a name for screen readers.
(() => {
  function name(box) {
    const headings = [...document.querySelectorAll(".md-typeset :is(h1, h2, h3, h4)")];
    const above = headings.filter((heading) => heading.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING);
    const heading = above.at(-1)?.firstChild?.textContent.trim() || document.title;
    return `${box.querySelector("table") ? "Table" : "Diagram"}: ${heading}`;
  }
  function mark() {
    for (const box of document.querySelectorAll('.md-typeset__scrollwrap, .md-typeset p:has(> img[src*="diagram-"])')) {
      if (box.scrollWidth <= box.clientWidth) {
        for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
        continue;
      }
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", name(box));
    }
  }
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // The theme wraps tables when the page is ready; pictures and windows change their widths later.
  window.addEventListener("load", mark);
  window.addEventListener("resize", mark);
})();
