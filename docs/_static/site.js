/* A table that does not fit, or is cramped, is marked: on a phone its rows are shown as lists. */
function markWideTables() {
  for (const table of document.querySelectorAll("table.docutils")) {
    const columns = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const cell of table.querySelectorAll("tbody td")) {
      cell.dataset.column = columns[cell.cellIndex];
    }
    table.classList.remove("wide");
    const box = table.parentElement;
    const tall = [...table.rows].some((row) => row.offsetHeight > 100);
    table.classList.toggle("wide", box.scrollWidth > box.clientWidth || (tall && columns.length > 2));
  }
}

addEventListener("DOMContentLoaded", markWideTables);
addEventListener("resize", markWideTables);

/* On a phone, the page's contents cover it: a chosen section shuts them. */
addEventListener("hashchange", () => {
  document.getElementById("__toc").checked = false;
});

/* Browsers let no file read another one: opened from files, the search shows titles alone. */
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
