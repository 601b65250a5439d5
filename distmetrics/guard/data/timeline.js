"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const [main, field, dialog, tip, filters] = ["timeline", "lanes", "call", "tip", "filters"].map(byId);
  const inputs = { q: byId("text"), group: byId("group"), odd: byId("odd") };
  const ROW = 22, COLOURS = 6, MOST = 60; // pixels of a row of a lane; colours of groups; rows of a table
  const SECOND = 1 / data.unit;

  const element = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // ---- what was packed
  const kinds = data.kinds.map(([number, group, op, detail, site]) => {
    const kind = { number, group, name: data.groups[group], op: data.texts[op], detail: data.texts[detail], site: data.texts[site] };
    kind.text = [kind.op, kind.detail, kind.site].join("\n").toLowerCase();
    kind.marked = Boolean(data.mark) && data.mark.group === group && data.mark.number === number;
    return kind;
  });
  const lanes = data.lanes.map((packed, index) => {
    const lane = { index, ranks: packed.ranks, hosts: data.texts[packed.hosts], pid: packed.pid, silent: Boolean(packed.silent), odd: Boolean(packed.odd) };
    [lane.state, lane.stack, lane.absent] = [packed.state, packed.stack, packed.absent].map((at) => at === undefined ? "" : data.texts[at]);
    lane.isAbsent = packed.absent !== undefined;
    let start = 0;
    lane.calls = [];
    for (let at = 0, place = 0; at < packed.calls.length; at += 3, place++) {
      const length = packed.calls[at + 2];
      start += packed.calls[at + 1];
      const call = { kind: kinds[packed.calls[at]], start, end: length < 0 ? Infinity : start + length, took: length < 0 ? -1 - length : length };
      if (packed.late) [call.spread, call.last] = [packed.late[2 * place], packed.late[2 * place + 1]];
      lane.calls.push(call);
    }
    lane.text = [lane.ranks, lane.hosts, lane.state, lane.stack, lane.absent, lane.silent ? "left no file" : ""].join("\n").toLowerCase();
    return lane;
  });
  // Calls that overlap, as those of several threads do, lie below each other: a group keeps to a row of its lane
  const overlap = (one, other) => one.start < other.end && other.start < one.end;
  const pack = (lane) => {
    const free = (row, calls) => calls.every((call) => row.every((other) => !overlap(call, other)));
    const rows = [];
    const add = (calls) => {
      let at = rows.findIndex((row) => free(row, calls));
      if (at < 0) at = rows.push([]) - 1;
      rows[at].push(...calls);
      for (const call of calls) call.row = at;
    };
    for (const group of data.groups.keys()) {
      const calls = lane.calls.filter((call) => call.kind.group === group);
      if (calls.every((call, at) => at === 0 || !overlap(calls[at - 1], call))) add(calls);
      else for (const call of calls) add([call]);
    }
    return rows.length;
  };
  for (const lane of lanes) {
    const apart = lane.calls.every((call, at) => at === 0 || lane.calls[at - 1].end <= call.start);
    for (const call of lane.calls) call.row = 0;
    lane.height = 8 + ROW * (apart ? 1 : Math.max(1, pack(lane)));
  }

  // ---- times
  const duration = (units) => {
    const seconds = Math.abs(units) / SECOND;
    if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
    if (seconds < 1) return `${+(seconds * 1e3).toPrecision(3)} ms`;
    if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
    return seconds < 7200 ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s` : `${+(seconds / 3600).toPrecision(3)} h`;
  };
  const zero = data.mark ? data.mark.at : 0;
  const clock = (units) => {
    const date = new Date((data.origin + units / SECOND) * 1000);
    return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().replace("T", " ").replace("Z", "")} UTC`;
  };
  const events = () => lanes.flatMap((lane) => lane.calls.flatMap((call) => call.end === Infinity ? [call.start] : [call.start, call.end]));
  const bounds = (() => {
    let [first, last] = [0, 0];
    for (const time of events()) { if (time < first) first = time; if (time > last) last = time; }
    const wide = Math.max(last - first, 1);
    // A long wait at the end needs no room: the axis goes on for a fifth, and the bars say how long it was
    return [first - wide * 0.02, Math.min(Math.max(data.end, last + wide * 0.05), last + wide * 0.25) + 1];
  })();
  let view = [...bounds];
  const place = (time) => (time - view[0]) / (view[1] - view[0]) * 100;

  const around = () => { // the last calls before the ranks part, and as much after it
    if (!data.mark) return [...bounds];
    const starts = [...new Set(lanes.slice(0, 200).flatMap((lane) => lane.calls.filter((call) => call.start < data.mark.at).map((call) => call.start)))].sort((a, b) => b - a);
    const many = lanes.slice(0, 200).reduce((most, lane) => Math.max(most, lane.calls.length), 1);
    const step = Math.max(1, Math.floor(starts.length / many));
    const back = starts[Math.min(starts.length - 1, 6 * step)];
    const before = Math.max(back === undefined ? 0 : data.mark.at - back, SECOND / 1000);
    return [data.mark.at - before * 1.1, data.mark.at + before * 0.9];
  };
  const look = (from, to) => {
    const wide = Math.min(Math.max(to - from, 10), (bounds[1] - bounds[0]) * 50, Number.MAX_SAFE_INTEGER);
    view = [from, from + wide];
    draw();
  };
  const zoom = (by, at = 0.5) => {
    const wide = view[1] - view[0], middle = view[0] + wide * at;
    look(middle - wide * by * at, middle + wide * by * (1 - at));
  };

  // ---- drawing: only the lanes in sight are in the document
  let shown = lanes, tops = [0]; // the lanes that the filters leave; where each begins, and where the last ends
  let wanted = { q: [], group: -1, odd: false };
  let active = null; // [lane, call] that the keyboard is at
  const fits = (call) => (wanted.group < 0 || call.kind.group === wanted.group);
  const speaks = (lane, call) => wanted.q.every((word) => lane.text.includes(word) || call.kind.text.includes(word));
  const title = (kind) => kind.detail ? `${kind.op} ${kind.detail}` : kind.op;

  const bar = (lane, call, at) => {
    const open = call.end === Infinity;
    const left = Math.max(place(call.start), -1), right = open ? 100 : Math.min(place(call.end), 101);
    if (left > 100 || right < 0) return null;
    const made = element("button", "", { type: "button", class: `bar g${call.kind.group % COLOURS}`, tabindex: "-1", "data-at": `${lane.index}/${at}` });
    made.textContent = open ? `${title(call.kind)} · no end after ${duration(call.took)}` : title(call.kind);
    made.setAttribute("aria-label", `${lane.ranks}: ${call.kind.name} call ${call.kind.number}, ${made.textContent}`);
    made.classList.toggle("open", open);
    made.classList.toggle("part", call.kind.marked);
    made.classList.toggle("thin", right - left < 2.5);
    made.classList.toggle("faint", !(fits(call) && speaks(lane, call)));
    Object.assign(made.style, { left: `${left}%`, width: `${right - left}%`, top: `${4 + call.row * ROW}px`, height: `${ROW - 1}px` });
    if (active && active[0] === lane.index && active[1] === at) made.tabIndex = 0;
    return made;
  };
  const gap = (text, left) => {
    const made = element("div", "", { class: "gap" });
    made.append(element("b", text));
    made.style.left = `${Math.max(0, left)}%`;
    return made;
  };
  const row = (lane, at) => {
    const made = element("div", "", { class: lane.odd ? "lane odd" : "lane" });
    Object.assign(made.style, { top: `${tops[at]}px`, height: `${lane.height}px` });
    const label = element("button", lane.ranks, { type: "button", class: "label", "data-lane": lane.index, title: [lane.ranks, lane.hosts, lane.state].filter(Boolean).join("\n") });
    label.append(element("small", lane.silent ? "no file" : lane.state));
    const track = element("div", "", { class: "track" });
    if (lane.silent) track.append(gap("left no file", 0));
    else if (lane.isAbsent && place(data.mark.at) <= 100) track.append(gap(`did not come; ${lane.absent}`, place(data.mark.at)));
    track.append(...lane.calls.map((call, number) => bar(lane, call, number)).filter(Boolean));
    if (data.mark && place(data.mark.at) >= 0 && place(data.mark.at) <= 100) {
      const line = element("div", "", { class: "line" });
      line.style.left = `${place(data.mark.at)}%`;
      track.append(line);
    }
    made.append(label, track);
    return made;
  };
  const axis = () => {
    const rough = (view[1] - view[0]) / 7, power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough));
    const ticks = [];
    for (let time = zero + Math.ceil((view[0] - zero) / step) * step; time < view[1]; time += step) {
      const marked = data.mark && Math.abs(time - zero) < step / 2;
      if (!marked) ticks.push([time, time === zero ? "0" : `${time < zero ? "−" : "+"}${duration(time - zero)}`, ""]);
    }
    if (data.mark) ticks.push([zero, `0: call ${data.mark.number} of ${data.groups[data.mark.group]}`, "mark"]);
    byId("ticks").replaceChildren(...ticks.filter(([time]) => place(time) >= 0 && place(time) <= 100).map(([time, text, kind]) => {
      const made = element("span", text, { class: kind });
      made.style.left = `${place(time)}%`;
      return made;
    }));
  };
  const draw = () => {
    const focused = document.activeElement && document.activeElement.closest(".bar");
    const focusedLabel = document.activeElement && document.activeElement.closest("#lanes .label");
    field.style.height = `${tops.at(-1)}px`;
    const below = (height) => { const at = tops.findIndex((top) => top > height); return at < 0 ? shown.length : at; };
    const first = Math.max(0, below(main.scrollTop) - 4), last = Math.min(shown.length, below(main.scrollTop + main.clientHeight) + 4);
    field.replaceChildren(...shown.slice(first, last).map((lane, at) => row(lane, first + at)));
    axis();
    const again = focused ? field.querySelector(`[data-at="${focused.dataset.at}"]`) : focusedLabel ? field.querySelector(`[data-lane="${focusedLabel.dataset.lane}"]`) : null;
    if (again) again.focus({ preventScroll: true });
    if (!field.querySelector(".bar[tabindex='0']")) { const one = field.querySelector(".bar"); if (one) one.tabIndex = 0; }
  };

  // ---- filters; the state of the page is its hash: a link to what is seen
  const matches = (lane) => {
    if (wanted.odd && !lane.odd) return false;
    const whole = wanted.q.every((word) => lane.text.includes(word));
    const marked = data.mark && wanted.group === data.mark.group && (lane.isAbsent || lane.silent);
    if (whole && (wanted.group < 0 || marked)) return true;
    return lane.calls.some((call) => fits(call) && speaks(lane, call));
  };
  const filter = () => {
    const words = inputs.q.value.trim().toLowerCase();
    wanted = { q: words ? words.split(/\s+/) : [], group: inputs.group.value ? data.groups.indexOf(inputs.group.value) : -1, odd: inputs.odd.checked };
    shown = lanes.filter(matches);
    tops = [0];
    for (const lane of shown) tops.push(tops.at(-1) + lane.height);
    byId("none").hidden = shown.length > 0;
    const kept = data.kept === null ? "" : `; only the last ${data.kept === 1 ? "call" : `${data.kept} calls`} of each are drawn`;
    byId("shown").textContent = `${shown.length} of ${lanes.length} lanes shown${kept}`;
    main.scrollTop = 0;
    draw();
  };
  const changed = () => {
    const state = new URLSearchParams();
    for (const [name, input] of Object.entries(inputs)) {
      const value = input.type === "checkbox" ? (input.checked ? "1" : "") : input.value.trim();
      if (value) state.set(name, value);
    }
    history.replaceState(null, "", String(state) ? `#${state}` : location.pathname + location.search);
    filter();
  };
  filters.addEventListener("input", changed);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(changed));
  byId("all").addEventListener("click", () => look(...bounds));
  byId("part").addEventListener("click", () => look(...around()));
  byId("part").hidden = !data.mark;
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));

  // ---- what a call says
  const at = (target) => {
    const made = target.closest && target.closest(".bar");
    if (!made) return null;
    const [lane, call] = made.dataset.at.split("/").map(Number);
    return [lanes[lane], lanes[lane].calls[call], call];
  };
  const when = (call) => {
    const begin = call.start === zero ? "0" : `${call.start < zero ? "−" : "+"}${duration(call.start - zero)}`;
    return call.end === Infinity ? `from ${begin}, no end after ${duration(call.took)}` : `from ${begin}, took ${duration(call.took)}`;
  };
  const facts = (lane, call) => [
    ["call", `${call.kind.number} of ${call.kind.name}`],
    ["sends", call.kind.detail],
    ["line", call.kind.site],
    ["time", `${when(call)}${clock(call.start) ? ` (${clock(call.start)})` : ""}`],
    ["ranks", call.spread === undefined ? lane.ranks : `${lane.ranks}: the times are the median's; they came within ${duration(call.spread)}, rank ${call.last} last`],
    ["host", lane.hosts],
  ].filter(([, text]) => text);
  const table = (rows, heads) => {
    const made = element("table");
    if (heads) made.append(element("tr"));
    for (const head of heads || []) made.rows[0].append(element("th", head, { scope: "col" }));
    for (const [head, ...cells] of rows) {
      const line = element("tr");
      line.append(element("th", head, { scope: "row" }), ...cells.map((cell) => element("td", cell)));
      made.append(line);
    }
    return made;
  };
  const others = (kind) => {
    const rows = [];
    for (const lane of lanes) {
      const call = lane.calls.find((one) => one.kind.number === kind.number && one.kind.group === kind.group);
      if (call) rows.push([lane.ranks, title(call.kind), call.kind.site, when(call)]);
      else if (kind.marked && (lane.isAbsent || lane.silent)) rows.push([lane.ranks, "did not come", lane.silent ? "left no file" : lane.absent, ""]);
    }
    return rows;
  };
  const show = (heading, ...parts) => {
    byId("call-title").textContent = heading;
    byId("call-body").replaceChildren(...parts);
    tip.hidden = true;
    if (!dialog.open) dialog.showModal();
    byId("close").focus();
  };
  const openCall = (lane, call) => {
    const rows = others(call.kind);
    const parts = [table(facts(lane, call)), element("h3", "This call on all lanes"), table(rows.slice(0, MOST), ["ranks", "call", "line", "time"])];
    if (rows.length > MOST) parts.push(element("p", `and ${rows.length - MOST} more lanes`));
    show(call.kind.op, ...parts);
  };
  const openLane = (lane) => {
    const rows = [["state", lane.silent ? "left no file" : lane.state], ["where", lane.stack], ["hosts", lane.hosts], ["process", lane.pid === undefined ? "" : String(lane.pid)]];
    const calls = lane.calls.map((call) => [`${call.kind.name} ${call.kind.number}`, title(call.kind), call.kind.site, when(call)]).reverse();
    const parts = [table(rows.filter(([, text]) => text))];
    if (calls.length) parts.push(element("h3", "Its last calls, newest first"), table(calls, ["call", "operation", "line", "time"]));
    show(lane.ranks, ...parts);
  };

  // ---- mouse: hover tells, click opens, drag moves the time
  const hover = (event) => {
    const found = at(event.target);
    tip.hidden = !found || dialog.open;
    if (tip.hidden) return;
    const [lane, call] = found;
    tip.textContent = [call.kind.op, ...facts(lane, call).map(([head, text]) => `${head}: ${text}`)].join("\n");
    const box = event.target.closest(".bar").getBoundingClientRect();
    const x = event.clientX === undefined ? Math.max(box.left, 0) : event.clientX;
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + 6 + tip.offsetHeight > innerHeight ? Math.max(4, box.top - tip.offsetHeight - 6) : box.bottom + 6}px`;
  };
  field.addEventListener("mousemove", hover);
  field.addEventListener("mouseleave", () => { tip.hidden = true; });
  field.addEventListener("focusin", hover);
  field.addEventListener("focusout", () => { tip.hidden = true; });
  let drag = null, dragged = false;
  const trackWidth = () => Math.max(1, byId("ticks").clientWidth);
  field.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button === 0 && event.target.closest(".track")) drag = { x: event.clientX, from: view[0], id: event.pointerId };
  });
  field.addEventListener("pointermove", (event) => {
    if (!drag || (!dragged && Math.abs(event.clientX - drag.x) < 5)) return;
    if (!dragged) { dragged = true; field.setPointerCapture(drag.id); tip.hidden = true; }
    const from = drag.from - (event.clientX - drag.x) / trackWidth() * (view[1] - view[0]);
    look(from, from + view[1] - view[0]);
  });
  for (const name of ["pointerup", "pointercancel"]) field.addEventListener(name, () => { drag = null; });
  field.addEventListener("click", (event) => {
    if (dragged) return;
    const label = event.target.closest(".label"), found = at(event.target);
    if (label) openLane(lanes[label.dataset.lane]);
    if (found) { active = [found[0].index, found[2]]; openCall(found[0], found[1]); }
  });
  main.addEventListener("wheel", (event) => {
    const box = byId("ticks").getBoundingClientRect();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
    else if (sideways) { const by = sideways / box.width * (view[1] - view[0]); look(view[0] + by, view[1] + by); }
    else return;
    event.preventDefault();
  }, { passive: false });
  let due = false;
  const soon = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); } };
  main.addEventListener("scroll", soon);
  addEventListener("resize", soon);
  byId("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  // ---- keyboard
  const go = (laneAt, call) => { // laneAt: which of the shown lanes
    const lane = shown[laneAt];
    if (!lane || !lane.calls[call]) return;
    const { start } = lane.calls[call];
    active = [lane.index, call];
    const seen = main.clientHeight - byId("axis").offsetHeight;
    if (tops[laneAt] < main.scrollTop || tops[laneAt + 1] > main.scrollTop + seen) main.scrollTop = tops[laneAt] - seen / 2;
    const wide = view[1] - view[0];
    if (start < view[0] || start > view[1] - wide * 0.02) view = [start - wide / 2, start + wide / 2];
    draw();
    const made = field.querySelector(`[data-at="${lane.index}/${call}"]`);
    if (made) made.focus({ preventScroll: true });
  };
  const nearest = (lane, time) => lane.calls.reduce((best, call, index) => best < 0 || Math.abs(call.start - time) < Math.abs(lane.calls[best].start - time) ? index : best, -1);
  field.addEventListener("keydown", (event) => {
    const found = at(event.target);
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    const [lane, call, index] = found, here = shown.indexOf(lane);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") go(here, index + (event.key === "ArrowLeft" ? -1 : 1));
    else if (event.key === "Home" || event.key === "End") go(here, event.key === "Home" ? 0 : lane.calls.length - 1);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const by = event.key === "ArrowUp" ? -1 : 1;
      let next = here + by;
      while (shown[next] && !shown[next].calls.length) next += by;
      if (shown[next]) go(next, nearest(shown[next], call.start));
    } else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") look(...bounds);
    else if (event.key === "d" && data.mark) look(...around());
    else if (event.key === "/") inputs.q.focus();
    else return;
    event.preventDefault();
  });

  // ---- the start
  const swatch = (kind, text) => { const made = element("span"); made.append(element("i", "", { class: kind }), text); return made; };
  byId("legend").replaceChildren(
    ...data.groups.slice(0, COLOURS).map((name, group) => swatch(`g${group}`, name)),
    ...(data.groups.length > COLOURS ? [`and ${data.groups.length - COLOURS} more groups in the same colours `] : []),
    swatch("wait", "a wait without end"),
    ...(data.mark ? [swatch("away", "did not come, or left no file")] : []),
  );
  byId("unit").textContent = data.mark ? "time from there" : "time";
  const restore = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const [name, input] of Object.entries(inputs)) {
      if (input.type === "checkbox") input.checked = state.get(name) === "1";
      else input.value = state.get(name) || "";
    }
    filter();
  };
  addEventListener("hashchange", restore);
  view = around();
  restore();
})();
