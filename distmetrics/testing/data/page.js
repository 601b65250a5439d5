"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const [table, dialog, filters] = [byId("matrix"), byId("case"), byId("filters")];
  const rows = [...table.tBodies[0].rows];
  const FIRST = 2; // cells before the first law: metric and run
  const inputs = { q: byId("text"), law: byId("law"), package: byId("package"), sync: byId("sync"), only: byId("only") };

  const element = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // ---- cells: row index and law index of each
  const place = (cell) => [rows.indexOf(cell.parentElement), cell.cellIndex - FIRST];
  const cellAt = (row, law) => rows[row] && rows[row].cells[law + FIRST];
  const isShown = (cell) => !cell.parentElement.hidden && cell.offsetParent !== null;
  const keyOf = (row, law) => `${data.rows[row].key}/${data.laws[law].name}`;
  const violated = () => [...table.querySelectorAll("tbody tr:not([hidden]) td.v")].filter(isShown);

  let active = null;
  const activate = (cell, focus = true) => {
    if (!cell || cell.classList.contains("error")) return;
    if (active) active.tabIndex = -1;
    active = cell;
    cell.tabIndex = 0;
    if (focus) {
      cell.focus({ preventScroll: true });
      cell.scrollIntoView({ block: "center", inline: "nearest" });
    }
  };

  // ---- the state of the page is its hash: a link to what is seen
  const read = () => new URLSearchParams(location.hash.slice(1));
  const save = (changes) => {
    const state = read();
    for (const [name, value] of Object.entries(changes)) value ? state.set(name, value) : state.delete(name);
    history.replaceState(null, "", String(state) ? `#${state}` : location.pathname + location.search);
  };

  // ---- filters
  const matches = (index, row, wanted) => {
    if (wanted.package && row.package !== wanted.package) return false;
    if (wanted.sync && row.sync !== wanted.sync) return false;
    if (wanted.q && !wanted.q.split(/\s+/).every((word) => row.text.includes(word))) return false;
    const cell = wanted.law < 0 ? null : cellAt(index, wanted.law);
    if (wanted.law >= 0 && (!cell || !cell.className || cell.classList.contains("error"))) return false;
    if (wanted.only) return cell ? cell.classList.contains("v") : row.cases.length > 0;
    return true;
  };
  const filter = () => {
    const wanted = {
      q: inputs.q.value.trim().toLowerCase(),
      law: inputs.law.value ? data.laws.findIndex((law) => law.name === inputs.law.value) : -1,
      package: inputs.package.value, sync: inputs.sync.value, only: inputs.only.checked,
    };
    let shown = 0;
    data.rows.forEach((row, index) => {
      const visible = matches(index, row, wanted);
      if (rows[index].hidden === visible) rows[index].hidden = !visible;
      shown += visible;
    });
    const hidden = data.laws.map((_, law) => law).filter((law) => wanted.law >= 0 && law !== wanted.law);
    byId("columns").textContent = hidden.length
      ? hidden.map((law) => `#matrix tr > :nth-child(${law + FIRST + 1})`).join(",") + "{display:none}" : "";
    byId("none").hidden = shown > 0;
    const found = violated();
    byId("shown").textContent = `${shown} of ${rows.length} runs, ${found.length} violated cells shown`;
    if (!active || !isShown(active)) {
      const row = rows.find((one) => !one.hidden && one.cells.length > FIRST + 1);
      activate(found[0] || (row && [...row.cells].slice(FIRST).find(isShown)), false);
    }
  };
  const changed = () => {
    save({ q: inputs.q.value.trim(), law: inputs.law.value, package: inputs.package.value, sync: inputs.sync.value, only: inputs.only.checked ? "1" : "" });
    filter();
  };
  filters.addEventListener("input", changed);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(changed));

  // ---- a case
  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or not a secure context
      const area = element("textarea", text);
      dialog.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const perRank = (one) => {
    const made = element("table");
    const head = element("tr");
    for (const name of ["rank", "shard", "got"]) head.append(element("th", name, { scope: "col" }));
    made.append(head);
    for (let rank = 0; rank < Math.max(one.shards.length, one.got.length); rank++) {
      const line = element("tr");
      line.append(element("th", String(rank), { scope: "row" }), element("td", one.shards[rank] ?? ""), element("td", one.got[rank] ?? ""));
      made.append(line);
    }
    return made;
  };
  const violation = (one) => {
    const made = element("section");
    if (one.detail) made.append(element("p", one.detail, { class: "detail" }));
    made.append(element("h3", "Expected"), element("pre", one.expected));
    if (one.shards.length || one.got.length) made.append(element("h3", "Shards, and what each rank got"), perRank(one));
    if (one.snippet) {
      const button = element("button", "Copy", { class: "copy" });
      button.addEventListener("click", () => copy(one.snippet, button));
      const bar = element("div", "", { class: "bar" });
      bar.append(element("h3", "Run it"), button);
      made.append(bar, element("pre", one.snippet, { class: "snippet" }));
    }
    return made;
  };
  const describe = (cell) => {
    const [index, at] = place(cell);
    const [row, law] = [data.rows[index], data.laws[at]];
    byId("case-title").textContent = `${row.metric}: ${law.name}`;
    const body = byId("case-body");
    body.replaceChildren(element("p", `Law ${law.number}: ${law.title}`), element("p", row.how, { class: "dim" }));
    const found = row.cases.filter((one) => one.law === at);
    if (found.length) body.append(...found.map(violation));
    else if (cell.title) body.append(element("p", `${cell.classList.contains("f") ? "Declared off" : "Skipped"}: ${cell.title}`));
    else body.append(element("p", cell.classList.contains("o") ? "Holds in every example that was run." : "Not judged."));
    return [index, at];
  };
  const open = (cell) => {
    activate(cell, false);
    save({ case: keyOf(...describe(cell)) });
    const any = violated().length > 0;
    byId("next").disabled = byId("previous").disabled = !any;
    if (!dialog.open) dialog.showModal();
    byId("close").focus();
  };
  const step = (by) => {
    const found = violated();
    if (!found.length) return null;
    const order = (cell) => place(cell)[0] * data.laws.length + place(cell)[1];
    const here = active ? order(active) : -1;
    const next = by > 0 ? found.find((cell) => order(cell) > here) : found.findLast((cell) => order(cell) < here);
    return next || found.at(by > 0 ? 0 : -1);
  };
  dialog.addEventListener("close", () => { save({ case: "" }); if (active) activate(active); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  byId("close").addEventListener("click", () => dialog.close());
  byId("next").addEventListener("click", () => open(step(1)));
  byId("previous").addEventListener("click", () => open(step(-1)));

  // ---- mouse and keyboard in the matrix
  const cellOf = (target) => {
    const cell = target.closest && target.closest("#matrix tbody td");
    return cell && !cell.classList.contains("how") && !cell.classList.contains("error") ? cell : null;
  };
  table.addEventListener("click", (event) => { const cell = cellOf(event.target); if (cell) open(cell); });
  const walk = (row, law, down, right) => {
    for (row += down, law += right; row >= 0 && row < rows.length && law >= 0 && law < data.laws.length; row += down, law += right) {
      const cell = cellAt(row, law);
      if (cell && isShown(cell) && !cell.classList.contains("error")) return activate(cell);
    }
  };
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event.target);
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, law] = place(cell);
    if (MOVES[event.key]) walk(row, law, ...MOVES[event.key]);
    else if (event.key === "Home") walk(row, -1, 0, 1);
    else if (event.key === "End") walk(row, data.laws.length, 0, -1);
    else if (event.key === "Enter" || event.key === " ") open(cell);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const by = { n: 1, p: -1 }[event.key];
    if (by && dialog.open && violated().length) open(step(by));
    else if (by) activate(step(by));
    else if (event.key === "/" && !dialog.open) inputs.q.focus();
    else return;
    event.preventDefault();
  });

  // ---- what the link asks for
  const restore = () => {
    const state = read();
    for (const [name, input] of Object.entries(inputs)) {
      if (input.type === "checkbox") input.checked = state.get(name) === "1";
      else input.value = state.get(name) || "";
    }
    filter();
    const wanted = state.get("case");
    const cut = wanted ? wanted.lastIndexOf("/") : -1;
    const row = data.rows.findIndex((one) => cut > 0 && one.key === wanted.slice(0, cut));
    const law = data.laws.findIndex((one) => cut > 0 && one.name === wanted.slice(cut + 1));
    const cell = row < 0 || law < 0 ? null : cellAt(row, law);
    if (cell && !cell.classList.contains("error")) { activate(cell); open(cell); }
    else if (dialog.open) dialog.close();
  };
  addEventListener("hashchange", restore);
  data.rows.forEach((row, index) => {
    const cells = [...rows[index].cells].slice(FIRST);
    for (const cell of cells) cell.tabIndex = -1;
    const said = cells.map((cell) => cell.title || (cell.classList.contains("error") ? cell.textContent : ""));
    row.text = [row.metric, row.package, row.how, ...said, ...row.cases.map((one) => one.detail)].join("\n").toLowerCase();
  });
  restore();
})();
