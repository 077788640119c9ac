"use strict";
// Search, filters and order of the table of datasets; they are in the page's address too.
(() => {
  const table = document.getElementById("datasets"), body = table.tBodies[0], rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells], fields = [...document.querySelectorAll("[data-filter]")];
  const shown = document.getElementById("shown"), parameters = new URLSearchParams(location.search);
  const valueOf = (row, column) => {
    const cell = row.cells[column], value = cell && (cell.dataset.sort ?? cell.textContent);
    return value === undefined || value === "" || isNaN(value) ? value : Number(value);
  };
  function compare(first, second) {
    if (typeof first === "number" && typeof second === "number") return first - second;
    // A dataset without the value comes last.
    return !first - !second || String(first).localeCompare(String(second));
  }
  function update() {
    const column = headings.findIndex((heading) => heading.textContent && heading.textContent === parameters.get("sort"));
    const direction = parameters.has("down") ? -1 : 1;
    const order = column < 0 ? rows : [...rows].sort((one, two) => direction * compare(valueOf(one, column), valueOf(two, column)));
    body.append(...order);
    headings.forEach((heading, at) => heading.ariaSort = !heading.textContent ? null : at !== column ? "none" : direction > 0 ? "ascending" : "descending");
    for (const row of rows) {
      row.hidden = !fields.every((field) => !field.value || (field.type === "search"
        ? row.dataset.text.toLowerCase().includes(field.value.toLowerCase()) : row.dataset[field.name] === field.value));
    }
    const count = rows.filter((row) => !row.hidden).length;
    shown.textContent = count === rows.length ? "" : count ? `${count} of ${rows.length} datasets` : "No dataset matches.";
    document.getElementById("clear").hidden = count === rows.length;
    if (location.protocol !== "file:") history.replaceState(null, "", parameters.size ? `?${parameters}` : location.pathname);
  }
  const set = (name, value) => value ? parameters.set(name, value) : parameters.delete(name);
  for (const field of fields) {
    field.value = parameters.get(field.name) ?? "";
    field.addEventListener("input", () => { set(field.name, field.value); update(); });
  }
  headings.filter((heading) => heading.textContent).forEach((heading) => heading.firstChild.addEventListener("click", () => {
    const again = parameters.get("sort") === heading.textContent;
    set("down", again && !parameters.has("down") ? "1" : "");
    set("sort", heading.textContent);
    update();
  }));
  document.getElementById("clear").addEventListener("click", () => {
    for (const field of fields) { field.value = ""; parameters.delete(field.name); }
    update();
  });
  update();
})();
