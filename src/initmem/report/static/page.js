"use strict";
// What the page does beside showing itself: charts, sorting and copying, the table of runs, colors.
(() => {
  const { html, short, tip } = initmem;
  const PAGE = 100; // rows of the table of runs at a time
  const MOST_MARKED = 10; // lines of a chart, beyond which they are thin and without markers

  // -- sets of charts -----------------------------------------------------------------------------------
  // What the reader chose is kept by section, so that a section can be replaced while a study runs, and in the
  // address, so that a link leads to the same charts.
  const chosen = {}, address = new URLSearchParams(location.search);

  function remember(key, value) {
    value ? address.set(key, value) : address.delete(key);
    history.replaceState(null, "", `${location.pathname}${address.size ? `?${address}` : ""}${location.hash}`);
  }

  function chartSet(root, part) {
    const data = JSON.parse(root.querySelector("script.data").textContent);
    const state = (chosen[part] ||= { key: address.get(part) ?? data.choices[0].key, y: address.get(`${part}-y`) ?? "", off: new Set() });
    if (!data.choices.some((choice) => choice.key === state.key)) state.key = data.choices[0].key;
    let hosts = [], drawn = new Set(), specs = [];
    const redraw = () => {
      specs = specsOf(data, state);
      hosts.forEach((place, i) => {
        const spec = specs[i];
        place.draw = () => initmem.draw(place, spec);
        place.closest("figure").hidden = !spec.lines.length && (filter.length > 0 || pair !== null);
        if (drawn.has(place)) place.draw();
      });
      const values = root.querySelector(".values");
      if (values.open) fill(values, data, state);
    };
    // Choices may have panels of their own: a chart per recipe, or several recipes in one.
    const choose = () => {
      const choice = choiceOf(data, state);
      root.querySelector(".about").textContent = choice.about;
      root.querySelector(".charts").replaceChildren();
      root.querySelector(".charts").classList.toggle("many", choice.panels.length > 4);
      hosts = choice.panels.map((panel, i) => host(root, data, choice, panel, () => specs[i]));
      drawn = new Set();
      legend(root, data, state, hosts, redraw);
      redraw();
      whenSeen(hosts, drawn);
    };
    const titles = data.choices.map((choice) => [choice.key, choice.title]);
    segments(root.querySelector(".choices"), part, titles, state.key, (key) => {
      state.key = key;
      choose();
    });
    const several = data.choices.some((choice) => choice.panels.length > 1);
    const heights = [["", "y as it fits"], ...(several ? [["same", "same for all"]] : []), ["zero", "from 0"], ["log", "log"]];
    segments(root.querySelector(".axes"), `${part}-y`, heights, state.y, (kind) => {
      state.y = kind;
      redraw();
    });
    choose();
    Object.assign(root, { redraw, choose });
    root.querySelector(".values").ontoggle = (event) => event.target.open && fill(event.target, data, state);
  }

  function host(root, data, choice, panel, specOf) {
    const place = html("div", { class: "plot", tabindex: "0" });
    const caption = html("figcaption", {}, [html("span", {}, [panel.title])]);
    const rows = () => [titlesOf(choice), ...panel.series.flatMap((one) => pointsOf(data, choice, panel, one).map((p) => [one.name, ...valuesOf(p)]))];
    caption.append(initmem.files(place, () => [choice.title, panel.title].filter(Boolean).join(" "), specOf, rows));
    root.querySelector(".charts").append(html("figure", { class: "chart" }, [caption, place]));
    return place;
  }

  // What is drawn now. Two recipes that are compared share one chart, where every recipe has one line.
  function choiceOf(data, state) {
    const choice = data.choices.find((one) => one.key === state.key), series = choice.panels.flatMap((panel) => panel.series);
    if (!pair || new Set(series.map((one) => one.recipe)).size < series.length) return choice;
    const both = pair.map((recipe) => series.find((one) => one.recipe === recipe)).filter(Boolean);
    const homes = both.map((one) => choice.panels.find((panel) => panel.series.includes(one)));
    if (new Set(homes.map((panel) => String(panel.names))).size > 1) return choice; // one by scale, one by intervention
    const clash = both.length > 1 && String(both[0].style) === String(both[1].style);
    return { ...choice, panels: [{ ...homes[0], title: "", series: both.map((one, i) => ({ ...one, label: one.name, style: clash ? i : one.style })) }] };
  }

  function segments(box, name, options, current, choose) {
    for (const [value, title] of options) {
      const input = html("input", { type: "radio", name: `choice-${name}`, value });
      input.checked = value === current;
      input.onchange = () => {
        remember(name, value);
        choose(value);
      };
      box.append(html("label", {}, [input, html("span", {}, [title])]));
    }
    box.hidden = options.length < 2;
  }

  // One line per chart: the titles name the lines, and there is no legend to hide them by.
  const isApart = (panels) => panels.length > 1 && panels.every((panel) => panel.series.length < 2);

  // One legend for all charts, or one below each of them where the lines are too many to look different.
  function legend(root, data, state, hosts, redraw) {
    const { panels } = choiceOf(data, state);
    const drawn = (one) => data.values[one.values].y.some((y) => y !== null) || data.values[one.values].never;
    const labels = (series) => new Map(series.filter(drawn).map((one) => [one.label, one.style]));
    const every = panels.flatMap((panel) => panel.series).filter(drawn), place = root.querySelector(".legend");
    const looks = new Map(every.map((one) => [`${one.label} ${one.style}`, one.label]));
    const apart = looks.size > 8 || new Set(looks.values()).size < looks.size;
    place.hidden = isApart(panels) || apart;
    place.replaceChildren(...keys(labels(every), state, hosts, redraw));
    if (apart) hosts.forEach((host, i) => host.after(html("div", { class: "legend" }, keys(labels(panels[i].series), state, [host], redraw))));
  }

  function keys(labels, state, hosts, redraw) {
    return [...labels].map(([label, style]) => {
      const button = html("button", { type: "button", "aria-pressed": String(!state.off.has(label)), title: "show or hide" }, [
        initmem.sample(style),
        html("span", { class: "name" }, [label]),
      ]);
      button.onclick = () => {
        state.off.has(label) ? state.off.delete(label) : state.off.add(label);
        button.setAttribute("aria-pressed", String(!state.off.has(label)));
        redraw();
      };
      button.onpointerenter = () => hosts.forEach((place) => initmem.dim(place, label));
      button.onpointerleave = () => hosts.forEach((place) => initmem.dim(place, null));
      return button;
    });
  }

  // Draw what comes into view, and again when its width changes.
  function whenSeen(hosts, drawn) {
    const seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries.filter((e) => e.isIntersecting)) {
          seen.unobserve(entry.target);
          drawn.add(entry.target);
          entry.target.draw();
          resized.observe(entry.target);
        }
      },
      { rootMargin: "500px" },
    );
    const widths = new WeakMap();
    const resized = new ResizeObserver((entries) => {
      for (const { target } of entries.filter((e) => e.target.isConnected)) {
        if (widths.has(target) && widths.get(target) !== target.clientWidth) target.draw();
        widths.set(target, target.clientWidth);
      }
    });
    hosts.forEach((place) => seen.observe(place));
    window.addEventListener("beforeprint", () => hosts.forEach((place) => !drawn.has(place) && place.isConnected && place.draw()));
  }

  function specsOf(data, state) {
    const choice = choiceOf(data, state), { panels } = choice;
    const hidden = (one) => !matches(one.recipe) || (!isApart(panels) && state.off.has(one.label));
    const lines = panels.map((panel) => panel.series.filter((one) => !hidden(one)).map((one) => lineOf(data, choice, panel, one)));
    for (const shown of lines.filter((one) => one.length > MOST_MARKED)) for (const line of shown) line.marked = false;
    const points = lines.flat().flatMap((line) => line.points);
    const ylog = state.y ? state.y === "log" : choice.ylog || (choice.ceiling && wide(points));
    const whole = ["seeds", "epoch"].includes(choice.x);
    const ends = (shown) => shown.filter((line) => line.points.length).map((line) => Math.max(...line.points.map((p) => p.x)));
    const apart = (shown) => Math.max(...ends(shown)) / Math.min(...ends(shown));
    const named = panels.some((panel) => panel.names.length), ownX = panels.length > 1 && (named || apart(lines.flat()) > 3);
    const xOf = (panel, shown) => {
      const log = choice.xlog || (whole && apart(shown) > 3); // 12 and 2,400 epochs do not fit on one scale
      if (log) for (const line of shown) line.points = line.points.filter((p) => p.x > 0);
      return { title: panel.x, names: panel.names, log, whole, limits: initmem.domain(shown.flatMap((line) => line.points.map((p) => p.x)), log) };
    };
    const heights = (shown) => {
      const there = shown.flatMap((line) => line.points);
      return ylog ? there.map((p) => p.y) : [...withBands(there), ...(state.y === "zero" ? [0] : [])];
    };
    const yOf = (shown) => ({ title: choice.y, log: ylog, limits: initmem.domain(heights(shown), ylog, 4) });
    const ceiling = points.some((p) => p.beyond), x = ownX ? null : xOf(panels[0], lines.flat()), y = yOf(lines.flat());
    const ownY = state.y !== "same" && !ylog && panels.length > 1 && disparate(lines.map((shown) => yOf(shown).limits), y.limits);
    return panels.map((panel, i) => ({ title: panel.title, lines: lines[i], x: x ?? xOf(panel, lines[i]), y: ownY ? yOf(lines[i]) : y, ceiling }));
  }

  // Charts whose values lie far apart, as of several datasets, would all be flat on one axis.
  function disparate(limits, [low, high]) {
    const sizes = limits.map(([from, to]) => to - from).sort((a, b) => a - b);
    return sizes[Math.floor((sizes.length - 1) / 2)] < (high - low) / 4;
  }

  // Bands of few seeds are wide: beyond the range of the values itself, above and below, they leave the chart.
  function withBands(points) {
    const known = points.map((p) => p.y).filter((v) => v !== null);
    const [least, most] = [Math.min(...known), Math.max(...known)], room = most - least || Math.abs(most) || 1;
    const near = (v) => (v === null ? null : Math.min(most + room, Math.max(least - room, v)));
    return points.flatMap((p) => [p.y, near(p.low), near(p.high)]);
  }

  function wide(points) {
    const known = points.map((p) => p.y).filter((v) => v > 0);
    return known.length > 0 && Math.max(...known) > 20 * Math.min(...known);
  }

  function lineOf(data, choice, panel, series) {
    return { label: series.label, name: series.name, style: series.style, points: pointsOf(data, choice, panel, series).filter((p) => p.x !== null) };
  }

  const pointsOf = (data, choice, panel, series) => series.x.map((x, i) => pointOf(data, choice, panel, series, x, i));

  function pointOf(data, choice, panel, series, x, i) {
    const values = data.values[series.values], ids = series.runs === null ? null : data.runs[series.runs][i];
    const at = (name) => values[name]?.[i] ?? null;
    const [y, low, high, limits, never, n] = ["y", "low", "high", "limits", "never", "n"].map(at);
    const level = panel.names.length ? panel.names[x - 1] : x;
    const words = [panel.names.length ? level : `${choice.x} = ${short(x)}`];
    words.push(y === null ? `${choice.y}: not reached by half of the runs` : `${choice.y}: ${short4(y)}`);
    if (limits && limits[0] !== null) words.push(`${choice.limits}: ${short4(limits[0])} to ${short4(limits[1])}`);
    if (y !== null && low !== null && high !== null) words.push(`${choice.band}: ${short4(low)} to ${short4(high)}`);
    words.push(`n = ${n}${never ? (choice.ceiling ? `, of which ${never} never got there` : `; ${never} more without a value`) : ""}`);
    if (ids) words.push(`runs ${listed(ids)}`);
    const href = `#runs:${series.recipe}${ids ? `:${encodeURIComponent(level)}` : ""}`;
    return { x, level, y, low, high, open: Boolean(never), beyond: choice.ceiling && y === null && n > 0, words, n, limits, href };
  }

  const short4 = (v) => String(Number(v.toPrecision(4)));
  const listed = (ids) => ids.slice(0, 10).join(" ") + (ids.length > 10 ? ` and ${ids.length - 10} more` : "");

  // -- which recipes are shown ----------------------------------------------------------------------------
  // Those whose row in the first table, with name and verdict, holds all words of a filter; or two of them.
  const split = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  let filter = split(address.get("recipes") ?? "");
  let pair = address.get("compare")?.split(" ") ?? null;
  const recipeOf = (row) => /^#runs:([0-9a-f]{16})/.exec(row.querySelector("a")?.getAttribute("href") ?? "")?.[1];
  const rowsWithRecipe = (root) => [...root.querySelectorAll("tbody tr")].filter(recipeOf);

  function matches(recipe) {
    if (pair) return pair.includes(recipe);
    if (!filter.length) return true;
    const row = rowsWithRecipe(document.getElementById("memory") ?? document.body).find((one) => recipeOf(one) === recipe);
    const text = `${row?.textContent ?? ""} ${row?.querySelector("[title]")?.title ?? ""}`.toLowerCase();
    return !row || filter.every((word) => text.includes(word));
  }

  function applyFilter(root) {
    for (const row of rowsWithRecipe(root)) row.hidden = !matches(recipeOf(row));
    for (const charts of root.querySelectorAll(".chartset")) charts.redraw?.();
    const [shown, rows] = [document.getElementById("matches"), rowsWithRecipe(document.getElementById("memory") ?? root)];
    if (shown) shown.textContent = filter.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  }

  function setUpFilter(field) {
    const main = document.getElementById("main"), selects = [...document.querySelectorAll("select.compared")];
    field.value = filter.join(" ");
    field.oninput = () => {
      filter = split(field.value);
      remember("recipes", filter.join(" "));
      applyFilter(main);
    };
    selects.forEach((select, i) => {
      select.value = pair?.[i] ?? "";
      select.onchange = () => {
        const ids = selects.map((one) => one.value);
        pair = ids.every(Boolean) && ids[0] !== ids[1] ? ids : null;
        remember("compare", pair?.join(" "));
        for (const charts of main.querySelectorAll(".chartset")) charts.choose?.();
        applyFilter(main);
        compare(selects);
      };
    });
    compare(selects);
  }

  // The difference of the two memories, as the page was written with it, in the order of the table.
  function compare(selects) {
    const known = JSON.parse(document.getElementById("differences").textContent);
    const [first, second] = [...selects].sort((a, b) => a.selectedIndex - b.selectedIndex);
    const names = [second, first].map((one) => one.selectedOptions[0]?.textContent).join(" minus ");
    const found = pair && known[`${first.value} ${second.value}`];
    const words = found ?? "not computed: the recipes do not share metric, scales and seeds, or have one seed";
    document.getElementById("difference").textContent = pair ? `Difference of the memories, ${names}: ${words}.` : "";
  }

  // -- the values of a chart as a table -----------------------------------------------------------------

  function fill(details, data, state) {
    const choice = choiceOf(data, state);
    const lines = choice.panels.flatMap((panel) => panel.series.map((one) => [panel, one]));
    const rows = lines.flatMap(([panel, one]) => pointsOf(data, choice, panel, one).map((p) => [one.name, p]));
    const columns = titlesOf(choice).map((title, i) => [title, i ? "number" : "text"]);
    const cells = rows.map(([name, p]) => [link(name, p.href), ...valuesOf(p)]);
    details.replaceChildren(details.firstElementChild, tableOf(`values-${choice.key}`, `${choice.title} of every recipe`, columns, cells));
  }

  const titlesOf = (choice) => ["line", choice.x, choice.y, `${choice.band}, from`, "to", `${choice.limits}, from`, "to", "n"];
  const valuesOf = (p) => [p.level, p.y, p.low, p.high, p.limits?.[0] ?? null, p.limits?.[1] ?? null, p.n];

  function link(text, href) {
    return html("a", { href }, [text]);
  }

  function tableOf(id, caption, columns, rows) {
    const head = columns.map(([title, kind]) => html("th", { scope: "col", class: kind }, [kind === "picture" ? title : html("button", { type: "button", class: "sort" }, [title])]));
    const body = rows.map((row) => html("tr", {}, row.map((value, i) => cellOf(value, columns[i][1]))));
    const table = html("table", { id }, [html("caption", { class: "hidden" }, [caption]), html("thead", {}, [html("tr", {}, head)]), html("tbody", {}, body)]);
    const copy = html("button", { type: "button", class: "quiet", "data-copy": id }, ["Copy table"]);
    return html("div", { class: "framed" }, [
      html("div", { class: "tools" }, [copy]),
      html("div", { class: "scroll" }, [table]),
    ]);
  }

  function cellOf(value, kind) {
    if (value === null || value === undefined) return html("td", { class: kind });
    if (value instanceof Node) return html("td", { class: kind === "picture" ? kind : `${kind} name` }, [value]);
    if (typeof value === "number") return html("td", { class: kind, "data-sort": value }, [Number.isInteger(value) ? String(value) : short4(value)]);
    return html("td", { class: kind }, [value]);
  }

  // -- sorting and copying ------------------------------------------------------------------------------
  const sorted = {}; // by table id: [column, direction]

  function sort(table, column, direction) {
    const head = table.tHead.rows[0].cells;
    for (const cell of head) cell.removeAttribute("aria-sort");
    head[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const numeric = head[column].classList.contains("number");
    const value = (row) => {
      const cell = row.cells[column];
      if (!numeric) return cell.textContent.trim().toLowerCase();
      return cell.dataset.sort === undefined ? null : Number(cell.dataset.sort.replace("inf", "Infinity"));
    };
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is not there comes last
      return direction * (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
    sorted[table.id] = [column, direction];
  }

  function sortBy(button) {
    const cell = button.closest("th"), table = button.closest("table");
    const first = cell.classList.contains("number") ? "descending" : "ascending";
    const now = cell.getAttribute("aria-sort");
    const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
    sort(table, cell.cellIndex, next === "ascending" ? 1 : -1);
  }

  function textOf(table) {
    const keep = [...table.tHead.rows[0].cells].map((cell) => !cell.classList.contains("picture"));
    const line = (row) => [...row.cells].filter((_, i) => keep[i]).map((cell) => cell.textContent.trim().replace(/\s+/g, " ")).join("\t");
    return [table.tHead.rows[0], ...table.tBodies[0].rows].map(line).join("\n");
  }

  async function copy(button) {
    const text = textOf(document.getElementById(button.dataset.copy));
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = copyTheOldWay(text); // a page that is not from this machine may not use the clipboard
    }
    button.textContent = done ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = "Copy table"), 1500);
  }

  function copyTheOldWay(text) {
    const area = html("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  // -- the table of runs --------------------------------------------------------------------------------
  const embedded = document.getElementById("run-rows");
  const known = embedded ? JSON.parse(embedded.textContent) : {};
  initmem.runRows = async (recipe) => known[recipe];
  const asked = { recipe: null, scale: "", page: 0 };

  function explorer(form) {
    const { recipe, scale } = form.elements;
    if (!recipe.options.length) return;
    if ([...recipe.options].some((option) => option.value === asked.recipe)) recipe.value = asked.recipe;
    asked.recipe = recipe.value;
    scales(recipe, scale);
    recipe.onchange = () => {
      Object.assign(asked, { recipe: recipe.value, scale: "", page: 0 });
      scales(recipe, scale);
      showRuns();
    };
    scale.onchange = () => {
      Object.assign(asked, { scale: scale.value, page: 0 });
      showRuns();
    };
    form.onsubmit = (event) => event.preventDefault();
    new IntersectionObserver((entries, self) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      self.disconnect();
      showRuns();
    }, { rootMargin: "500px" }).observe(form);
  }

  function scales(recipe, scale) {
    const values = recipe.selectedOptions[0].dataset.scales.split("\n").filter(Boolean);
    if (!values.includes(asked.scale)) asked.scale = "";
    scale.replaceChildren(...["", ...values].map((value) => html("option", { value }, [value || "all"])));
    scale.value = asked.scale;
  }

  // A scale, or the name of an intervention.
  const levelText = (level) => (typeof level === "number" ? String(Number(level.toPrecision(6))) : level);

  async function showRuns() {
    const place = document.getElementById("run-table");
    const wanted = { ...asked };
    const found = await initmem.runRows(wanted.recipe);
    if (!found || wanted.recipe !== asked.recipe || !place.isConnected) return;
    const at = found.columns.indexOf("scale");
    const rows = found.rows.filter((row) => !wanted.scale || levelText(row[at]) === wanted.scale);
    const shown = rows.slice(asked.page * PAGE, (asked.page + 1) * PAGE);
    const used = found.columns.map((_, i) => shown.some((row) => row[i] !== null && row[i] !== ""));
    const words = ["run", "kind", "status", "environment", "faults"];
    const columns = found.columns.map((name) => [name, words.includes(name) ? "text" : "number"]).filter((_, i) => used[i]);
    const cells = shown.map((row) => row.map((value, i) => (i === 0 ? runName(value) : value)).filter((_, i) => used[i]));
    if (initmem.live) {
      columns.unshift(["compare", "picture"]);
      cells.forEach((row, i) => row.unshift(html("input", { type: "checkbox", "data-pick": shown[i][0], "aria-label": `compare run ${shown[i][0]}` })));
    }
    const table = tableOf("run-list", "Runs", columns, cells);
    place.replaceChildren(html("p", { class: "lead small" }, [found.settings]), table, pager(rows.length));
    restore(table);
    initmem.live?.restorePicks();
  }

  const runName = (id) => (initmem.live ? link(id, `#run:${id}`) : html("code", {}, [id]));

  function pager(count) {
    const pages = Math.ceil(count / PAGE);
    const turn = (text, by) => {
      const button = html("button", { type: "button", class: "quiet" }, [text]);
      button.disabled = asked.page + by < 0 || asked.page + by >= pages;
      button.onclick = () => {
        asked.page += by;
        showRuns();
      };
      return button;
    };
    const said = `${count} runs${pages > 1 ? `, page ${asked.page + 1} of ${pages}` : ""}`;
    return html("p", { class: "pager" }, pages > 1 ? [turn("← earlier", -1), said, turn("later →", 1)] : [said]);
  }

  function follow() {
    const found = /^#runs:([0-9a-f]{16})(?::(.+))?$/.exec(location.hash);
    const form = document.getElementById("explorer");
    if (!found || !form) return;
    Object.assign(asked, { recipe: found[1], scale: found[2] ? decodeURIComponent(found[2]) : "", page: 0 });
    explorer(form);
    showRuns();
    form.scrollIntoView({ block: "start" });
    form.elements.recipe.focus({ preventScroll: true });
  }

  // -- colors ------------------------------------------------------------------------------------------

  function theme() {
    const keep = (value) => {
      try {
        return value === undefined ? localStorage.getItem("initmem-theme") : localStorage.setItem("initmem-theme", value);
      } catch {
        return null; // a file may not remember anything: then the choice holds for this visit
      }
    };
    const apply = (value) => {
      if (value === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = value;
    };
    const before = keep();
    for (const input of document.querySelectorAll("input[name=theme]")) {
      if (input.value === before) {
        input.checked = true;
        apply(before);
      }
      input.onchange = () => {
        apply(input.value);
        keep(input.value);
      };
    }
  }

  // -- sections -----------------------------------------------------------------------------------------

  function restore(root) {
    for (const table of root.querySelectorAll("table[id]")) {
      if (sorted[table.id]) sort(table, ...sorted[table.id]);
    }
  }

  initmem.setUp = (section) => {
    for (const root of section.querySelectorAll(".chartset")) chartSet(root, section.dataset.part);
    const form = section.querySelector("#explorer");
    if (form) explorer(form);
    restore(section);
    const field = section.querySelector("#filter");
    if (field) setUpFilter(field);
    if (filter.length || pair) applyFilter(section);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.classList.contains("sort")) sortBy(button);
    else if (button?.dataset.copy) copy(button);
  });
  const pointed = (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (!target) return;
    const frame = target.getBoundingClientRect();
    tip.show(target.dataset.tip.split(/, (?=runs )|: /), frame.left + frame.width / 2, frame.bottom - 6);
  };
  document.addEventListener("pointerover", pointed);
  document.addEventListener("focusin", pointed);
  for (const kind of ["pointerout", "focusout"]) {
    document.addEventListener(kind, (event) => event.target.closest?.("[data-tip]") && tip.hide());
  }
  window.addEventListener("hashchange", follow);
  theme();
  document.querySelectorAll("section.part").forEach(initmem.setUp);
  document.addEventListener("DOMContentLoaded", follow); // after the scripts that follow this one
})();
