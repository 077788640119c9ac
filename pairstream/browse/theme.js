"use strict";
// Colours of all pages: those of the system, or those chosen in the header, which this browser keeps.
(() => {
  const KEY = "pairstream-colours";
  function apply() {
    const chosen = localStorage.getItem(KEY), theme = ["light", "dark"].includes(chosen) ? chosen : "system";
    document.documentElement.dataset.theme = theme;
    for (const field of document.querySelectorAll("#colours")) field.value = theme;
    // Pages of NiceGUI have components of Quasar too.
    if (window.Quasar) Quasar.Dark.set(theme === "system" ? "auto" : theme === "dark");
  }
  // At once, so that a page is never drawn in the other colours; then for what came after this script.
  apply();
  document.addEventListener("DOMContentLoaded", apply);
  // The same choice in all open pages.
  window.addEventListener("storage", apply);
  document.addEventListener("change", (event) => {
    if (event.target.id !== "colours") return;
    localStorage.setItem(KEY, event.target.value);
    apply();
  });
})();
